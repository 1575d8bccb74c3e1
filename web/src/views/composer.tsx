/** The message field. */

import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { isSend } from "../lib/keyboard";
import { useApp } from "../state/app";
import { Icon } from "./icon";

const MAX_HEIGHT = 240;

export function Composer({ onSend }: { onSend: () => void }) {
  const { store, actions, panels } = useApp();
  const [text, setText] = useState("");
  const field = useRef<HTMLTextAreaElement>(null);
  const isBusy = store.generation.value !== null;
  const canSend = !isBusy && text.trim() !== "";
  const focus = panels.composerFocus.value;
  // It grows when the field is to take the focus
  useEffect(() => field.current?.focus(), [focus]);
  // The height follows the text
  useLayoutEffect(() => {
    if (field.current) growToContent(field.current);
  }, [text]);
  const send = () => {
    if (!canSend) return;
    setText("");
    actions.send(text.trim());
    onSend();
  };
  return (
    <form
      class="composer"
      onSubmit={(event) => {
        event.preventDefault();
        send();
      }}
    >
      <label class="visually-hidden" for="composer">
        Message
      </label>
      <textarea
        id="composer"
        ref={field}
        rows={1}
        value={text}
        placeholder="Write a message"
        data-testid="composer"
        onInput={(event) => setText(event.currentTarget.value)}
        onKeyDown={(event) => {
          if (!isSend(event)) return;
          event.preventDefault();
          send();
        }}
      />
      {isBusy ? (
        <button
          type="button"
          class="send stop"
          aria-label="Stop"
          title="Stop (Esc)"
          data-testid="stop"
          onClick={() => actions.stop()}
        >
          <Icon name="stop" />
        </button>
      ) : (
        <button
          type="submit"
          class="send"
          aria-label="Send"
          title="Send (Enter)"
          data-testid="send"
          disabled={!canSend}
        >
          <Icon name="send" />
        </button>
      )}
    </form>
  );
}

/** Makes a text field as high as its text, up to a limit. */
export function growToContent(field: HTMLTextAreaElement): void {
  field.style.height = "auto";
  field.style.height = `${Math.min(field.scrollHeight, MAX_HEIGHT)}px`;
}
