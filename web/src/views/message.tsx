/** One message with what can be done with it. */

import { useComputed } from "@preact/signals";
import { Component, type ComponentChild } from "preact";
import { useRef, useState } from "preact/hooks";
import { useApp } from "../state/app";
import type { Message } from "../state/conversation";
import { AnswerContent, type AnswerMode } from "./answer_content";
import { MessageActions } from "./message_actions";
import { MessageEditor } from "./message_editor";
import { MessageProblem } from "./message_problem";

interface MessageProps {
  message: Message;
  /** Where the message stands among its siblings, and how many there are. */
  place: number;
  numSiblings: number;
  isLast: boolean;
  isLive: boolean;
  /** Whether an answer of the conversation is being written, so that nothing else can be started; told near the end only. */
  isBusy: boolean;
}

/** Drawn again only when something about this message changed. */
export class MessageView extends Component<MessageProps> {
  override shouldComponentUpdate(next: MessageProps): boolean {
    return (Object.keys(next) as (keyof MessageProps)[]).some((name) => next[name] !== this.props[name]);
  }

  override render(props: MessageProps): ComponentChild {
    return props.message.role === "user" ? <Question {...props} /> : <Answer {...props} />;
  }
}

function Question(props: MessageProps) {
  const { message } = props;
  const isEditing = useEditing(message);
  return (
    <article class="message user" aria-label="You" data-testid="message-user" data-message={message.id}>
      {isEditing ? (
        <MessageEditor message={message} />
      ) : (
        <div class="bubble" data-testid="content">
          {message.content}
        </div>
      )}
      <MessageActions {...props} />
    </article>
  );
}

function Answer(props: MessageProps) {
  const { message, isLive } = props;
  const isEditing = useEditing(message);
  const [chosen, setMode] = useState<AnswerMode | null>(null);
  const wasSearching = useRef(false);
  // A search is worth watching while it runs, and stays in view when it ends; later the answer's text comes first.
  if (isLive && message.hasTrace) wasSearching.current = true;
  const mode = chosen ?? (wasSearching.current ? "search" : "text");
  return (
    <article
      class="message assistant"
      aria-label="Assistant"
      aria-busy={isLive}
      data-testid="message-assistant"
      data-message={message.id}
      data-finish={message.finish ?? ""}
    >
      {isEditing ? (
        <MessageEditor message={message} />
      ) : (
        <AnswerContent message={message} mode={mode} isLive={isLive} />
      )}
      <MessageProblem message={message} isLive={isLive} isBusy={props.isBusy} />
      <MessageActions {...props} mode={mode} onMode={setMode} />
    </article>
  );
}

/** Follows only whether this one message is edited. */
function useEditing(message: Message): boolean {
  const { panels } = useApp();
  return useComputed(() => panels.editing.value === message.id).value;
}
