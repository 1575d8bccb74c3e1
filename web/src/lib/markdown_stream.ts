/** `MarkdownStream`: markdown that grows. What can no longer change is lexed once and frozen. */

import { closeHalfOpen } from "./half_open";
import { type LinkDefinitions, lex, type MarkedToken, type Tokens } from "./markdown";

/** A piece of the text as it is drawn. `isPart`: the next block goes on in the same paragraph. */
export interface Block {
  key: number;
  token: MarkedToken;
  isPart?: boolean;
}

const LONG_PARAGRAPH = 4000;
const MANY_ITEMS = 40;

export class MarkdownStream {
  readonly #frozen: Block[] = [];
  readonly #definitions: LinkDefinitions = {};
  #tail = "";
  #open: Block[] = [];
  #isDirty = false;

  append(text: string): void {
    this.#tail += text.replaceAll("\r", "");
    this.#isDirty = true;
  }

  /** Length of the part that is lexed again when more comes. */
  get tailLength(): number {
    return this.#tail.length;
  }

  /** Blocks that will not change any more. The array itself grows. */
  get frozen(): readonly Block[] {
    this.#update();
    return this.#frozen;
  }

  /** The blocks behind them, with half-open syntax closed. */
  get open(): readonly Block[] {
    this.#update();
    return this.#open;
  }

  /** All blocks of a text that is complete. */
  static blocksOf(text: string): Block[] {
    return lex(text.replaceAll("\r", ""))
      .filter((token) => token.type !== "space")
      .map((token, key) => ({ key, token }));
  }

  #update(): void {
    if (!this.#isDirty) return;
    this.#isDirty = false;
    const tokens = this.#freeze(lex(closeHalfOpen(this.#tail), this.#definitions));
    const drawn = tokens.filter((token) => token.type !== "space");
    this.#open = drawn.map((token, index) => ({ key: this.#frozen.length + index, token }));
  }

  /** Freezes all but the last two blocks, and of a very long last one what is far from its end. Returns the rest. */
  #freeze(tokens: MarkedToken[]): MarkedToken[] {
    const drawn = tokens.flatMap((token, index) => (token.type === "space" ? [] : [index]));
    const keepFrom = drawn.at(-2) ?? 0;
    for (const token of tokens.slice(0, keepFrom)) {
      if (token.type !== "space") this.#add({ token });
      this.#tail = this.#tail.slice(token.raw.length);
    }
    const rest = tokens.slice(keepFrom);
    if (drawn.length === 1 && rest[0]) return this.#shorten(rest[0], rest);
    return rest;
  }

  #shorten(token: MarkedToken, rest: MarkedToken[]): MarkedToken[] {
    if (token.type === "list" && token.items.length > MANY_ITEMS) return this.#splitList(token);
    if (token.type === "paragraph" && token.raw.length > LONG_PARAGRAPH) return this.#splitParagraph(token.raw, rest);
    return rest;
  }

  #splitList(list: Tokens.List): MarkedToken[] {
    const items = list.items.slice(0, -2);
    const raw = items.map((item) => item.raw).join("");
    if (!this.#tail.startsWith(raw)) return [list];
    this.#add({ token: { ...list, items, raw } });
    this.#tail = this.#tail.slice(raw.length);
    return lex(closeHalfOpen(this.#tail), this.#definitions);
  }

  /** Cuts in front of a word, where the rest cannot be taken for a list or a heading. */
  #splitParagraph(raw: string, rest: MarkedToken[]): MarkedToken[] {
    const cut = /^[\s\S]*\s(?=\p{L}{2})/u.exec(raw.slice(0, -500));
    const head = cut?.[0];
    if (!head || !this.#tail.startsWith(head)) return rest;
    const [token] = lex(head, this.#definitions);
    if (token?.type !== "paragraph") return rest;
    this.#add({ token, isPart: true });
    this.#tail = this.#tail.slice(head.length);
    return lex(closeHalfOpen(this.#tail), this.#definitions);
  }

  #add(block: Omit<Block, "key">): void {
    this.#frozen.push({ ...block, key: this.#frozen.length });
  }
}
