// What the openai package of npm and the Vercel AI SDK read from a server.
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { jsonSchema, streamText, tool } from "ai";
import OpenAI from "openai";

const [textUrl, callUrl] = process.argv.slice(2).map((url) => `${url}/v1`);
const messages = [{ role: "user", content: "Hi" }];
const weather = { type: "function", function: { name: "weather", parameters: { type: "object", properties: {} } } };
const client = (url) => new OpenAI({ baseURL: url, apiKey: "none", maxRetries: 0 });

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
  responded: (await client(textUrl).responses.stream({ model: "fake", input: "Hi" }).finalResponse()).output_text,
  sdk: (await withSdk(compatible(textUrl))).text,
  sdk_calls: (await withSdk(compatible(callUrl), sdkTools)).calls,
  sdk_responded: (await withSdk(responses(textUrl))).text,
  sdk_responded_calls: (await withSdk(responses(callUrl), sdkTools)).calls,
  refused: await chat.create({ model: "fake", messages, temperature: -1 }).catch((error) => error.param),
};
console.log(JSON.stringify(found));
