/** An answer as its tokens, coloured by probability; each shows its alternatives, and any of them can be branched from. */

import type { RefObject } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { Token, TokenAlternative } from "../api/types";
import { type ShownToken, TokenText, textOf } from "../lib/token_text";
import { useApp } from "../state/app";
import type { Message } from "../state/conversation";
import { useDetails } from "./details";
import { useGradually } from "./gradually";
import { TokenPopover } from "./token_popover";
import { TokenRun } from "./token_run";

const RUN = 200;

export function TokenView({ message, isLive }: { message: Message; isLive: boolean }) {
  const tokens = useDetails(message, "tokens", isLive) as readonly Token[] | null;
  if (tokens === null) return <p class="loading">Loading…</p>;
  if (tokens.length === 0) return <NoTokens message={message} isLive={isLive} />;
  return <Tokens message={message} tokens={tokens} isLive={isLive} />;
}

function NoTokens({ message, isLive }: { message: Message; isLive: boolean }) {
  return (
    <>
      <p class="hint" data-testid="no-tokens">
        {isLive ? "No tokens yet." : "This answer has no token data: it was edited, or token probabilities were off."}
      </p>
      <div class="tokens">{message.content}</div>
    </>
  );
}

interface TokensProps {
  message: Message;
  tokens: readonly Token[];
  isLive: boolean;
}

function Tokens({ message, tokens, isLive }: TokensProps) {
  const { actions, store } = useApp();
  const [active, setActive] = useState(0);
  const [pointed, setPointed] = useState<number | null>(null);
  const [pinned, setPinned] = useState<number | null>(null);
  const box = useRef<HTMLDivElement>(null);
  const { given, text } = useTokenText(message, tokens, isLive);
  const numRuns = useGradually(Math.ceil(tokens.length / RUN), 5, 3);
  const shownIndex = pinned ?? pointed;
  const shown = shownIndex === null ? undefined : text.shown[shownIndex];
  const canBranch = store.generation.value === null;
  useClickOutside(box, pinned !== null, () => setPinned(null));
  const focusToken = (index: number) => {
    setActive(index);
    box.current?.querySelector<HTMLElement>(`[data-index="${index}"]`)?.focus();
  };
  const close = (index: number) => {
    setPinned(null);
    setPointed(null);
    focusToken(index);
  };
  const branch = ({ token, before }: ShownToken, index: number, alternative: TokenAlternative) => {
    if (before === null) return;
    const forced: Token = {
      ...token,
      ...alternative,
      bytes: [...new TextEncoder().encode(alternative.text)],
      forced: true,
    };
    setPinned(null);
    setPointed(null);
    actions.branch(message, before + alternative.text, [...tokens.slice(0, index), forced]);
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (indexOf(event) === null) return;
    const step = STEPS[event.key];
    if (step !== undefined) focusToken(Math.max(0, Math.min(active + step, text.shown.length - 1)));
    else if (event.key === "Enter" || event.key === " " || event.key === "ArrowDown") setPinned(active);
    else if (event.key === "Escape" && shownIndex !== null) close(shownIndex);
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  return (
    <div
      class="token-view"
      ref={box}
      role="group"
      aria-label="Tokens"
      data-testid="token-view"
      onKeyDown={onKeyDown}
      onPointerLeave={() => setPointed(null)}
      onPointerOver={(event) => event.pointerType !== "touch" && setPointed((before) => indexOf(event) ?? before)}
      onClick={(event) => {
        const index = indexOf(event);
        setPinned(index === pinned ? null : index);
        if (index !== null) setActive(index);
      }}
    >
      <div class="tokens">
        {given && <span class="token given">{given}</span>}
        {runsOf(text.shown, numRuns).map((run, index) => (
          <TokenRun
            key={index * RUN}
            tokens={run}
            length={run.length}
            from={index * RUN}
            active={active - index * RUN}
            open={shownIndex === null ? -1 : shownIndex - index * RUN}
          />
        ))}
      </div>
      <Scale />
      {shown && shownIndex !== null && (
        <TokenPopover
          key={shownIndex}
          shown={shown}
          index={shownIndex}
          box={box}
          isPinned={pinned !== null}
          canBranch={canBranch && shown.before !== null}
          onBranch={(alternative) => branch(shown, shownIndex, alternative)}
          onClose={() => close(shownIndex)}
        />
      )}
    </div>
  );
}

const STEPS: Record<string, number> = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity };

function useClickOutside(box: RefObject<HTMLElement | null>, isWatching: boolean, onOutside: () => void): void {
  useEffect(() => {
    if (!isWatching) return;
    const onPointerDown = (event: PointerEvent) => {
      if (!box.current?.contains(event.target as Node)) onOutside();
    };
    document.addEventListener("pointerdown", onPointerDown);
    return () => document.removeEventListener("pointerdown", onPointerDown);
  });
}

/** The tokens' text, and what of the message stands before them (the user wrote it). */
function useTokenText(message: Message, tokens: readonly Token[], isLive: boolean): { given: string; text: TokenText } {
  const given = useMemo(() => {
    if (isLive) return "";
    const own = textOf(tokens);
    return message.content.endsWith(own) ? message.content.slice(0, message.content.length - own.length) : "";
  }, [message, tokens, isLive]);
  // One text for each message and beginning, which takes in only what is new.
  const text = useMemo(() => new TokenText(given), [message.id, given]);
  text.read(tokens);
  return { given, text };
}

/** Runs of tokens that are drawn independently; all but the last are full and never change. */
function runsOf(shown: readonly ShownToken[], count: number): ShownToken[][] {
  return Array.from({ length: count }, (_, index) => shown.slice(index * RUN, (index + 1) * RUN));
}

function indexOf(event: Event): number | null {
  const token = event.target instanceof Element ? event.target.closest<HTMLElement>("[data-index]") : null;
  return token === null ? null : Number(token.dataset.index);
}

function Scale() {
  return (
    <p class="token-scale" aria-hidden="true">
      likely
      {[0, 1, 2, 3, 4, 5].map((shade) => (
        <span key={shade} class={`token shade-${shade}`} />
      ))}
      surprising
    </p>
  );
}
