/** Some tokens in a row. */

import { Component, type ComponentChild } from "preact";
import type { Token } from "../api/types";
import { percent, visibleToken } from "../lib/format";
import { type ShownToken, shadeOf } from "../lib/token_text";

interface TokenRunProps {
  tokens: readonly ShownToken[];
  length: number;
  /** Index of the first token in the answer. */
  from: number;
  /** Positions in the run of the token that Tab leads to, and of the one whose alternatives are open; others: outside. */
  active: number;
  open: number;
}

/** Drawn again only when it grew or one of its tokens was marked: the list itself is made anew each time. */
export class TokenRun extends Component<TokenRunProps> {
  override shouldComponentUpdate(next: TokenRunProps): boolean {
    const marks = ({ active, open, length }: TokenRunProps) => [inside(active, length), inside(open, length)].join();
    return next.length !== this.props.length || marks(next) !== marks(this.props);
  }

  override render({ tokens, from, active, open }: TokenRunProps): ComponentChild {
    return (
      <span class="token-run">
        {tokens.map((shown, index) => (
          <span
            // Tokens are only ever added at the end.
            key={index}
            class={`token ${classOf(shown)}`}
            role="button"
            tabIndex={index === active ? 0 : -1}
            aria-haspopup="dialog"
            aria-expanded={index === open}
            aria-label={labelOf(shown)}
            data-index={from + index}
            data-testid="token"
          >
            {shown.text}
          </span>
        ))}
      </span>
    );
  }
}

function inside(position: number, length: number): number {
  return position >= 0 && position < length ? position : -1;
}

function classOf({ token, text, isSpecial }: ShownToken): string {
  if (isSpecial) return "special";
  const classes = [
    token.logprob === null ? "" : `shade-${shadeOf(token.logprob)}`,
    isForced(token) ? "forced" : "",
    text === "" ? "partial" : "",
  ];
  return classes.join(" ");
}

function labelOf({ token, text }: ShownToken): string {
  const name = text.trim() === "" ? visibleToken(text) : text;
  const chance = token.logprob === null ? "" : `, ${percent(token.logprob)}`;
  return `${name}${chance}${isForced(token) ? ", forced" : ""}`;
}

function isForced(token: Token): boolean {
  return token.forced === true || token.logprob === null;
}
