/** The page: list, chat, side panel, dialogs; and the shortcuts. */

import { useEffect } from "preact/hooks";
import { type Command, commandOf } from "../lib/keyboard";
import { type App, useApp } from "../state/app";
import { siblingAt } from "../state/conversation";
import { Chat } from "./chat";
import { ConversationList } from "./conversation_list";
import { Header } from "./header";
import { HelpDialog } from "./help_dialog";
import { Lazy } from "./lazy";
import { Notices } from "./notices";
import { SettingsPanel } from "./settings_panel";

export function Page() {
  const app = useApp();
  const { panels } = app;
  useShortcuts(app);
  return (
    <div class="page" data-list={panels.hasList.value} data-side={panels.side.value ?? "none"}>
      <button type="button" class="skip-link" onClick={() => panels.composerFocus.value++}>
        Skip to the message field
      </button>
      {panels.hasList.value && <ConversationList />}
      <div class="page-main">
        <Header />
        <Notices />
        <Chat />
      </div>
      {panels.side.value === "settings" && <SettingsPanel />}
      {panels.side.value === "engine" && <Lazy load={() => import("./engine_panel").then((m) => m.EnginePanel)} />}
      {panels.hasHelp.value && <HelpDialog />}
      {(panels.side.value || panels.hasList.value) && (
        <button type="button" class="scrim" aria-label="Close" tabIndex={-1} onClick={() => panels.closeTop()} />
      )}
    </div>
  );
}

function useShortcuts(app: App): void {
  useEffect(() => {
    const onKey = (event: KeyboardEvent) => {
      if (event.defaultPrevented) return;
      const command = commandOf(event);
      if (command !== null && run(command, app)) event.preventDefault();
    };
    document.addEventListener("keydown", onKey);
    return () => document.removeEventListener("keydown", onKey);
  }, [app]);
}

/** Does what a shortcut says; false when there was nothing to do. */
function run(command: Command, { store, actions, panels }: App): boolean {
  const last = store.path.value.at(-1);
  switch (command) {
    case "escape":
      if (panels.closeTop()) return true;
      if (!store.generation.value) return false;
      actions.stop();
      return true;
    case "compose":
      panels.composerFocus.value++;
      return true;
    case "search":
      panels.focusSearch();
      return true;
    case "new":
      store.newChat();
      panels.composerFocus.value++;
      return true;
    case "regenerate":
      if (last?.role !== "assistant") return false;
      actions.regenerate(last);
      return true;
    case "edit":
      panels.editing.value = store.path.value.findLast((message) => message.role === "user")?.id ?? null;
      return true;
    case "previous":
    case "next": {
      const sibling = last && siblingAt(store.current.value, last, command === "next" ? 1 : -1);
      if (sibling) actions.select(sibling);
      return true;
    }
    case "settings":
    case "engine":
      panels.toggleSide(command);
      return true;
    case "list":
      panels.toggleList();
      return true;
    case "help":
      panels.hasHelp.value = true;
      return true;
  }
}
