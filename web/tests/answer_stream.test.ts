import { afterEach, expect, test, vi } from "vitest";
import { AnswerStream, type StreamListener } from "../src/api/answer_stream";
import type { StreamEvent } from "../src/api/types";
import { Connection, DONE, OPEN, refusal, scriptedFetch } from "./stream_server";

const ASKED = { id: "a1", lastEventId: 0, body: { messages: [{ role: "user" as const, content: "Hi" }] } };

class Recorder implements StreamListener {
  readonly events: StreamEvent[] = [];
  readonly reconnecting: boolean[] = [];

  onEvent(event: StreamEvent): void {
    this.events.push(event);
  }

  onReconnecting(isLost: boolean): void {
    this.reconnecting.push(isLost);
  }

  get text(): string {
    return this.events.map((event) => (event.type === "delta" ? event.data.text : "")).join("");
  }
}

afterEach(() => {
  vi.unstubAllGlobals();
});

test("hands on the events of an answer, and ends with it", async () => {
  const connection = new Connection();
  const asked = scriptedFetch([connection]);
  const recorder = new Recorder();
  const ending = new AnswerStream(ASKED, recorder).run();
  connection.send(1, "open", OPEN);
  connection.send(2, "delta", { choice: 0, text: "Hel" });
  connection.send(3, "delta", { choice: 0, text: "lo", finish_reason: "stop" });
  connection.send(4, "done", DONE);
  connection.close();
  expect(await ending).toEqual({ kind: "done" });
  expect(recorder.text).toBe("Hello");
  expect(asked.map(({ method, path }) => `${method} ${path}`)).toEqual(["PUT /ui/stream/a1"]);
});

test("attaches again behind the last event when the connection breaks, and takes nothing twice", async () => {
  const [first, second] = [new Connection(), new Connection()];
  const asked = scriptedFetch([first, second]);
  const recorder = new Recorder();
  const ending = new AnswerStream(ASKED, recorder, [1]).run();
  first.send(1, "open", OPEN);
  first.send(2, "delta", { choice: 0, text: "Hel" });
  await vi.waitFor(() => expect(recorder.text).toBe("Hel"));
  first.cut();
  second.send(2, "delta", { choice: 0, text: "Hel" });
  second.send(3, "delta", { choice: 0, text: "lo" });
  second.send(4, "done", DONE);
  second.close();
  expect(await ending).toEqual({ kind: "done" });
  expect(recorder.text).toBe("Hello");
  expect(recorder.reconnecting).toEqual([true, false]);
  expect(asked[1]).toMatchObject({ method: "GET", path: "/ui/stream/a1", lastEventId: "2" });
});

test("an end of the connection without an end of the answer is a break, too", async () => {
  const [first, second] = [new Connection(), new Connection()];
  scriptedFetch([first, second]);
  const ending = new AnswerStream(ASKED, new Recorder(), [1]).run();
  first.send(1, "open", OPEN);
  first.sendRaw("event: delta\nid: 2\nda");
  first.close();
  second.send(2, "done", DONE);
  second.close();
  expect(await ending).toEqual({ kind: "done" });
});

test("the answer is lost when the server no longer knows it", async () => {
  const first = new Connection();
  scriptedFetch([first, refusal(404, "gone")]);
  const ending = new AnswerStream(ASKED, new Recorder(), [1]).run();
  first.send(1, "open", OPEN);
  first.close();
  expect(await ending).toEqual({ kind: "lost" });
});

test("a connection that breaks before its first event is taken up from the beginning", async () => {
  const [first, second] = [new Connection(), new Connection()];
  const asked = scriptedFetch([first, second]);
  const ending = new AnswerStream(ASKED, new Recorder(), [1]).run();
  first.close();
  second.send(1, "open", OPEN);
  second.send(2, "done", DONE);
  second.close();
  expect(await ending).toEqual({ kind: "done" });
  expect(asked[1]).toMatchObject({ method: "GET", path: "/ui/stream/a1", lastEventId: "0" });
});

