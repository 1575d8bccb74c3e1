import { render } from "preact";
import { afterEach, beforeEach, expect, test, vi } from "vitest";
import { AppContext, makeApp } from "../src/state/app";
import { emptyConversation, type Message, withMessages } from "../src/state/conversation";
import { DEFAULT_SETTINGS } from "../src/state/settings";
import { Page } from "../src/views/page";

const ATTACK = '<img src=x onerror="window.P=1"><script>window.P=1</script><svg onload=window.P=1>';

const find = (name: string) => [...document.querySelectorAll<HTMLElement>(`[data-testid="${name}"]`)];

beforeEach(() => {
  vi.stubGlobal("fetch", () => Promise.reject(new TypeError("offline")));
  vi.stubGlobal(
    "ResizeObserver",
    class {
      observe(): void {}
      disconnect(): void {}
    },
  );
  document.body.innerHTML = '<div id="app"></div>';
});

afterEach(() => {
  render(null, document.getElementById("app") as HTMLElement);
  vi.unstubAllGlobals();
});

function showPage() {
  const app = makeApp();
  const root = document.getElementById("app") as HTMLElement;
  render(
    <AppContext.Provider value={app}>
      <Page />
    </AppContext.Provider>,
    root,
  );
  return app;
}

test("h1: text of users, titles, errors and names of the server are shown literally", async () => {
  const app = showPage();
  const messages: Message[] = [
    { id: "q", parent: "", role: "user", content: ATTACK, created: 1 },
    {
      id: "a",
      parent: "q",
      role: "assistant",
      content: ATTACK,
      created: 2,
      finish: "error",
      error: { message: ATTACK, param: ATTACK },
    },
  ];
  const conversation = { ...withMessages(emptyConversation(DEFAULT_SETTINGS), messages), title: ATTACK };
  app.store.current.value = conversation;
  app.store.heads.value = [conversation];
  app.server.problem.value = ATTACK;
  app.server.models.value = [{ id: ATTACK }];
  app.server.decoders.value = [
    { id: ATTACK, name: ATTACK, description: ATTACK, parameters: {}, state: "broken", reason: ATTACK },
  ];
  app.panels.side.value = "settings";
  await vi.waitFor(() => expect(find("problem")).toHaveLength(1));
  expect(find("message-user")[0]?.textContent).toContain(ATTACK);
  expect(find("message-assistant")[0]?.textContent).toContain(ATTACK);
  expect(find("problem")[0]?.textContent).toContain(ATTACK);
  expect(find("title")[0]?.textContent).toBe(ATTACK);
  expect(find("conversation")[0]?.textContent).toContain(ATTACK);
  expect(find("server-problem")[0]?.textContent).toContain(ATTACK);
  expect(find("broken-decoders")[0]?.textContent).toContain(ATTACK);
  expect(document.querySelector("#app img, #app script, #app svg[onload]")).toBeNull();
  expect((window as { P?: unknown }).P).toBeUndefined();
});

test("a decoder that the server has registered since is there with its form, with no work here", async () => {
  const app = showPage();
  app.panels.side.value = "settings";
  app.server.decoders.value = [
    {
      id: "my-plugin",
      name: "my-plugin",
      description: "Mine.",
      state: "ready",
      parameters: { type: "object", properties: { depth: { type: "integer", minimum: 1, default: 3 } } },
    },
  ];
  app.actions.setSettings({ decoder: "my-plugin" });
  await vi.waitFor(() => expect(find("param-depth")).toHaveLength(1));
  const field = find("param-depth")[0] as HTMLInputElement;
  expect(field.placeholder).toBe("3");
  const enter = (text: string) => {
    field.value = text;
    field.dispatchEvent(new Event("input", { bubbles: true }));
  };
  enter("5");
  await vi.waitFor(() => expect(field.value).toBe("5"));
  await new Promise((resolve) => setTimeout(resolve, 50));
  expect(app.store.current.value.settings.decoderParams).toEqual({ "my-plugin": { depth: 5 } });
  enter("0");
  await vi.waitFor(() => expect(field.getAttribute("aria-invalid")).toBe("true"));
  expect(app.store.current.value.settings.decoderParams).toEqual({ "my-plugin": { depth: 5 } });
  enter("");
  expect(app.store.current.value.settings.decoderParams).toEqual({ "my-plugin": {} });
});

test("Enter sends, an input method's Enter and Shift+Enter do not", async () => {
  const app = showPage();
  const sent = vi.spyOn(app.actions, "send").mockImplementation(() => undefined);
  const field = find("composer")[0] as HTMLTextAreaElement;
  field.value = "にほん";
  field.dispatchEvent(new Event("input", { bubbles: true }));
  await vi.waitFor(() => expect((find("send")[0] as HTMLButtonElement).disabled).toBe(false));
  const press = (init: KeyboardEventInit) =>
    field.dispatchEvent(new KeyboardEvent("keydown", { key: "Enter", bubbles: true, cancelable: true, ...init }));
  press({ isComposing: true });
  press({ keyCode: 229 } as KeyboardEventInit);
  press({ shiftKey: true });
  expect(sent).not.toHaveBeenCalled();
  press({});
  expect(sent).toHaveBeenCalledWith("にほん");
});

test("the list of shortcuts opens with ? and closes with Escape", async () => {
  showPage();
  await vi.waitFor(() => {
    document.body.dispatchEvent(new KeyboardEvent("keydown", { key: "?", bubbles: true }));
    expect(find("help-dialog")).toHaveLength(1);
  });
  document.body.dispatchEvent(new KeyboardEvent("keydown", { key: "Escape", bubbles: true }));
  await vi.waitFor(() => expect(find("help-dialog")).toHaveLength(0));
});
