import { expect, test, vi } from "vitest";
import { childrenOf, compared, type Message, shownPath } from "../src/state/conversation";
import { finished, last, openPage, takeFreshDatabase, token } from "./open_page";
import { Connection, DONE, OPEN, refusal, scriptedFetch } from "./stream_server";

test("a question and its answer, stored as they come", async () => {
  const connection = new Connection();
  const asked = scriptedFetch([connection]);
  const { store, actions } = openPage();
  actions.send("Hello there");
  connection.send(1, "open", OPEN);
  connection.send(2, "delta", { choice: 0, text: "Hi", tokens: [token("Hi")] });
  connection.send(3, "delta", { choice: 0, text: "!", tokens: [token("!")], finish_reason: "stop" });
  connection.send(4, "done", DONE);
  connection.close();
  await finished(store);
  expect(asked[0]?.body?.messages).toEqual([{ role: "user", content: "Hello there" }]);
  expect(last(store)).toMatchObject({ content: "Hi!", finish: "stop", decoder: "sampling", usage: DONE.usage });
  expect(last(store).stream).toBeUndefined();

  const reloaded = openPage().store;
  await reloaded.start();
  expect(reloaded.heads.value.map(({ title }) => title)).toEqual(["Hello there"]);
  await reloaded.open(store.current.value.id);
  expect(reloaded.current.value).toEqual(store.current.value);
  expect(await reloaded.storage.details(store.current.value.id, last(store).id, "tokens")).toHaveLength(2);
});

test("h5: a stopped answer keeps its words, they are part of the next request, and nothing late is added", async () => {
  const [first, second] = [new Connection(), new Connection()];
  const asked = scriptedFetch([first, second]);
  const { store, actions } = openPage();
  actions.send("Tell a story");
  first.send(1, "open", OPEN);
  first.send(2, "delta", { choice: 0, text: "Once upon" });
  const generation = store.generation.value;
  await vi.waitFor(() => expect(generation?.answers[0]?.text).toBe("Once upon"));
  actions.stop();
  actions.stop();
  expect(last(store)).toMatchObject({ content: "Once upon", finish: "stopped" });
  actions.send("Another");
  first.send(3, "delta", { choice: 0, text: " a time" });
  second.send(1, "open", OPEN);
  second.send(2, "delta", { choice: 0, text: "Yes", finish_reason: "stop" });
  second.send(3, "done", DONE);
  second.close();
  await finished(store);
  expect(asked.filter(({ method }) => method === "DELETE")).toHaveLength(1);
  expect(asked.at(-1)?.body?.messages).toEqual([
    { role: "user", content: "Tell a story" },
    { role: "assistant", content: "Once upon" },
    { role: "user", content: "Another" },
  ]);
  expect(shownPath(store.current.value).map(({ content }) => content)).toEqual([
    "Tell a story",
    "Once upon",
    "Another",
    "Yes",
  ]);
});

test("three candidates come from one request; one is chosen, the others stay as versions", async () => {
  const connection = new Connection();
  const asked = scriptedFetch([connection]);
  const { store, actions } = openPage();
  actions.setSettings({ n: 3 });
  actions.send("Name?");
  connection.send(1, "open", { ...OPEN, n: 3 });
  for (const [place, choice] of [2, 0, 1].entries()) {
    connection.send(2 + place, "delta", { choice, text: `name ${choice}`, finish_reason: "stop" });
  }
  connection.send(9, "done", DONE);
  connection.close();
  await finished(store);
  expect(asked[0]?.body?.n).toBe(3);
  const question = shownPath(store.current.value)[0] as Message;
  const candidates = compared(store.current.value, question.id);
  expect(candidates.map(({ content }) => content)).toEqual(["name 0", "name 1", "name 2"]);
  actions.choose(candidates[2] as Message);
  expect(last(store).content).toBe("name 2");
  expect(compared(store.current.value, question.id)).toEqual([]);
  expect(childrenOf(store.current.value, question.id)).toHaveLength(3);
});

test("a refused request for three answers leaves one message with the reason", async () => {
  scriptedFetch([refusal(400, "n is 3")]);
  const { store, actions } = openPage();
  actions.setSettings({ n: 3 });
  actions.send("Hi");
  await finished(store);
  expect(Object.keys(store.current.value.messages)).toHaveLength(2);
  expect(last(store)).toMatchObject({ finish: "error", error: { message: "n is 3" } });
  expect(await store.storage.load(store.current.value.id)).toEqual(store.current.value);
});

