/** One line of the conversation list. */

import { useEffect, useRef, useState } from "preact/hooks";
import { isComposing } from "../lib/keyboard";
import { exportName, saveFile } from "../lib/save_file";
import { useApp } from "../state/app";
import type { ConversationHead } from "../state/storage";
import { IconButton } from "./icon_button";

export function ConversationItem({ head }: { head: ConversationHead }) {
  const { store, library, panels } = useApp();
  const [isRenaming, setRenaming] = useState(false);
  const [isAsking, setAsking] = useState(false);
  const isOpen = store.current.value.id === head.id;
  const isRunning = store.running.value.has(head.id);
  if (isRenaming) return <Rename head={head} onDone={() => setRenaming(false)} />;
  const open = () => {
    void store.open(head.id);
    panels.afterPick();
  };
  return (
    <li class="conversation" data-open={isOpen} data-testid="conversation" data-conversation={head.id}>
      <button
        type="button"
        class="conversation-name"
        aria-current={isOpen ? "page" : undefined}
        onClick={open}
        title={head.title}
      >
        {isRunning && <span class="running" role="img" aria-label="Being answered" />}
        <span>{head.title}</span>
      </button>
      {isAsking ? (
        <span class="conversation-actions asking">
          <button
            type="button"
            class="button small danger"
            data-testid="confirm-delete"
            onClick={() => void library.remove(head.id)}
          >
            Delete
          </button>
          <button type="button" class="button small" onClick={() => setAsking(false)}>
            Keep
          </button>
        </span>
      ) : (
        <span class="conversation-actions">
          <IconButton
            icon="download"
            label={`Export ${head.title}`}
            testId="export-one"
            onClick={() => void library.exportText([head.id]).then((text) => saveFile(exportName(head.title), text))}
          />
          <IconButton icon="edit" label={`Rename ${head.title}`} testId="rename" onClick={() => setRenaming(true)} />
          <IconButton icon="trash" label={`Delete ${head.title}`} testId="delete" onClick={() => setAsking(true)} />
        </span>
      )}
    </li>
  );
}

function Rename({ head, onDone }: { head: ConversationHead; onDone: () => void }) {
  const { library } = useApp();
  const field = useRef<HTMLInputElement>(null);
  // Leaving the field saves as well, and the field is left when it goes: only the first counts.
  const isDone = useRef(false);
  useEffect(() => field.current?.select(), []);
  const close = (title: string | null) => {
    if (isDone.current) return;
    isDone.current = true;
    onDone();
    if (title !== null) void library.rename(head.id, title);
  };
  const save = () => close(field.current?.value ?? "");
  const onKeyDown = (event: KeyboardEvent) => {
    if (isComposing(event)) return;
    if (event.key === "Enter") save();
    else if (event.key === "Escape") close(null);
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  return (
    <li class="conversation">
      <input
        ref={field}
        class="field"
        aria-label="Title"
        defaultValue={head.title}
        data-testid="rename-field"
        onKeyDown={onKeyDown}
        onBlur={save}
      />
    </li>
  );
}
