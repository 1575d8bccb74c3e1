/** Tokens as text. A character may be spread over several tokens: it is shown with the one that completes it. */

import type { Token } from "../api/types";

export interface ShownToken {
  token: Token;
  /** What to show; empty for a token that only begins a character. */
  text: string;
  /** Whether the token has no text (an end token): then its name is shown. */
  isSpecial: boolean;
  /** The text up to the end of the token before, or null inside a character: nothing can be put there. */
  before: string | null;
}

/** `TokenText`: a growing list of tokens as it is shown. */
export class TokenText {
  readonly shown: ShownToken[] = [];
  readonly #decoder = new TextDecoder();
  #text = "";
  #isInside = false;

  constructor(given = "") {
    this.#text = given;
  }

  /** Takes what is new in a growing list. */
  read(tokens: readonly Token[]): void {
    for (let index = this.shown.length; index < tokens.length; index++) {
      const token = tokens[index];
      if (token) this.#add(token);
    }
  }

  #add(token: Token): void {
    const before = this.#isInside ? null : this.#text;
    const bytes = Uint8Array.from(token.bytes);
    const text = this.#decoder.decode(bytes, { stream: true });
    this.#text += text;
    this.#isInside = bytes.length > 0 && endsInside(bytes, this.#isInside && text === "");
    const isSpecial = bytes.length === 0;
    this.shown.push({ token, text: isSpecial ? token.text : text, isSpecial, before });
  }
}

/** The text of a whole list. */
export function textOf(tokens: readonly Token[]): string {
  return new TextDecoder().decode(Uint8Array.from(tokens.flatMap(({ bytes }) => bytes)));
}

/** Whether bytes end inside a UTF-8 character; `wasInside`: they began in one and have not left it. */
function endsInside(bytes: Uint8Array, wasInside: boolean): boolean {
  for (let back = 1; back <= 4; back++) {
    const byte = bytes[bytes.length - back];
    if (byte === undefined) return wasInside;
    if (byte < 0x80) return false;
    if (byte >= 0xc0) return back < (byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : 2);
  }
  return false;
}

/** The shade of a probability, from 0 (sure) to 5 (a surprise). */
export function shadeOf(logprob: number): number {
  const probability = Math.exp(logprob);
  const limits = [0.9, 0.7, 0.45, 0.2, 0.07];
  const shade = limits.findIndex((limit) => probability >= limit);
  return shade < 0 ? limits.length : shade;
}