test("gives up when nobody answers any more", async () => {
  const first = new Connection();
  const asked = scriptedFetch([first]);
  const ending = new AnswerStream(ASKED, new Recorder(), [1, 1]).run();
  first.send(1, "open", OPEN);
  first.close();
  expect(await ending).toEqual({ kind: "unreachable" });
  expect(asked).toHaveLength(3);
});

test("a refusal and an error in the middle end it with what the server says", async () => {
  scriptedFetch([refusal(400, "n is 99")]);
  expect(await new AnswerStream(ASKED, new Recorder()).run()).toMatchObject({
    kind: "failed",
    error: { message: "n is 99" },
  });

  const connection = new Connection();
  scriptedFetch([connection]);
  const ending = new AnswerStream(ASKED, new Recorder()).run();
  connection.send(1, "open", OPEN);
  connection.send(2, "error", { error: { message: "the decoder failed", type: "server_error" } });
  connection.close();
  expect(await ending).toMatchObject({ kind: "failed", error: { message: "the decoder failed" } });
});

test("frames that are broken or unknown are passed over", async () => {
  const connection = new Connection();
  scriptedFetch([connection]);
  const recorder = new Recorder();
  const ending = new AnswerStream(ASKED, recorder).run();
  connection.send(1, "open", OPEN);
  connection.sendRaw('event: delta\nid: 2\ndata: {"choice": 0, "te\n\n');
  connection.send(3, "weather", { is: "fine" });
  connection.send(4, "delta", { choice: 0, text: "ok" });
  connection.send(5, "done", DONE);
  connection.close();
  expect(await ending).toEqual({ kind: "done" });
  expect(recorder.text).toBe("ok");
});

test("h5: stop tells the server once, however often it is pressed, and nothing is heard afterwards", async () => {
  const connection = new Connection();
  const asked = scriptedFetch([connection]);
  const recorder = new Recorder();
  const stream = new AnswerStream(ASKED, recorder);
  const ending = stream.run();
  connection.send(1, "open", OPEN);
  connection.send(2, "delta", { choice: 0, text: "some words" });
  await vi.waitFor(() => expect(recorder.text).toBe("some words"));
  stream.stop();
  stream.stop();
  connection.send(3, "delta", { choice: 0, text: " too late" });
  connection.close();
  expect(await ending).toEqual({ kind: "stopped" });
  expect(recorder.text).toBe("some words");
  expect(asked.filter(({ method }) => method === "DELETE").map(({ path }) => path)).toEqual(["/ui/stream/a1"]);
});

test("h5: stop before the server has taken the request acts as soon as it has", async () => {
  const connection = new Connection();
  const asked = scriptedFetch([connection]);
  const recorder = new Recorder();
  const stream = new AnswerStream(ASKED, recorder);
  const ending = stream.run();
  stream.stop();
  expect(asked.map(({ method }) => method)).toEqual(["PUT"]);
  connection.send(1, "open", OPEN);
  connection.send(2, "delta", { choice: 0, text: "too late" });
  expect(await ending).toEqual({ kind: "stopped" });
  expect(recorder.events).toEqual([]);
  expect(asked.map(({ method }) => method)).toEqual(["PUT", "DELETE"]);
});

test("takes up an answer that another page began", async () => {
  const connection = new Connection();
  const asked = scriptedFetch([connection]);
  const recorder = new Recorder();
  const ending = new AnswerStream({ id: "a9", lastEventId: 41 }, recorder).run();
  connection.send(42, "delta", { choice: 0, text: "the rest" });
  connection.send(43, "done", DONE);
  connection.close();
  expect(await ending).toEqual({ kind: "done" });
  expect(recorder.text).toBe("the rest");
  expect(asked[0]).toMatchObject({ method: "GET", path: "/ui/stream/a9", lastEventId: "41" });
});
