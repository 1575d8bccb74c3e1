/** The one line that screen readers hear of a running answer: its beginning and its end, not its tokens. */

import { useEffect, useRef, useState } from "preact/hooks";
import { plural } from "../lib/format";
import { useApp } from "../state/app";
import type { Message } from "../state/conversation";
import type { Phase } from "../state/progress";

export function Announcer() {
  const { store } = useApp();
  const generation = store.generation.value;
  const phase = generation?.progress.value.phase ?? null;
  const last = store.path.value.at(-1);
  const before = useRef<Phase | null>(null);
  const [line, setLine] = useState("");
  // Only a change of the phase is told
  useEffect(() => {
    if (phase !== null) setLine(PHASES[phase]);
    else if (before.current !== null) setLine(endLine(last));
    before.current = phase;
  }, [phase]);
  return (
    <p class="visually-hidden" role="status" aria-live="polite" data-testid="announcer">
      {line}
    </p>
  );
}

const PHASES: Record<Phase, string> = {
  connecting: "Sending.",
  queued: "Waiting in the queue.",
  prefill: "Reading the prompt.",
  decode: "The answer is being written.",
  reconnecting: "The connection is lost. Reconnecting.",
};

function endLine(message: Message | undefined): string {
  if (message?.error) return `The answer failed: ${message.error.message}`;
  if (message?.finish === "stopped") return "The answer was stopped.";
  return message?.usage
    ? `The answer is finished: ${plural(message.usage.completion_tokens, "token")}.`
    : "The answer is finished.";
}
