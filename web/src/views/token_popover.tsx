/** The alternatives of a token. */

import type { RefObject } from "preact";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import type { TokenAlternative } from "../api/types";
import { percent, visibleToken } from "../lib/format";
import type { ShownToken } from "../lib/token_text";

interface TokenPopoverProps {
  shown: ShownToken;
  index: number;
  /** The element that the tokens are in. */
  box: RefObject<HTMLElement | null>;
  /** Opened by a click or a key: it stays and has the focus. */
  isPinned: boolean;
  canBranch: boolean;
  onBranch: (alternative: TokenAlternative) => void;
  onClose: () => void;
}

const WIDTH = 268;

export function TokenPopover({ shown, index, box, isPinned, canBranch, onBranch, onClose }: TokenPopoverProps) {
  const popover = useRef<HTMLDivElement>(null);
  const { token } = shown;
  useLayoutEffect(() => place(popover.current, box.current, index), [box, index]);
  useEffect(() => {
    if (isPinned) popover.current?.querySelector("button")?.focus();
  }, [isPinned]);
  const onKeyDown = (event: KeyboardEvent) => {
    const step = event.key === "ArrowDown" ? 1 : event.key === "ArrowUp" ? -1 : 0;
    if (step !== 0) moveFocus(popover.current, step);
    else if (event.key === "Escape" || event.key === "Tab") onClose();
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  return (
    <div
      class="token-popover"
      ref={popover}
      role="dialog"
      aria-label={`Alternatives of ${visibleToken(shown.text)}`}
      data-pinned={isPinned}
      data-testid="token-popover"
      onKeyDown={onKeyDown}
      onClick={(event) => event.stopPropagation()}
    >
      <p class="token-head">
        <code>{visibleToken(token.text)}</code>
        <span>{token.logprob === null ? "forced" : percent(token.logprob)}</span>
      </p>
      <p class="subtle">
        id {token.id}
        {token.logprob !== null && ` · logprob ${token.logprob.toFixed(3)}`} · {token.bytes.length} B
      </p>
      {token.top.length > 0 ? (
        <ul>
          {token.top.map((alternative) => (
            <li key={alternative.id}>
              <Alternative
                alternative={alternative}
                isTaken={alternative.id === token.id}
                canBranch={canBranch && canForce(alternative)}
                onBranch={() => onBranch(alternative)}
              />
            </li>
          ))}
        </ul>
      ) : (
        <p class="subtle">No alternatives were asked for.</p>
      )}
      {token.top.length > 0 && <p class="subtle">{hintOf(isPinned, canBranch)}</p>}
    </div>
  );
}

interface AlternativeProps {
  alternative: TokenAlternative;
  isTaken: boolean;
  canBranch: boolean;
  onBranch: () => void;
}

function Alternative({ alternative, isTaken, canBranch, onBranch }: AlternativeProps) {
  return (
    <button
      type="button"
      class="alternative"
      aria-disabled={!canBranch}
      aria-current={isTaken ? "true" : undefined}
      data-testid="alternative"
      onClick={() => canBranch && onBranch()}
    >
      <code>{visibleToken(alternative.text)}</code>
      <meter min={0} max={1} value={Math.exp(alternative.logprob)} aria-hidden="true" />
      <span>{percent(alternative.logprob)}</span>
    </button>
  );
}

function hintOf(isPinned: boolean, canBranch: boolean): string {
  if (!canBranch) return "Branching is not possible here now.";
  return isPinned ? "Choose one to branch from here." : "Click the token to branch from here.";
}

/** A token that is a piece of a character, or stands for no text (an end token), cannot be written into a message. */
function canForce({ text, bytes }: TokenAlternative): boolean {
  return bytes?.length !== 0 && text !== "" && !text.includes("\ufffd");
}

function place(popover: HTMLElement | null, box: HTMLElement | null, index: number): void {
  const token = box?.querySelector<HTMLElement>(`[data-index="${index}"]`);
  if (!popover || !box || !token) return;
  const frame = box.getBoundingClientRect();
  // A token may be broken over two lines: its last piece is where one reads on.
  const pieces = token.getClientRects();
  const piece = pieces[pieces.length - 1] ?? token.getBoundingClientRect();
  const left = Math.max(0, Math.min(piece.left - frame.left, frame.width - WIDTH));
  popover.style.left = `${left}px`;
  const isLow = piece.bottom + popover.offsetHeight + 8 > window.innerHeight - 120;
  const fitsAbove = piece.top - popover.offsetHeight > 70;
  if (isLow && fitsAbove) popover.style.top = `${piece.top - frame.top - popover.offsetHeight}px`;
  else popover.style.top = `${piece.bottom - frame.top}px`;
}

function moveFocus(popover: HTMLElement | null, step: number): void {
  const buttons = [...(popover?.querySelectorAll("button") ?? [])];
  const current = buttons.indexOf(document.activeElement as HTMLButtonElement);
  buttons[(current + step + buttons.length) % buttons.length]?.focus();
}
