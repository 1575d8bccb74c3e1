/** The row below a message: its versions, its views, and what can be done with it. */

import { plural, rate, seconds } from "../lib/format";
import { useApp } from "../state/app";
import { type Message, siblingAt } from "../state/conversation";
import { decodeRate } from "../state/progress";
import type { AnswerMode } from "./answer_content";
import { CopyButton } from "./code_block";
import { IconButton } from "./icon_button";

interface MessageActionsProps {
  message: Message;
  place: number;
  numSiblings: number;
  isLast: boolean;
  isLive: boolean;
  isBusy: boolean;
  mode?: AnswerMode;
  onMode?: (mode: AnswerMode) => void;
}

export function MessageActions(props: MessageActionsProps) {
  const { actions, panels } = useApp();
  const { message, isLive, isBusy, isLast } = props;
  const isAnswer = message.role === "assistant";
  const canContinue = isAnswer && isLast && message.content !== "" && message.finish !== "stop";
  return (
    <div class="message-actions" data-always={isLast}>
      <Versions {...props} />
      {props.onMode && <Modes message={message} mode={props.mode ?? "text"} onMode={props.onMode} />}
      {!isLive && (
        <>
          {message.content !== "" && (
            <CopyButton text={message.content} label={isAnswer ? "Copy answer" : "Copy message"} />
          )}
          <IconButton
            icon="edit"
            label={isAnswer ? "Edit answer" : "Edit and ask again"}
            testId="edit"
            isIdleOnly
            isDisabled={isBusy}
            onClick={() => {
              panels.editing.value = message.id;
            }}
          />
          {isAnswer && (
            <IconButton
              icon="refresh"
              label="Regenerate"
              testId="regenerate"
              isIdleOnly
              isDisabled={isBusy}
              onClick={() => actions.regenerate(message)}
            />
          )}
          {canContinue && (
            <IconButton
              icon="play"
              label="Continue"
              testId="continue"
              isIdleOnly
              isDisabled={isBusy}
              onClick={() => void actions.continueAnswer(message)}
            />
          )}
          {isAnswer && props.numSiblings > 1 && message.group !== undefined && (
            <CompareAgain message={message} isBusy={isBusy} />
          )}
          {isAnswer && <Figures message={message} />}
        </>
      )}
    </div>
  );
}

function Versions({ message, place, numSiblings, isBusy }: MessageActionsProps) {
  const { store, actions } = useApp();
  if (numSiblings < 2) return null;
  const go = (step: number) => {
    const sibling = siblingAt(store.current.value, message, step);
    if (sibling) actions.select(sibling);
  };
  return (
    <span class="versions" role="group" aria-label="Versions" data-testid="versions">
      <IconButton
        icon="back"
        label="Previous version"
        testId="previous"
        isIdleOnly
        isDisabled={isBusy || place === 0}
        onClick={() => go(-1)}
      />
      <span data-testid="version">
        {place + 1}
        <span aria-hidden="true"> / </span>
        <span class="visually-hidden"> of </span>
        {numSiblings}
      </span>
      <IconButton
        icon="forward"
        label="Next version"
        testId="next"
        isIdleOnly
        isDisabled={isBusy || place === numSiblings - 1}
        onClick={() => go(1)}
      />
    </span>
  );
}

const MODES: readonly { mode: AnswerMode; label: string; title: string }[] = [
  { mode: "text", label: "Text", title: "The answer" },
  { mode: "tokens", label: "Tokens", title: "Tokens, their probabilities and alternatives" },
  { mode: "search", label: "Search", title: "The search: hypotheses, scores, what was dropped" },
];

interface ModesProps {
  message: Message;
  mode: AnswerMode;
  onMode: (mode: AnswerMode) => void;
}

/** The views that there is something to show in. */
function Modes({ message, mode, onMode }: ModesProps) {
  const has = { text: true, tokens: message.hasTokens ?? false, search: message.hasTrace ?? false };
  const shown = MODES.filter((entry) => has[entry.mode]);
  if (shown.length < 2) return null;
  return (
    <span class="segments" role="group" aria-label="View of the answer">
      {shown.map((entry) => (
        <button
          key={entry.mode}
          type="button"
          aria-pressed={mode === entry.mode}
          title={entry.title}
          data-testid={`mode-${entry.mode}`}
          onClick={() => onMode(entry.mode)}
        >
          {entry.label}
        </button>
      ))}
    </span>
  );
}

function CompareAgain({ message, isBusy }: { message: Message; isBusy: boolean }) {
  const { store, actions } = useApp();
  const inGroup = Object.values(store.current.value.messages).filter(({ group }) => group === message.group);
  if (inGroup.length < 2) return null;
  return (
    <IconButton
      icon="columns"
      label="Compare the candidates again"
      testId="compare"
      isIdleOnly
      isDisabled={isBusy}
      onClick={() => actions.compare(message)}
    />
  );
}

function Figures({ message }: { message: Message }) {
  const { usage, timings, decoder, numTokens } = message;
  if (!usage) return null;
  const speed = timings ? decodeRate(usage, timings) : null;
  const figures = [
    decoder,
    plural(numTokens ?? usage.completion_tokens, "token"),
    speed === null ? null : `${rate(speed)} tok/s`,
    timings?.ttft_s == null ? null : `first after ${seconds(timings.ttft_s)}`,
  ];
  return (
    <span class="figures" data-testid="figures">
      {figures.filter(Boolean).join(" · ")}
    </span>
  );
}
