/** `AnswerStream`: one answer from `/ui/stream`, over as many connections as it takes. */

import { readEvents } from "./events";
import { ApiError, request, UnreachableError } from "./http";
import type { ApiErrorBody, StreamBody, StreamEvent } from "./types";

/** Where an answer is to be had: a request to be made, or one that runs already. */
export type StreamSource = { body: StreamBody } | { requestId: string; lastEventId: number };

/** How an answer ended. `lost`: the server no longer knows it; `unreachable`: nobody answers. */
export type Ending =
  | { kind: "done" }
  | { kind: "stopped" }
  | { kind: "lost" }
  | { kind: "unreachable" }
  | { kind: "failed"; error: ApiErrorBody };

export interface StreamListener {
  onEvent(event: StreamEvent, id: number): void;
  /** The connection was lost (true) or is back (false). */
  onReconnecting(isLost: boolean): void;
}

const NAMES = new Set(["open", "status", "delta", "trace", "done", "error"]);
const RETRY_DELAYS_MS = [200, 500, 1000, 2000, 3000, 4000];

export class AnswerStream {
  readonly #listener: StreamListener;
  readonly #delays: readonly number[];
  readonly #abort = new AbortController();
  #requestId: string | null = null;
  #lastEventId = -1;
  #isStopped = false;

  constructor(listener: StreamListener, delays: readonly number[] = RETRY_DELAYS_MS) {
    this.#listener = listener;
    this.#delays = delays;
  }

  /** Runs to the end of the answer; never rejects. */
  async run(source: StreamSource): Promise<Ending> {
    let ending: Ending;
    try {
      ending = await this.#follow(await this.#open(source));
    } catch (error) {
      ending = this.#failure(error);
    }
    return this.#isStopped ? { kind: "stopped" } : ending;
  }

  /** Stops the engine's work on the answer at once. Nothing is heard of it afterwards. May be called again. */
  stop(): void {
    if (this.#isStopped) return;
    this.#isStopped = true;
    // Without an id yet, the answer is stopped as soon as the server has told it.
    if (this.#requestId !== null) this.#cancel(this.#requestId);
  }

  #cancel(requestId: string): void {
    if (this.#abort.signal.aborted) return;
    request(`ui/stream/${encodeURIComponent(requestId)}`, { method: "DELETE", keepalive: true }).catch(() => undefined);
    this.#abort.abort();
  }

  async #open(source: StreamSource): Promise<Response> {
    if ("body" in source) {
      return request("ui/stream", {
        method: "POST",
        headers: { "Content-Type": "application/json" },
        body: JSON.stringify(source.body),
        signal: this.#abort.signal,
      });
    }
    this.#requestId = source.requestId;
    this.#lastEventId = source.lastEventId;
    return this.#attach(source.requestId);
  }

  #attach(requestId: string): Promise<Response> {
    return request(`ui/stream/${encodeURIComponent(requestId)}`, {
      headers: { "Last-Event-ID": String(this.#lastEventId) },
      signal: this.#abort.signal,
    });
  }

  async #follow(first: Response): Promise<Ending> {
    let response = first;
    for (;;) {
      const ending = await this.#consume(response);
      if (ending !== null) return ending;
      if (this.#requestId === null) return { kind: "lost" };
      this.#listener.onReconnecting(true);
      response = await this.#reattach(this.#requestId);
      this.#listener.onReconnecting(false);
    }
  }

  /** Hands on the events of one connection; null when it broke before the answer's end. */
  async #consume(response: Response): Promise<Ending | null> {
    if (response.body === null) return null;
    let ending: Ending | null = null;
    try {
      for await (const { id, name, data } of readEvents(response.body)) {
        // What the server says behind the last event is its end of the connection: read it, or it counts as broken off.
        if (ending !== null) continue;
        if (!NAMES.has(name) || (id !== null && id <= this.#lastEventId)) continue;
        const event = parse(name, data);
        if (event === null) continue;
        this.#lastEventId = id ?? this.#lastEventId;
        if (event.type === "open") this.#requestId = event.data.request_id;
        if (this.#isStopped) {
          if (this.#requestId !== null) this.#cancel(this.#requestId);
          return { kind: "stopped" };
        }
        this.#listener.onEvent(event, this.#lastEventId);
        ending = endingOf(event);
      }
    } catch (error) {
      if (this.#abort.signal.aborted) throw error;
    }
    return ending;
  }

  async #reattach(requestId: string): Promise<Response> {
    for (const delay of this.#delays) {
      await new Promise((resolve) => setTimeout(resolve, delay));
      if (this.#isStopped) throw new Error("stopped");
      try {
        return await this.#attach(requestId);
      } catch (error) {
        if (!isPassing(error)) throw error;
      }
    }
    throw new UnreachableError();
  }

  #failure(error: unknown): Ending {
    if (error instanceof UnreachableError) return { kind: "unreachable" };
    if (error instanceof ApiError) {
      const isGone = error.status === 404 && this.#requestId !== null;
      return isGone ? { kind: "lost" } : { kind: "failed", error: error.body };
    }
    return { kind: "failed", error: { message: String(error) } };
  }
}

/** The ending that an event means, or null. */
function endingOf(event: StreamEvent): Ending | null {
  if (event.type === "done") return { kind: "done" };
  return event.type === "error" ? { kind: "failed", error: event.data.error } : null;
}

/** Whether trying again may help: nobody answered, or a server that is starting or draining. */
function isPassing(error: unknown): boolean {
  return error instanceof UnreachableError || (error instanceof ApiError && error.status === 503);
}

function parse(name: string, data: string): StreamEvent | null {
  try {
    return { type: name, data: JSON.parse(data) } as StreamEvent;
  } catch {
    return null;
  }
}
