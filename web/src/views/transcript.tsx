/** The shown messages. A long conversation is drawn from its end, the rest a few at a time when the page is idle. */

import { useApp } from "../state/app";
import { childrenOf, compared } from "../state/conversation";
import { Candidates } from "./candidates";
import { useGradually } from "./gradually";
import { MessageView } from "./message";

const FIRST = 16;
const MORE = 4;
/** So many messages at the end are drawn again when an answer begins or ends; to the others a rule of style is applied. */
const NEAR_END = 6;

export function Transcript() {
  const { store } = useApp();
  const conversation = store.current.value;
  const path = store.path.value;
  const numHidden = path.length - useGradually(path.length, FIRST, MORE);
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
            isBusy={generation !== null && numHidden + index >= path.length - NEAR_END}
          />
        );
      })}
    </>
  );
}
