/** Why an answer is not whole, and what to do about it. */

import { useApp } from "../state/app";
import type { Message } from "../state/conversation";
import { Icon } from "./icon";

interface MessageProblemProps {
  message: Message;
  isLive: boolean;
  isBusy: boolean;
}

export function MessageProblem({ message, isLive, isBusy }: MessageProblemProps) {
  const { actions } = useApp();
  const note = noteOf(message, isLive);
  if (note === null) return null;
  if (message.finish == null) {
    return (
      <p class="end-note late" data-testid="elsewhere">
        {note}
      </p>
    );
  }
  const param = message.error?.param;
  const isError = message.finish === "error" || message.finish === "interrupted";
  if (!isError) {
    return (
      <p class="end-note" data-testid="end-note">
        {note}
      </p>
    );
  }
  return (
    <div class="problem" data-testid="problem">
      <Icon name="warning" />
      <p>
        {note}
        {param && !note.includes(param) && <span class="subtle"> ({param})</span>}
      </p>
      <button
        type="button"
        class="button small"
        disabled={isBusy}
        onClick={() => actions.regenerate(message)}
        data-testid="retry"
      >
        <Icon name="refresh" />
        Retry
      </button>
    </div>
  );
}

function noteOf(message: Message, isLive: boolean): string | null {
  if (message.finish == null) return isLive ? null : "This answer is being written in another window.";
  switch (message.finish) {
    case "stopped":
      return "You stopped this answer.";
    case "length":
      return "The length limit was reached.";
    case "error":
      return message.error?.message ?? "The answer failed.";
    case "interrupted":
      return message.error?.message ?? "This answer was interrupted.";
    default:
      return null;
  }
}
