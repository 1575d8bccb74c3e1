/** What an answer says: as text, as tokens, or as the search that found it. */

import { useMemo } from "preact/hooks";
import { type Block, MarkdownStream } from "../lib/markdown_stream";
import { useApp } from "../state/app";
import type { Message } from "../state/conversation";
import type { Generation } from "../state/generation";
import { Lazy } from "./lazy";
import { MarkdownBlock } from "./markdown";

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
      {generation?.answer(message.id) ? (
        <LiveText generation={generation} id={message.id} />
      ) : (
        <StoredText message={message} />
      )}
    </>
  );
}

function LiveText({ generation, id }: { generation: Generation; id: string }) {
  // Reading it makes this view follow the frames.
  generation.frame.value;
  const answer = generation.answer(id);
  if (answer === undefined) return null;
  if (answer.text === "" && !answer.finish) return <Waiting />;
  const { frozen, open } = answer.markdown;
  return (
    <div class={answer.finish ? "markdown" : "markdown live"} data-testid="content">
      <Blocks blocks={frozen} />
      {open.map((block, index) => (
        <MarkdownBlock key={block.key} block={block} isOpen={index === open.length - 1} />
      ))}
    </div>
  );
}

function StoredText({ message }: { message: Message }) {
  const blocks = useMemo(() => MarkdownStream.blocksOf(message.content), [message.content]);
  return (
    <div class="markdown" data-testid="content">
      <Blocks blocks={blocks} />
    </div>
  );
}

function Blocks({ blocks }: { blocks: readonly Block[] }) {
  return (
    <>
      {blocks.map((block) => (
        <MarkdownBlock key={block.key} block={block} isOpen={false} />
      ))}
    </>
  );
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
