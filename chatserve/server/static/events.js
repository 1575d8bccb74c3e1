// Server-sent events from a fetch body: one text decoder and one line buffer across all reads, so that a chunk border
// inside an event or inside a character changes nothing.

export async function* dataOf(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      for (const line of lines) {
        if (line.startsWith("data: ")) yield line.slice(6).replace(/\r$/, "");
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

export class ServerError extends Error {}

// Streams one chat answer and yields its pieces of text. Throws ServerError with the server's own words.
export async function* streamChat(request, signal) {
  const response = await fetch("v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ ...request, stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  if (!response.ok) throw new ServerError(await errorText(response));
  let isComplete = false;
  for await (const data of dataOf(response.body)) {
    if (data === "[DONE]") {
      isComplete = true;
      break;
    }
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ServerError(chunk.error.message);
    const choice = chunk.choices[0];
    yield { text: choice?.delta?.content ?? "", finishReason: choice?.finish_reason, usage: chunk.usage };
  }
  if (!isComplete) throw new ServerError("The connection to the server was lost.");
}

async function errorText(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return `The server answered ${response.status}.`;
  }
}
