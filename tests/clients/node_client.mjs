// What the openai package of npm and the Vercel AI SDK read from a server.
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { jsonSchema, streamText, tool } from "ai";
import OpenAI from "openai";

const [textUrl, callUrl, busyUrl, deadUrl] = process.argv.slice(2).map((url) => `${url}/v1`);
const messages = [{ role: "user", content: "Hi" }];
const weather = { type: "function", function: { name: "weather", parameters: { type: "object", properties: {} } } };
const client = (url, maxRetries = 0) => new OpenAI({ baseURL: url, apiKey: "none", maxRetries });
const schema = {
  type: "object",
  properties: { city: { const: "Paris" }, days: { const: 2 } },
  required: ["city", "days"],
  additionalProperties: false,
};

async function joined(stream, pick) {
  let text = "";
  for await (const item of stream) text += pick(item) ?? "";
  return text;
}

async function withSdk(model, tools) {
  const result = streamText({ model: model("fake"), messages, tools });
  const text = await joined(result.textStream, (piece) => piece);
  return { text, calls: (await result.toolCalls).map((call) => [call.toolName, call.input]) };
}

async function statusAfterRetries(url) {
  const asked = client(url, 2).chat.completions.create({ model: "fake", messages });
  return asked.then(() => 200).catch((error) => error.status);
}

const chat = client(textUrl).chat.completions;
const called = await client(callUrl)
  .chat.completions.stream({ model: "fake", messages, tools: [weather] })
  .finalChatCompletion();
const sdkTools = {
  weather: tool({ inputSchema: jsonSchema({ type: "object", properties: { city: { type: "string" }, days: { type: "number" } } }) }),
};
const compatible = (url) => createOpenAICompatible({ name: "chatserve", baseURL: url });
const responses = (url) => createOpenAI({ baseURL: url, apiKey: "none" });
const found = {
  text: (await chat.create({ model: "fake", messages })).choices[0].message.content,
  streamed: await joined(await chat.create({ model: "fake", messages, stream: true }), (c) => c.choices[0].delta.content),
  calls: called.choices[0].message.tool_calls.map((call) => [call.function.name, JSON.parse(call.function.arguments)]),
  choices: (await chat.create({ model: "fake", messages, n: 3 })).choices.length,
  logprobs: Buffer.from(
    (await chat.create({ model: "fake", messages, logprobs: true })).choices[0].logprobs.content.flatMap((c) => c.bytes),
  ).toString(),
  parsed: JSON.parse(
    (await chat.create({ model: "fake", messages, response_format: { type: "json_schema", json_schema: { name: "weather", schema } } }))
      .choices[0].message.content,
  ),
  busy: await statusAfterRetries(busyUrl),
  dead: await statusAfterRetries(deadUrl),
  responded: (await client(textUrl).responses.stream({ model: "fake", input: "Hi" }).finalResponse()).output_text,
  sdk: (await withSdk(compatible(textUrl))).text,
  sdk_calls: (await withSdk(compatible(callUrl), sdkTools)).calls,
  sdk_responded: (await withSdk(responses(textUrl))).text,
  sdk_responded_calls: (await withSdk(responses(callUrl), sdkTools)).calls,
  refused: await chat.create({ model: "fake", messages, temperature: -1 }).catch((error) => error.param),
};
console.log(JSON.stringify(found));
