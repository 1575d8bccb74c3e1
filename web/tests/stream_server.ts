/** A scripted `/ui/stream` for tests: what `fetch` answers, and what it was asked. */

import { vi } from "vitest";

export interface Asked {
  method: string;
  path: string;
  lastEventId: string | null;
  body: Record<string, unknown> | null;
}

/** A connection whose frames the test sends. */
export class Connection {
  readonly response: Response;
  #controller!: ReadableStreamDefaultController<Uint8Array>;

  constructor() {
    const body = new ReadableStream<Uint8Array>({
      start: (controller) => {
        this.#controller = controller;
      },
    });
    this.response = new Response(body, { headers: { "Content-Type": "text/event-stream" } });
  }

  send(id: number, name: string, data: unknown): void {
    this.sendRaw(`event: ${name}\nid: ${id}\ndata: ${JSON.stringify(data)}\n\n`);
  }

  sendRaw(text: string): void {
    this.#controller.enqueue(new TextEncoder().encode(text));
  }

  close(): void {
    this.#controller.close();
  }

  cut(): void {
    this.#controller.error(new TypeError("network error"));
  }
}

type Answer = Response | Connection | (() => never);

/** Replaces `fetch`; each request takes the next answer. */
export function scriptedFetch(answers: Answer[]): Asked[] {
  const asked: Asked[] = [];
  vi.stubGlobal("fetch", async (address: string, init: RequestInit = {}) => {
    asked.push({
      method: init.method ?? "GET",
      path: new URL(address).pathname,
      lastEventId: new Headers(init.headers).get("Last-Event-ID"),
      body: typeof init.body === "string" ? (JSON.parse(init.body) as Record<string, unknown>) : null,
    });
    if (init.method === "DELETE") return new Response(null, { status: 204 });
    const answer = answers.shift();
    if (answer === undefined) throw new TypeError("Failed to fetch");
    if (typeof answer === "function") return answer();
    return answer instanceof Connection ? answer.response : answer;
  });
  return asked;
}

export const OPEN = { request_id: "ui-1", model: "m", decoder: "sampling", n: 1, prompt_tokens: 5, max_model_len: 100 };

export const DONE = {
  usage: { prompt_tokens: 5, completion_tokens: 2, cached_tokens: 0 },
  timings: { queue_s: 0, prefill_s: 0.1, decode_s: 0.5, ttft_s: 0.1 },
};

export function refusal(status: number, message: string): Response {
  return Response.json({ error: { message, type: "invalid_request_error", param: null, code: null } }, { status });
}
