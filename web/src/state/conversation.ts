/**
 * A conversation: a tree of messages, and which child is shown below each. All functions are pure; conversations are
 * never changed in place.
 */

import type { ApiErrorBody, Role, Timings, Usage } from "../api/types";
import type { ChatSettings } from "./settings";

/** The parent of the first messages. */
export const ROOT = "";

/** How an answer ended: the server's reason, or one of ours. Null while it is being written. */
export type FinishReason = "stop" | "length" | "stopped" | "interrupted" | "error" | (string & {});

export interface Message {
  id: string;
  parent: string;
  role: Exclude<Role, "system">;
  content: string;
  /** Milliseconds since 1970; also the order among siblings, with `id`. */
  created: number;
  finish?: FinishReason | null;
  error?: ApiErrorBody;
  decoder?: string;
  model?: string;
  /** Of the whole request; `numTokens` are this answer's own. */
  usage?: Usage;
  numTokens?: number;
  timings?: Timings;
  /** Whether tokens, or a trace of the search, are kept beside the text. */
  hasTokens?: boolean;
  hasTrace?: boolean;
  /** Answers of one request share it. */
  group?: string;
  choice?: number;
  /** Until the answer has ended: its id at the server, and the last event that is stored. See `StreamSource`. */
  stream?: { id: string; lastEventId: number };
}

export interface Conversation {
  id: string;
  title: string;
  /** Whether the title was given by hand, so that the first message does not set it. */
  isTitled?: boolean;
  created: number;
  updated: number;
  settings: ChatSettings;
  messages: Record<string, Message>;
  /** The shown child of a message (or of ROOT); without an entry, the last one. */
  selected: Record<string, string>;
  /** Messages whose answers are shown side by side until one is chosen: parent to group. */
  comparing: Record<string, string>;
}

export function emptyConversation(settings: ChatSettings, now = Date.now()): Conversation {
  return {
    id: newId(),
    title: "New chat",
    created: now,
    updated: now,
    settings,
    messages: {},
    selected: {},
    comparing: {},
  };
}

/** Random, for pages that are not a secure context too, where `crypto.randomUUID` is missing; impossible to guess. */
export function newId(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

const childrenCache = new WeakMap<Record<string, Message>, Map<string, Message[]>>();

/** The answers to (or first messages under) a message, oldest first. */
export function childrenOf(conversation: Conversation, parent: string): readonly Message[] {
  let index = childrenCache.get(conversation.messages);
  if (index === undefined) {
    index = indexChildren(conversation.messages);
    childrenCache.set(conversation.messages, index);
  }
  return index.get(parent) ?? [];
}

function indexChildren(messages: Record<string, Message>): Map<string, Message[]> {
  const index = new Map<string, Message[]>();
  for (const message of Object.values(messages)) {
    const siblings = index.get(message.parent);
    if (siblings) siblings.push(message);
    else index.set(message.parent, [message]);
  }
  for (const siblings of index.values()) {
    siblings.sort((a, b) => a.created - b.created || (a.choice ?? 0) - (b.choice ?? 0) || (a.id < b.id ? -1 : 1));
  }
  return index;
}

/** The shown child of a message, if it has any. */
export function selectedChild(conversation: Conversation, parent: string): Message | undefined {
  const siblings = childrenOf(conversation, parent);
  const wanted = conversation.selected[parent];
  return siblings.find((message) => message.id === wanted) ?? siblings.at(-1);
}

/** The shown messages from the first to the last. */
export function shownPath(conversation: Conversation): Message[] {
  const path: Message[] = [];
  const seen = new Set<string>();
  let next = selectedChild(conversation, ROOT);
  while (next !== undefined && !seen.has(next.id)) {
    seen.add(next.id);
    path.push(next);
    next = selectedChild(conversation, next.id);
  }
  return path;
}

/** The messages from the first to this one, whatever is shown. */
export function pathTo(conversation: Conversation, id: string): Message[] {
  const path: Message[] = [];
  const seen = new Set<string>();
  let message = conversation.messages[id];
  while (message !== undefined && !seen.has(message.id)) {
    seen.add(message.id);
    path.unshift(message);
    message = conversation.messages[message.parent];
  }
  return path;
}

/** Adds messages, each shown in place of its siblings. */
export function withMessages(conversation: Conversation, added: readonly Message[], now = Date.now()): Conversation {
  const messages = { ...conversation.messages };
  const selected = { ...conversation.selected };
  for (const message of [...added].reverse()) {
    messages[message.id] = message;
    selected[message.parent] = message.id;
  }
  return { ...conversation, messages, selected, updated: now };
}

/** Replaces messages that are there already; what is selected stays. */
export function withReplaced(conversation: Conversation, changed: readonly Message[]): Conversation {
  const messages = { ...conversation.messages };
  for (const message of changed) if (message.id in messages) messages[message.id] = message;
  return { ...conversation, messages };
}

/** Shows this message in place of its siblings. */
export function withSelected(conversation: Conversation, id: string): Conversation {
  const message = conversation.messages[id];
  if (message === undefined) return conversation;
  return { ...conversation, selected: { ...conversation.selected, [message.parent]: id } };
}

/** The sibling `step` places away, or undefined at either end. */
export function siblingAt(conversation: Conversation, message: Message, step: number): Message | undefined {
  const siblings = childrenOf(conversation, message.parent);
  return siblings[siblings.findIndex((other) => other.id === message.id) + step];
}

/** Shows all answers of a group side by side (or, with null, one of them again). */
export function withComparing(conversation: Conversation, parent: string, group: string | null): Conversation {
  const comparing = { ...conversation.comparing };
  if (group === null) delete comparing[parent];
  else comparing[parent] = group;
  return { ...conversation, comparing };
}

/** The answers that are compared below a message, in the order of their choices; empty when none are. */
export function compared(conversation: Conversation, parent: string): readonly Message[] {
  const group = conversation.comparing[parent];
  return group === undefined ? [] : groupOf(conversation, parent, group);
}

export function groupOf(conversation: Conversation, parent: string, group: string): readonly Message[] {
  return childrenOf(conversation, parent).filter((message) => message.group === group);
}

/** Removes a message with all that follows it. */
export function withoutBranch(conversation: Conversation, id: string): { rest: Conversation; removed: string[] } {
  const removed: string[] = [];
  const waiting = [id];
  for (let next = waiting.pop(); next !== undefined; next = waiting.pop()) {
    removed.push(next);
    waiting.push(...childrenOf(conversation, next).map((child) => child.id));
  }
  const messages = { ...conversation.messages };
  const selected = { ...conversation.selected };
  const comparing = { ...conversation.comparing };
  const parent = messages[id]?.parent;
  for (const gone of removed) {
    delete messages[gone];
    delete selected[gone];
    delete comparing[gone];
  }
  if (parent !== undefined && selected[parent] === id) delete selected[parent];
  return { rest: { ...conversation, messages, selected, comparing }, removed };
}

/** A title from the first line of a message. */
export function titleFrom(content: string): string {
  const line = content.trim().split("\n", 1)[0]?.trim() ?? "";
  return line.length > 60 ? `${line.slice(0, 59).trimEnd()}…` : line || "New chat";
}
