/** Markdown to tokens, by marked. There is no HTML: a tag in the source is text like any other. */

import { Marked, type MarkedToken, type Token, type Tokens } from "marked";

const marked = new Marked({
  gfm: true,
  breaks: true,
  tokenizer: {
    html: () => undefined,
    tag: () => undefined,
  },
});

export type { MarkedToken, Tokens };

/** Definitions (`[name]: address`) that earlier parts of a text gave. */
export type LinkDefinitions = Record<string, { href?: string | null; title?: string | null }>;

/** Block tokens of a text; `definitions` is read, and what the text defines is added to it. */
export function lex(source: string, definitions: LinkDefinitions = {}): MarkedToken[] {
  const lexer = new marked.Lexer(marked.defaults);
  Object.assign(lexer.tokens.links, definitions);
  const tokens = lexer.lex(source);
  Object.assign(definitions, tokens.links);
  return [...tokens] as MarkedToken[];
}

/** The tokens inside a token, if it has any. */
export function inner(token: { tokens?: Token[] | undefined }): MarkedToken[] {
  return (token.tokens ?? []) as MarkedToken[];
}

const SAFE_ADDRESS = /^(?:https?:\/\/|mailto:)/i;

/** The address when a click on it can do no harm; else null. Relative addresses would lead into this page's server. */
export function safeAddress(href: string | null | undefined): string | null {
  const address = Array.from((href ?? "").trim())
    .filter((character) => character > " ")
    .join("");
  return SAFE_ADDRESS.test(address) ? address : null;
}

const ENTITIES: Record<string, string> = {
  amp: "&",
  lt: "<",
  gt: ">",
  quot: '"',
  apos: "'",
  nbsp: "\u00a0",
  copy: "©",
  hellip: "…",
  mdash: "—",
  ndash: "–",
  times: "×",
  rarr: "→",
  larr: "←",
};

/** Text with character references (`&amp;`, `&#8594;`) resolved; unknown ones stay as they are. */
export function unescapeEntities(text: string): string {
  return text.replace(/&(#x[0-9a-f]{1,6}|#\d{1,7}|[a-z]+);/gi, (whole, name: string) => {
    if (!name.startsWith("#")) return ENTITIES[name] ?? whole;
    const code = /^#x/i.test(name) ? Number.parseInt(name.slice(2), 16) : Number(name.slice(1));
    return code > 0 && code <= 0x10ffff && !(code >= 0xd800 && code <= 0xdfff) ? String.fromCodePoint(code) : "\ufffd";
  });
}
