/** Export files: whole trees with their settings, tokens and traces, as JSON; and reading them back, distrusting every field. */

import type { ApiErrorBody, Timings, Usage } from "../api/types";
import { isRecord } from "../lib/record";
import { type Conversation, type Message, newId, ROOT, titleFrom } from "./conversation";
import { settingsFrom } from "./settings";
import type { DetailPiece } from "./storage";

const FORMAT = "chatserve-conversations";
const VERSION = 1;

export interface ExportedConversation {
  conversation: Conversation;
  details: DetailPiece[];
}

export interface Exported {
  format: string;
  version: number;
  conversations: ExportedConversation[];
}

/** The file is no export, or one of a newer version. */
export class ImportError extends Error {}

export function exportFile(conversations: readonly ExportedConversation[]): string {
  return `${JSON.stringify({ format: FORMAT, version: VERSION, conversations }, null, 1)}\n`;
}

/** Reads an export. Conversations whose id is taken get a new one. Throws ImportError. */
export function parseExport(text: string, taken: ReadonlySet<string>): Exported {
  let file: unknown;
  try {
    file = JSON.parse(text);
  } catch {
    throw new ImportError("The file is not JSON.");
  }
  if (!isRecord(file) || file.format !== FORMAT) throw new ImportError("The file is no chatserve export.");
  if (file.version !== VERSION)
    throw new ImportError(`The export has version ${String(file.version)}; this page reads 1.`);
  if (!Array.isArray(file.conversations)) throw new ImportError("The export holds no list of conversations.");
  return {
    format: FORMAT,
    version: VERSION,
    conversations: file.conversations.map((entry) => readEntry(entry, taken)),
  };
}

function readEntry(entry: unknown, taken: ReadonlySet<string>): ExportedConversation {
  if (!isRecord(entry) || !isRecord(entry.conversation))
    throw new ImportError("A conversation of the export is damaged.");
  const conversation = readConversation(entry.conversation, taken);
  const details = (Array.isArray(entry.details) ? entry.details : []).flatMap((piece) => {
    const read = readPiece(piece, conversation);
    return read ? [read] : [];
  });
  return { conversation, details };
}

function readConversation(given: Record<string, unknown>, taken: ReadonlySet<string>): Conversation {
  const messages = readMessages(given.messages);
  const id = typeof given.id === "string" && given.id && !taken.has(given.id) ? given.id : newId();
  const created = readNumber(given.created, Date.now());
  const first = Object.values(messages).find((message) => message.parent === ROOT);
  return {
    id,
    title: typeof given.title === "string" && given.title ? given.title.slice(0, 200) : titleFrom(first?.content ?? ""),
    ...(given.isTitled === true ? { isTitled: true } : {}),
    created,
    updated: readNumber(given.updated, created),
    settings: settingsFrom(given.settings),
    messages,
    selected: readStrings(given.selected),
    comparing: readStrings(given.comparing),
  };
}

function readMessages(given: unknown): Record<string, Message> {
  if (!isRecord(given)) throw new ImportError("A conversation of the export has no messages.");
  const messages: Record<string, Message> = {};
  for (const message of Object.values(given)) {
    const read = readMessage(message);
    messages[read.id] = read;
  }
  for (const { parent } of Object.values(messages)) {
    if (parent !== ROOT && !(parent in messages))
      throw new ImportError("A message of the export answers one that is missing.");
  }
  return messages;
}

function readMessage(given: unknown): Message {
  if (!isRecord(given)) throw new ImportError("A message of the export is damaged.");
  const { id, parent, role, content } = given;
  const isText = typeof id === "string" && id !== "" && typeof parent === "string" && typeof content === "string";
  if (!isText || (role !== "user" && role !== "assistant"))
    throw new ImportError("A message of the export is damaged.");
  const message: Message = { id, parent, role, content, created: readNumber(given.created, 0) };
  if (typeof given.finish === "string") message.finish = given.finish;
  else if (role === "assistant") message.finish = "interrupted";
  if (isRecord(given.error) && typeof given.error.message === "string")
    message.error = given.error as unknown as ApiErrorBody;
  for (const field of ["decoder", "model", "group"] as const) {
    if (typeof given[field] === "string") message[field] = given[field];
  }
  for (const field of ["hasTokens", "hasTrace"] as const) {
    if (given[field] === true) message[field] = true;
  }
  for (const field of ["choice", "numTokens"] as const) {
    if (typeof given[field] === "number") message[field] = given[field];
  }
  if (isRecord(given.usage)) message.usage = given.usage as unknown as Usage;
  if (isRecord(given.timings)) message.timings = given.timings as unknown as Timings;
  return message;
}

function readPiece(given: unknown, conversation: Conversation): DetailPiece | null {
  if (!isRecord(given)) return null;
  const { message, kind, index, items } = given;
  const isKnown = typeof message === "string" && message in conversation.messages;
  const isWhole = (kind === "tokens" || kind === "trace") && Number.isInteger(index) && Array.isArray(items);
  return isKnown && isWhole ? { conversation: conversation.id, message, kind, index: index as number, items } : null;
}

function readStrings(given: unknown): Record<string, string> {
  const entries = Object.entries(isRecord(given) ? given : {});
  return Object.fromEntries(entries.filter((entry): entry is [string, string] => typeof entry[1] === "string"));
}

function readNumber(given: unknown, otherwise: number): number {
  return typeof given === "number" && Number.isFinite(given) ? given : otherwise;
}
