/** `LiveAnswer`: one choice while it is being written; and `DetailLog`, a list that is stored piece by piece. */

import type { DeltaEvent, Token } from "../api/types";
import { MarkdownStream } from "../lib/markdown_stream";
import type { Message } from "./conversation";
import type { DetailKind, DetailPiece } from "./storage";

const PIECE_LENGTH = 256;

/** A list as pieces, all of them. */
export function piecesOf(
  conversation: string,
  message: string,
  kind: DetailKind,
  items: readonly unknown[],
): DetailPiece[] {
  const log = new DetailLog();
  log.push(items);
  return log.unsaved(conversation, message, kind);
}

/** Only ever grows; `unsaved` names the pieces that changed since it was last asked. */
export class DetailLog {
  readonly items: unknown[];
  #numSaved: number;

  constructor(items: readonly unknown[] = []) {
    this.items = [...items];
    this.#numSaved = items.length;
  }

  push(added: readonly unknown[]): void {
    for (const item of added) this.items.push(item);
  }

  unsaved(conversation: string, message: string, kind: DetailKind): DetailPiece[] {
    const pieces: DetailPiece[] = [];
    if (this.#numSaved === this.items.length) return pieces;
    for (let index = Math.floor(this.#numSaved / PIECE_LENGTH); index * PIECE_LENGTH < this.items.length; index++) {
      const items = this.items.slice(index * PIECE_LENGTH, (index + 1) * PIECE_LENGTH);
      pieces.push({ conversation, message, kind, index, items });
    }
    this.#numSaved = this.items.length;
    return pieces;
  }
}

export class LiveAnswer {
  readonly markdown = new MarkdownStream();
  readonly tokens: DetailLog;
  /** Tokens that have come, without those that the answer began with. */
  numTokens = 0;
  #message: Message;
  #text: string;

  constructor(message: Message, tokens: readonly unknown[] = []) {
    this.#message = message;
    this.#text = message.content;
    this.markdown.append(message.content);
    this.tokens = new DetailLog(tokens);
  }

  get id(): string {
    return this.#message.id;
  }

  get text(): string {
    return this.#text;
  }

  get finish(): string | null {
    return this.#message.finish ?? null;
  }

  get tokenList(): readonly Token[] {
    return this.tokens.items as Token[];
  }

  add(delta: DeltaEvent): void {
    // Without token data a piece of text is taken for one token.
    this.numTokens += delta.tokens?.length ?? (delta.text ? 1 : 0);
    if (delta.text) {
      this.#text += delta.text;
      this.markdown.append(delta.text);
    }
    if (delta.tokens) {
      this.tokens.push(delta.tokens);
      if (!this.#message.hasTokens) this.set({ hasTokens: true });
    }
    if (delta.finish_reason) this.set({ finish: delta.finish_reason });
  }

  set(changed: Partial<Message>): void {
    this.#message = { ...this.#message, ...changed };
  }

  /** The message as it is now, to be stored. */
  message(): Message {
    return { ...this.#message, content: this.#text };
  }
}