test("an error is shown with the answer, and Retry puts another in its place", async () => {
  const connection = new Connection();
  scriptedFetch([refusal(400, "n is too large"), connection]);
  const { store, actions } = openPage();
  actions.send("Hi");
  await finished(store);
  expect(last(store)).toMatchObject({ finish: "error", error: { message: "n is too large" } });
  actions.regenerate(last(store));
  connection.send(1, "open", OPEN);
  connection.send(2, "delta", { choice: 0, text: "ok", finish_reason: "stop" });
  connection.send(3, "done", DONE);
  connection.close();
  await finished(store);
  expect(last(store).content).toBe("ok");
  expect(Object.keys(store.current.value.messages)).toHaveLength(2);
});

test("branching from a token sends the text up to it with the token forced", async () => {
  const [first, second] = [new Connection(), new Connection()];
  const asked = scriptedFetch([first, second]);
  const { store, actions } = openPage();
  actions.send("Colour?");
  first.send(1, "open", OPEN);
  first.send(2, "delta", {
    choice: 0,
    text: "It is red",
    tokens: [token("It is"), token(" red")],
    finish_reason: "stop",
  });
  first.send(3, "done", DONE);
  first.close();
  await finished(store);
  actions.branch(last(store), "It is blue", [token("It is"), token(" blue")]);
  second.send(1, "open", OPEN);
  second.send(2, "delta", { choice: 0, text: " today", tokens: [token(" today")], finish_reason: "stop" });
  second.send(3, "done", DONE);
  second.close();
  await finished(store);
  expect(asked[1]?.body).toMatchObject({
    messages: [
      { role: "user", content: "Colour?" },
      { role: "assistant", content: "It is blue" },
    ],
    continue_final_message: true,
    add_generation_prompt: false,
  });
  expect(last(store)).toMatchObject({ content: "It is blue today" });
  expect(await store.storage.details(store.current.value.id, last(store).id, "tokens")).toHaveLength(3);
});

test("another conversation can be opened while one is answered, and finds the answer on return", async () => {
  const connection = new Connection();
  scriptedFetch([connection]);
  const { store, actions } = openPage();
  actions.send("Hi");
  const { id } = store.current.value;
  connection.send(1, "open", OPEN);
  store.newChat();
  expect(store.generation.value).toBeNull();
  connection.send(2, "delta", { choice: 0, text: "there", finish_reason: "stop" });
  connection.send(3, "done", DONE);
  connection.close();
  await vi.waitFor(() => expect(store.running.value.size).toBe(0));
  await store.settled();
  await store.open(id);
  expect(last(store).content).toBe("there");
});

test("an import of an export restores the tree, its settings and its tokens", async () => {
  const connection = new Connection();
  scriptedFetch([connection]);
  const { store, actions, library } = openPage();
  actions.setSettings({ system: "Be kind." });
  actions.send("Hi");
  connection.send(1, "open", OPEN);
  connection.send(2, "delta", { choice: 0, text: "yo", tokens: [token("yo")], finish_reason: "stop" });
  connection.send(3, "done", DONE);
  connection.close();
  await finished(store);
  actions.edit(last(store), "my own words");
  await store.settled();
  const original = store.current.value;
  const text = await library.exportText();

  takeFreshDatabase();
  const other = openPage();
  const [id] = await other.library.importText(text);
  await other.store.open(id as string);
  expect(other.store.current.value).toEqual(original);
  const [answer] = childrenOf(original, shownPath(original)[0]?.id as string);
  expect(await other.store.storage.details(original.id, answer?.id as string, "tokens")).toEqual([token("yo")]);

  const [copy] = await other.library.importText(text);
  expect(copy).not.toBe(id);
  expect(other.store.heads.value).toHaveLength(2);
});

test("search finds words of any message and of titles; renaming and removing hold", async () => {
  scriptedFetch([refusal(400, "no"), refusal(400, "no")]);
  const { store, actions, library } = openPage();
  actions.send("About foxes\nand also the quick brown ones");
  await finished(store);
  store.newChat();
  actions.send("About dogs");
  await finished(store);
  expect((await library.find("BROWN quick")).map(({ title }) => title)).toEqual(["About foxes"]);
  expect(await library.find("wolves")).toEqual([]);
  const [dogs, foxes] = store.heads.value;
  await library.rename(foxes?.id as string, "  Vulpes ");
  expect((await library.find("vulpes")).map(({ id }) => id)).toEqual([foxes?.id]);
  await library.remove(dogs?.id as string);
  expect(store.heads.value.map(({ title }) => title)).toEqual(["Vulpes"]);
  expect(await store.storage.load(dogs?.id as string)).toBeNull();
});
