/** The shown messages. A long conversation is drawn from its end, the rest a few at a time when the page is idle. */

import { useEffect, useState } from "preact/hooks";
import { useApp } from "../state/app";
import { childrenOf, compared } from "../state/conversation";
import { Candidates } from "./candidates";
import { MessageView } from "./message";

const FIRST = 16;
const MORE = 8;

export function Transcript() {
  const { store } = useApp();
  const conversation = store.current.value;
  const path = store.path.value;
  const numHidden = useGradually(path.length);
  const generation = store.generation.value;
  return (
    <>
      {numHidden > 0 && (
        <p class="loading" data-testid="earlier">
          {numHidden} earlier messages…
        </p>
      )}
      {path.slice(numHidden).map((message, index) => {
        const candidates = message.role === "assistant" ? compared(conversation, message.parent) : [];
        if (candidates.length > 1) return <Candidates key={message.parent} messages={candidates} shown={message} />;
        const siblings = childrenOf(conversation, message.parent);
        return (
          <MessageView
            key={message.id}
            message={message}
            place={siblings.indexOf(message)}
            numSiblings={siblings.length}
            isLast={numHidden + index === path.length - 1}
            isLive={generation?.answer(message.id) !== undefined}
            isBusy={generation !== null}
          />
        );
      })}
    </>
  );
}

/** How many messages at the beginning are not drawn yet. */
function useGradually(length: number): number {
  const [numHidden, setHidden] = useState(() => Math.max(0, length - FIRST));
  useEffect(() => {
    if (numHidden === 0) return;
    const later = window.requestIdleCallback ?? ((work: () => void) => window.setTimeout(work, 50));
    const cancel = window.cancelIdleCallback ?? window.clearTimeout;
    const handle = later(() => setHidden((hidden) => Math.max(0, hidden - MORE)));
    return () => cancel(handle);
  }, [numHidden]);
  return Math.min(numHidden, length);
}
