/** A message being edited. The old version stays as a branch. */

import { useEffect, useRef, useState } from "preact/hooks";
import { isComposing } from "../lib/keyboard";
import { useApp } from "../state/app";
import type { Message } from "../state/conversation";
import { growToContent } from "./composer";

export function MessageEditor({ message }: { message: Message }) {
  const { actions, panels } = useApp();
  const [text, setText] = useState(message.content);
  const field = useRef<HTMLTextAreaElement>(null);
  const isAnswer = message.role === "assistant";
  const close = () => {
    panels.editing.value = null;
    panels.composerFocus.value++;
  };
  const save = () => {
    close();
    if (text.trim() && text !== message.content) actions.edit(message, text);
  };
  useEffect(() => {
    field.current?.focus();
    if (field.current) growToContent(field.current);
  }, []);
  const onKeyDown = (event: KeyboardEvent) => {
    if (isComposing(event)) return;
    if (event.key === "Escape") close();
    else if (event.key === "Enter" && (event.ctrlKey || event.metaKey || (!isAnswer && !event.shiftKey))) save();
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  return (
    <div class="editor" data-testid="editor">
      <textarea
        ref={field}
        value={text}
        aria-label={isAnswer ? "Edit the answer" : "Edit your message"}
        data-testid="editor-field"
        onInput={(event) => {
          setText(event.currentTarget.value);
          growToContent(event.currentTarget);
        }}
        onKeyDown={onKeyDown}
      />
      <div class="editor-buttons">
        <button type="button" class="button" onClick={close} data-testid="editor-cancel">
          Cancel
        </button>
        <button type="button" class="button primary" onClick={save} disabled={!text.trim()} data-testid="editor-save">
          {isAnswer ? "Save as a version" : "Ask again"}
        </button>
      </div>
    </div>
  );
}
