/** The bar above the chat: its title, the model, and what opens the panels. */

import { useApp } from "../state/app";
import { Icon } from "./icon";
import { IconButton } from "./icon_button";

export function Header() {
  const { store, server, panels } = useApp();
  const { decoder } = store.current.value.settings;
  const side = panels.side.value;
  return (
    <header class="header">
      <IconButton
        icon="list"
        label="Conversation list"
        shortcut="Alt+L"
        testId="toggle-list"
        isLarge
        isExpanded={panels.hasList.value}
        onClick={() => panels.toggleList()}
      />
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
      <IconButton
        icon="help"
        label="Keyboard shortcuts"
        shortcut="?"
        testId="open-help"
        isLarge
        onClick={() => {
          panels.hasHelp.value = true;
        }}
      />
    </header>
  );
}
