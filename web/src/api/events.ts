/** Server-sent events out of a response body: any cut between chunks, any line ending. */

import { createParser } from "eventsource-parser";

export interface ServerEvent {
  /** The number after `id:`, or null. */
  id: number | null;
  name: string;
  data: string;
}

/** Yields complete events; what is unfinished when the body ends is dropped, as the standard says. */
export async function* readEvents(body: ReadableStream<Uint8Array>): AsyncGenerator<ServerEvent> {
  const events: ServerEvent[] = [];
  const parser = createParser({
    onEvent: ({ id, event, data }) => {
      events.push({ id: eventId(id), name: event ?? "message", data });
    },
  });
  const decoder = new TextDecoder();
  const reader = body.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      parser.feed(decoder.decode(value, { stream: true }));
      yield* events.splice(0);
    }
  } finally {
    reader.cancel().catch(() => undefined);
  }
}

function eventId(id: string | undefined): number | null {
  return id !== undefined && /^\d+$/.test(id) ? Number(id) : null;
}
