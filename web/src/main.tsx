import { render } from "preact";
import { AppContext, makeApp } from "./state/app";
import { lastSettings } from "./state/presets";
import "./styles/index";
import { restoreOpened } from "./state/opened";
import { Page } from "./views/page";

const app = makeApp();
app.store.newChat(lastSettings());
void app.server.refresh();
void app.store.start().then(() => restoreOpened(app.store));

// What came since the last save must survive a reload.
window.addEventListener("pagehide", () => app.store.saveRunning());
document.addEventListener("visibilitychange", () => {
  if (document.hidden) app.store.saveRunning();
  else void app.store.refreshHeads(); // Another window may have added conversations.
});

const root = document.getElementById("app");
if (root) {
  render(
    <AppContext.Provider value={app}>
      <Page />
    </AppContext.Provider>,
    root,
  );
}
