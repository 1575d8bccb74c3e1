/** `App`: everything the views share, made once in `main.tsx` and handed down by context. */

import { effect, untracked } from "@preact/signals";
import { createContext } from "preact";
import { useContext } from "preact/hooks";
import { Actions } from "./actions";
import { Library } from "./library";
import { Panels } from "./panels";
import { Presets } from "./presets";
import { ServerInfo } from "./server_info";
import { ChatStore } from "./store";

export interface App {
  store: ChatStore;
  actions: Actions;
  library: Library;
  server: ServerInfo;
  presets: Presets;
  panels: Panels;
}

export function makeApp(): App {
  const store = new ChatStore();
  const actions = new Actions(store);
  const server = new ServerInfo();
  // An answer that broke off is the first sign of a server that is gone, or back with other decoders.
  effect(() => {
    const code = store.path.value.at(-1)?.error?.code;
    if (code === "unreachable" || code === "lost") untracked(() => void server.refresh());
  });
  return {
    store,
    actions,
    library: new Library(store),
    server,
    presets: new Presets(),
    panels: new Panels(),
  };
}

export const AppContext = createContext<App | null>(null);

export function useApp(): App {
  const app = useContext(AppContext);
  if (app === null) throw new Error("There is no App around this view.");
  return app;
}
