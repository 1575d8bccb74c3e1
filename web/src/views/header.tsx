/** The bar above the chat: its title, the model, and what opens the panels. */

import { useApp } from "../state/app";
import { Icon } from "./icon";

export function Header() {
  const { store, server, panels } = useApp();
  const { decoder } = store.current.value.settings;
  const side = panels.side.value;
  return (
    <header class="header">
      <button
        type="button"
        class="icon-button"
        aria-label="Conversation list"
        aria-expanded={panels.hasList.value}
        title="Conversation list (Alt+L)"
        data-testid="toggle-list"
        onClick={() => panels.toggleList()}
      >
        <Icon name="list" />
      </button>
      <div class="header-title">
        <h1 data-testid="title">{store.current.value.title}</h1>
        <p class="subtle" data-testid="model">
          {server.model.value?.id ?? (server.problem.value ? "not connected" : "connecting…")}
        </p>
      </div>
      <button
        type="button"
        class="chip-button"
        aria-expanded={side === "settings"}
        title="Decoding settings (Alt+S)"
        data-testid="toggle-settings"
        onClick={() => panels.toggleSide("settings")}
      >
        <Icon name="sliders" />
        <span class="visually-hidden">Decoding settings: </span>
        <span class="chip-label">{decoder || "automatic"}</span>
      </button>
      <button
        type="button"
        class="chip-button"
        aria-expanded={side === "engine"}
        title="Engine view (Alt+B)"
        data-testid="toggle-engine"
        onClick={() => panels.toggleSide("engine")}
      >
        <Icon name="chip" />
        <span class="chip-label">Engine</span>
      </button>
      <button
        type="button"
        class="icon-button"
        aria-label="Keyboard shortcuts"
        title="Keyboard shortcuts (?)"
        data-testid="open-help"
        onClick={() => {
          panels.hasHelp.value = true;
        }}
      >
        <Icon name="help" />
      </button>
    </header>
  );
}
