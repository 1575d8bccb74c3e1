/** Answers to one question side by side: columns, or tabs where there is no room for them. */

import { useRef, useState } from "preact/hooks";
import { plural } from "../lib/format";
import { useApp } from "../state/app";
import type { Message } from "../state/conversation";
import { AnswerContent, type AnswerMode } from "./answer_content";
import { CopyButton } from "./code_block";
import { Icon } from "./icon";
import { Lazy } from "./lazy";
import { MessageProblem } from "./message_problem";

interface CandidatesProps {
  messages: readonly Message[];
  /** The one that the conversation goes on with when nothing is chosen. */
  shown: Message;
}

export function Candidates({ messages, shown }: CandidatesProps) {
  const { store, actions } = useApp();
  const [tab, setTab] = useState(0);
  const [mode, setMode] = useState<AnswerMode>("text");
  const isBusy = store.generation.value !== null;
  // As with a single answer: a search is watched while it runs, and stays in view when it ends.
  const isSearching = (shown.hasTrace ?? false) && store.generation.value?.answer(shown.id) !== undefined;
  const [isTreeChosen, setTreeChosen] = useState<boolean | null>(null);
  const wasSearching = useRef(false);
  if (isSearching) wasSearching.current = true;
  const isTreeShown = shown.hasTrace === true && (isTreeChosen ?? wasSearching.current);
  const current = Math.min(tab, messages.length - 1);
  return (
    <section class="candidates" aria-label={`${messages.length} candidates`} data-testid="candidates">
      <header class="candidates-head">
        <h2>{plural(messages.length, "candidate")}</h2>
        <Tabs messages={messages} current={current} onSelect={setTab} />
        {shown.hasTrace && (
          <button
            type="button"
            class="button small"
            aria-pressed={isTreeShown}
            data-testid="candidates-search"
            onClick={() => setTreeChosen(!isTreeShown)}
          >
            Search
          </button>
        )}
        <button
          type="button"
          class="button small"
          aria-pressed={mode === "tokens"}
          data-testid="candidates-tokens"
          onClick={() => setMode(mode === "tokens" ? "text" : "tokens")}
        >
          Tokens
        </button>
        <button
          type="button"
          class="button small"
          disabled={isBusy}
          aria-label="Regenerate"
          data-testid="candidates-regenerate"
          onClick={() => actions.regenerate(shown)}
        >
          <Icon name="refresh" />
          <span class="button-text">Regenerate</span>
        </button>
      </header>
      {isTreeShown && (
        <Lazy
          load={() => import("./search_view").then((m) => m.SearchView)}
          props={{ message: shown, isLive: isSearching }}
        />
      )}
      <div class="candidate-columns">
        {messages.map((message, index) => (
          <Candidate
            key={message.id}
            message={message}
            number={index + 1}
            isCurrent={index === current}
            mode={mode}
            isBusy={isBusy}
          />
        ))}
      </div>
    </section>
  );
}

interface TabsProps {
  messages: readonly Message[];
  current: number;
  onSelect: (index: number) => void;
}

/** Only shown on narrow screens. */
function Tabs({ messages, current, onSelect }: TabsProps) {
  const onKeyDown = (event: KeyboardEvent) => {
    const step = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
    if (step === 0) return;
    const next = (current + step + messages.length) % messages.length;
    onSelect(next);
    (event.currentTarget as HTMLElement).querySelectorAll("button")[next]?.focus();
  };
  return (
    <div class="candidate-tabs" role="tablist" aria-label="Candidates" onKeyDown={onKeyDown}>
      {messages.map((message, index) => (
        <button
          key={message.id}
          type="button"
          role="tab"
          id={`tab-${message.id}`}
          aria-selected={index === current}
          aria-controls={`candidate-${message.id}`}
          tabIndex={index === current ? 0 : -1}
          data-testid="candidate-tab"
          onClick={() => onSelect(index)}
        >
          {index + 1}
        </button>
      ))}
    </div>
  );
}

interface CandidateProps {
  message: Message;
  number: number;
  isCurrent: boolean;
  mode: AnswerMode;
  isBusy: boolean;
}

function Candidate({ message, number, isCurrent, mode, isBusy }: CandidateProps) {
  const { actions, store } = useApp();
  const generation = store.generation.value;
  const isLive = generation?.answer(message.id) !== undefined;
  // A finished candidate can be chosen while others are still being written.
  if (isLive) generation?.frame.value;
  return (
    <article
      class="candidate"
      id={`candidate-${message.id}`}
      aria-label={`Candidate ${number}`}
      aria-busy={isLive}
      data-current={isCurrent}
      data-testid="candidate"
      data-message={message.id}
    >
      <div class="candidate-body">
        <AnswerContent message={message} mode={mode} isLive={isLive} />
        <MessageProblem message={message} isLive={isLive} isBusy={isBusy} />
      </div>
      <footer>
        <span class="subtle">#{number}</span>
        <CopyButton text={message.content} label={`Copy candidate ${number}`} />
        <button
          type="button"
          class="button small primary"
          disabled={isLive && !generation?.answer(message.id)?.finish}
          data-testid="choose"
          onClick={() => actions.choose(message)}
        >
          <Icon name="check" />
          Use this
          <span class="visually-hidden"> (candidate {number})</span>
        </button>
      </footer>
    </article>
  );
}
