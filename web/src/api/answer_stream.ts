/** `AnswerStream`: one answer from `/ui/stream`, over as many connections as it takes. */

import { readEvents } from "./events";
import { ApiError, request, UnreachableError } from "./http";
import type { ApiErrorBody, StreamBody, StreamEvent } from "./types";

/**
 * Where an answer is to be had: by a request to be made (with a body), or from one that runs already, behind the event
 * that was stored last. The page chooses the id, so that it can note it before it asks; it must be impossible to guess.
 */
export interface StreamSource {
  id: string;
  lastEventId: number;
  body?: StreamBody;
}

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
  readonly #source: StreamSource;
  #lastEventId: number;
  /** Whether the server knows the id. */
  #isTaken: boolean;
  #isStopped = false;

  constructor(source: StreamSource, listener: StreamListener, delays: readonly number[] = RETRY_DELAYS_MS) {
    this.#source = source;
    this.#lastEventId = source.lastEventId;
    this.#isTaken = source.body === undefined;
    this.#listener = listener;
    this.#delays = delays;
  }

  /** Runs to the end of the answer; never rejects. */
  async run(): Promise<Ending> {
    let ending: Ending;
    try {
      ending = await this.#follow(await this.#open());
    } catch (error) {
      ending = this.#failure(error);
    }
    return this.#isStopped ? { kind: "stopped" } : ending;
  }

  /** Stops the engine's work on the answer at once. Nothing is heard of it afterwards. May be called again. */
  stop(): void {
    if (this.#isStopped) return;
    this.#isStopped = true;
    // A request that is still on its way could arrive behind the order to stop it.
    if (this.#isTaken) this.#cancel();
  }

  get #path(): string {
    return `ui/stream/${encodeURIComponent(this.#source.id)}`;
  }

  #cancel(): void {
    request(this.#path, { method: "DELETE", keepalive: true }).catch(() => undefined);
    this.#abort.abort();
  }

  async #open(): Promise<Response> {
    const { body } = this.#source;
    if (body === undefined) return this.#attach();
    const response = await request(this.#path, {
      method: "PUT",
      headers: { "Content-Type": "application/json" },
      body: JSON.stringify(body),
      signal: this.#abort.signal,
    });
    this.#isTaken = true;
    if (this.#isStopped) this.#cancel();
    return response;
  }

  #attach(): Promise<Response> {
    return request(this.#path, {
      headers: { "Last-Event-ID": String(this.#lastEventId) },
      signal: this.#abort.signal,
    });
  }

  async #follow(first: Response): Promise<Ending> {
    let response = first;
    for (;;) {
      const ending = await this.#consume(response);
      if (ending !== null) return ending;
      this.#listener.onReconnecting(true);
      response = await this.#reattach();
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
        if (this.#isStopped) return { kind: "stopped" };
        this.#listener.onEvent(event, this.#lastEventId);
        ending = endingOf(event);
      }
    } catch (error) {
      if (this.#abort.signal.aborted) throw error;
    }
    return ending;
  }

  async #reattach(): Promise<Response> {
    for (const delay of this.#delays) {
      await new Promise((resolve) => setTimeout(resolve, delay));
      if (this.#isStopped) throw new Error("stopped");
      try {
        return await this.#attach();
      } catch (error) {
        if (!isPassing(error)) throw error;
      }
    }
    throw new UnreachableError();
  }

  #failure(error: unknown): Ending {
    if (error instanceof UnreachableError) return { kind: "unreachable" };
    if (error instanceof ApiError) {
      const isGone = error.status === 404 && this.#isTaken;
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
