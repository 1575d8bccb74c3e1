/** What an answer says: as text, as tokens, or as the search that found it. */

import { useMemo, useRef } from "preact/hooks";
import { type Block, MarkdownStream } from "../lib/markdown_stream";
import { useApp } from "../state/app";
import type { Message } from "../state/conversation";
import type { Generation } from "../state/generation";
import type { LiveAnswer } from "../state/live_answer";
import { Lazy } from "./lazy";
import { MarkdownBlocks } from "./markdown_blocks";

export type AnswerMode = "text" | "tokens" | "search";

interface AnswerContentProps {
  message: Message;
  mode: AnswerMode;
  isLive: boolean;
}

export function AnswerContent({ message, mode, isLive }: AnswerContentProps) {
  const { store } = useApp();
  // Only a live answer listens: finished ones need not be drawn again when something else starts or ends.
  const generation = isLive ? store.generation.value : null;
  if (mode === "tokens") {
    return (
      <Lazy key="tokens" load={() => import("./token_view").then((m) => m.TokenView)} props={{ message, isLive }} />
    );
  }
  return (
    <>
      {mode === "search" && (
        <Lazy key="search" load={() => import("./search_view").then((m) => m.SearchView)} props={{ message, isLive }} />
      )}
      <AnswerText message={message} generation={generation} />
    </>
  );
}

/** The same element while the answer is written and afterwards: what was drawn stays. */
function AnswerText({ message, generation }: { message: Message; generation: Generation | null }) {
  // Reading it makes this view follow the frames.
  generation?.frame.value;
  const answer = generation?.answer(message.id);
  const { done, open } = useBlocks(message, answer);
  if (answer && answer.text === "" && !answer.finish) return <Waiting />;
  const isWriting = answer !== undefined && !answer.finish;
  return (
    <div class={isWriting ? "markdown live" : "markdown"} data-testid="content">
      <MarkdownBlocks blocks={[...done, ...open]} isOpen={isWriting} />
    </div>
  );
}

interface Blocks {
  done: readonly Block[];
  open: readonly Block[];
}

/** The blocks of a running answer; of a finished one those that it ended with, if this view has seen it, else made anew. */
function useBlocks(message: Message, answer: LiveAnswer | undefined): Blocks {
  const last = useRef<LiveAnswer | null>(null);
  if (answer) last.current = answer;
  const seen = last.current?.text === message.content ? last.current : null;
  const isStored = answer === undefined && seen === null;
  const stored = useMemo(() => (isStored ? MarkdownStream.blocksOf(message.content) : []), [isStored, message.content]);
  const live = answer ?? seen;
  return live ? { done: live.markdown.frozen, open: live.markdown.open } : { done: stored, open: [] };
}

function Waiting() {
  return (
    <div class="markdown waiting" data-testid="content">
      <span class="dots" aria-hidden="true">
        <i />
        <i />
        <i />
      </span>
      <span class="visually-hidden">Waiting for the first token</span>
    </div>
  );
}
