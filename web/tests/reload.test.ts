import { expect, test, vi } from "vitest";
import { shownPath } from "../src/state/conversation";
import { finished, last, openPage, token } from "./open_page";
import { Connection, DONE, OPEN, refusal, scriptedFetch } from "./stream_server";

/** Asks on a new page, whose answer is begun with "Hel" and stored so far. */
async function storePart(connection: Connection, more: object = {}) {
  const { store, actions } = openPage();
  actions.send("Hi");
  connection.send(1, "open", OPEN);
  connection.send(2, "delta", { choice: 0, text: "Hel", ...more });
  await vi.waitFor(() => expect(store.generation.value?.answers[0]?.text).toBe("Hel"));
  store.saveRunning();
  await store.settled();
  return store;
}

test("a reload in the middle of an answer takes it up behind the last stored event", async () => {
  const [first, second] = [new Connection(), new Connection()];
  const asked = scriptedFetch([first, second]);
  const store = await storePart(first, { tokens: [token("Hel")] });

  const reloaded = openPage().store;
  await reloaded.open(store.current.value.id);
  await vi.waitFor(() => expect(asked).toHaveLength(2));
  expect(asked.at(-1)).toMatchObject({ method: "GET", path: asked[0]?.path, lastEventId: "2" });
  second.send(3, "delta", { choice: 0, text: "lo", tokens: [token("lo")], finish_reason: "stop" });
  second.send(4, "done", DONE);
  second.close();
  await finished(reloaded);
  expect(last(reloaded)).toMatchObject({ content: "Hello", finish: "stop" });
  expect(await reloaded.storage.details(store.current.value.id, last(reloaded).id, "tokens")).toEqual([
    token("Hel"),
    token("lo"),
  ]);
});

test("a reload at the moment of asking finds the question, and its answer from the first event on", async () => {
  const [first, second] = [new Connection(), new Connection()];
  const asked = scriptedFetch([first, second]);
  const { store, actions } = openPage();
  actions.setSettings({ system: "Be brief." });
  vi.spyOn(store.storage, "save").mockReturnValue(new Promise(() => undefined)); // there is no time for it
  actions.send("Hi");
  await vi.waitFor(() => expect(asked).toHaveLength(1));
  const address = asked[0]?.path;
  expect(address).toMatch(/^\/ui\/stream\/[0-9a-f]{32}$/);

  const reloaded = openPage().store;
  await reloaded.start();
  expect(await reloaded.open(store.current.value.id)).toBe(true);
  expect(reloaded.current.value).toEqual(store.current.value);
  await vi.waitFor(() => expect(asked).toHaveLength(2));
  expect(asked[1]).toMatchObject({ method: "GET", path: address, lastEventId: "0" });
  second.send(1, "open", OPEN);
  second.send(2, "delta", { choice: 0, text: "Hello", finish_reason: "stop" });
  second.send(3, "done", DONE);
  second.close();
  await finished(reloaded);
  expect(last(reloaded)).toMatchObject({ content: "Hello", finish: "stop", decoder: "sampling" });
  expect(sessionStorage).toHaveLength(0);
});

test("a reload before the question was sent offers to ask again", async () => {
  scriptedFetch([new Connection(), refusal(404, "unknown")]);
  const { store, actions } = openPage();
  actions.send("Hi");
  await store.settled();
  const reloaded = openPage().store;
  await reloaded.open(store.current.value.id);
  await vi.waitFor(() => expect(last(reloaded)).toMatchObject({ finish: "interrupted", error: { code: "lost" } }));
  await finished(reloaded);
  expect(shownPath(reloaded.current.value).map(({ content }) => content)).toEqual(["Hi", ""]);
});

test("without room in the session's storage, nothing is asked before the question is stored", async () => {
  const asked = scriptedFetch([new Connection()]);
  const { store, actions } = openPage();
  const full = vi.spyOn(Storage.prototype, "setItem").mockImplementation(() => {
    throw new DOMException("full", "QuotaExceededError");
  });
  const save = vi.spyOn(store.storage, "save");
  actions.send("Hi");
  await vi.waitFor(() => expect(asked).toHaveLength(1));
  full.mockRestore();
  expect(save).toHaveBeenCalled();
  const stored = await store.storage.load(store.current.value.id);
  expect(Object.values(stored?.messages ?? {})).toHaveLength(2);
  expect(stored?.messages[last(store).id]?.stream).toMatchObject({ lastEventId: 0 });
});

test("a reload after the server has forgotten the answer keeps what there was", async () => {
  const first = new Connection();
  const asked = scriptedFetch([first, refusal(404, "gone")]);
  const store = await storePart(first);
  const reloaded = openPage().store;
  await reloaded.open(store.current.value.id);
  await vi.waitFor(() => expect(asked).toHaveLength(2));
  await finished(reloaded);
  expect(last(reloaded)).toMatchObject({ content: "Hel", finish: "interrupted", error: { code: "lost" } });
});

test("two windows do not take an answer from each other: the second waits until the first is done", async () => {
  const turns: (() => void)[] = [];
  const request = async (_name: string, held: () => Promise<void>) => {
    if (turns.length > 0) await new Promise<void>((resolve) => turns.push(resolve));
    else turns.push(() => undefined);
    await held();
    turns.shift();
    turns[0]?.();
  };
  Object.defineProperty(navigator, "locks", { configurable: true, value: { request } });
  const connection = new Connection();
  const asked = scriptedFetch([connection]);
  const store = await storePart(connection);
  const other = openPage().store;
  await other.open(store.current.value.id);
  connection.send(3, "delta", { choice: 0, text: "lo", finish_reason: "stop" });
  connection.send(4, "done", DONE);
  connection.close();
  await finished(store);
  await vi.waitFor(() => expect(last(other)).toMatchObject({ content: "Hello", finish: "stop" }));
  expect(asked).toHaveLength(1);
  Reflect.deleteProperty(navigator, "locks");
});
