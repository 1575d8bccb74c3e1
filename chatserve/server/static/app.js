// The chat page. All text is set with textContent: nothing that a model or a server says is ever parsed as HTML.

import { streamChat } from "./events.js";
import { ParameterForm } from "./parameters.js";

const byId = (id) => document.getElementById(id);
const [transcript, message, send, stop, status] = ["transcript", "message", "send", "stop", "status"].map(byId);
const [decoder, temperature, maxTokens] = ["decoder", "temperature", "max-tokens"].map(byId);
const parameters = new ParameterForm(byId("decoder-params"));
const decoders = new Map();

let conversation = [];
let running = null; // the AbortController of the answer that is streaming

function addBubble(role, text = "") {
  byId("welcome")?.remove();
  const bubble = document.createElement("article");
  bubble.className = role;
  bubble.textContent = text;
  transcript.append(bubble);
  return bubble;
}

// Follows the answer only while the reader is at the end.
function keepingPlace(change) {
  const isAtEnd = transcript.scrollHeight - transcript.scrollTop - transcript.clientHeight < 100;
  change();
  if (isAtEnd) transcript.scrollTop = transcript.scrollHeight;
}

function requestBody() {
  const body = { messages: conversation };
  if (temperature.value !== "") body.temperature = Number(temperature.value);
  if (maxTokens.value !== "") body.max_tokens = Number(maxTokens.value);
  if (decoder.value) {
    body.decoder = decoder.value;
    body.decoder_params = parameters.values();
  }
  return body;
}

async function answer() {
  const controller = new AbortController();
  setRunning(controller);
  const bubble = addBubble("assistant pending");
  transcript.scrollTop = transcript.scrollHeight;
  let text = "";
  try {
    text = await readInto(bubble, controller, (piece) => (text += piece));
    remember(bubble, text);
  } catch (error) {
    if (running === controller || controller.signal.aborted) remember(bubble, text);
    if (!controller.signal.aborted) showError(error);
  } finally {
    if (running === controller) setRunning(null);
  }
}

async function readInto(bubble, controller, add) {
  const started = performance.now();
  let text = "";
  for await (const news of streamChat(requestBody(), controller.signal)) {
    if (controller.signal.aborted) break;
    text = add(news.text);
    if (news.text) keepingPlace(() => (bubble.textContent = text));
    if (news.usage) showUsage(news.usage, performance.now() - started);
  }
  return text;
}

// A stopped or broken answer keeps the text it had, on the page and in the next request's history.
function remember(bubble, text) {
  bubble.classList.remove("pending");
  if (!bubble.isConnected) return;
  if (text) conversation.push({ role: "assistant", content: text });
  else bubble.remove();
}

function showUsage(usage, milliseconds) {
  const { prompt_tokens: prompt, completion_tokens: completion } = usage;
  const cached = usage.prompt_tokens_details?.cached_tokens ?? 0;
  const rate = (completion / (milliseconds / 1000)).toFixed(1);
  status.textContent = `${prompt} prompt tokens (${cached} cached), ${completion} new, ${rate} tokens/s`;
}

function showError(error) {
  const bubble = addBubble("error", error.message || String(error));
  const retry = document.createElement("button");
  retry.type = "button";
  retry.textContent = "Retry";
  retry.addEventListener("click", () => {
    if (running) return;
    bubble.remove();
    dropPartialAnswer();
    answer();
  });
  bubble.append(" ", retry);
  transcript.scrollTop = transcript.scrollHeight;
}

function dropPartialAnswer() {
  if (conversation.at(-1)?.role !== "assistant") return;
  conversation.pop();
  [...transcript.querySelectorAll("article.assistant")].at(-1)?.remove();
}

function setRunning(controller) {
  running = controller;
  send.hidden = controller !== null;
  stop.hidden = controller === null;
  if (controller) status.textContent = "Answering…";
  else if (status.textContent === "Answering…") status.textContent = "";
}

function submit() {
  const text = message.value;
  if (running || !text.trim()) return;
  for (const old of transcript.querySelectorAll("article.error")) old.remove();
  conversation.push({ role: "user", content: text });
  addBubble("user", text);
  message.value = "";
  fitMessage();
  answer();
}

// Closing the connection is what cancels the request on the server.
function stopAnswer() {
  running?.abort();
  setRunning(null);
  message.focus();
}

function newChat() {
  stopAnswer();
  conversation = [];
  transcript.replaceChildren();
  status.textContent = "";
}

function fitMessage() {
  message.style.height = "auto";
  message.style.height = `${message.scrollHeight + 2}px`; // with the borders
}

function showDecoder() {
  const chosen = decoders.get(decoder.value);
  byId("decoder-about").textContent = chosen?.description ?? "";
  byId("settings-summary").textContent = decoder.value ? `(${decoder.value})` : "";
  parameters.show(chosen?.parameters ?? {});
}

async function loadLists() {
  try {
    const [models, list] = await Promise.all(["v1/models", "v1/decoders"].map(async (path) => (await fetch(path)).json()));
    byId("model").textContent = models.data[0].id;
    for (const entry of list.data) {
      decoders.set(entry.id, entry);
      const option = new Option(entry.name, entry.id);
      option.disabled = entry.state !== "ready";
      option.title = entry.reason ?? "";
      decoder.append(option);
    }
  } catch {
    status.textContent = "The server cannot be reached.";
  }
}

byId("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  submit();
});
message.addEventListener("keydown", (event) => {
  const isComposing = event.isComposing || event.keyCode === 229; // an input method's Enter is not ours
  if (event.key !== "Enter" || event.shiftKey || isComposing) return;
  event.preventDefault();
  submit();
});
message.addEventListener("input", fitMessage);
stop.addEventListener("click", stopAnswer);
byId("new-chat").addEventListener("click", newChat);
decoder.addEventListener("change", showDecoder);
loadLists();
message.focus();
