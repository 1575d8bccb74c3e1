/** The list of conversations: search, rename, delete, take out and bring in. */

import { useEffect, useRef, useState } from "preact/hooks";
import { period } from "../lib/format";
import { useApp } from "../state/app";
import type { ConversationHead } from "../state/storage";
import { ConversationItem } from "./conversation_item";
import { Icon } from "./icon";
import { IconButton } from "./icon_button";
import { TransferButtons } from "./transfer_buttons";

export function ConversationList() {
  const { store, panels } = useApp();
  const [words, setWords] = useState("");
  const found = useFound(words);
  const search = useRef<HTMLInputElement>(null);
  const focus = panels.searchFocus.value;
  useEffect(() => {
    if (focus > 0) search.current?.focus();
  }, [focus]);
  return (
    <nav class="list" aria-label="Conversations" data-testid="conversation-list">
      <div class="list-head">
        <span class="brand">
          <Brand />
          chatserve
        </span>
        <IconButton
          icon="add"
          label="New chat"
          shortcut="Alt+N"
          testId="new-chat"
          isLarge
          onClick={() => {
            store.newChat();
            panels.afterPick();
          }}
        />
      </div>
      <label class="search">
        <Icon name="search" />
        <span class="visually-hidden">Search conversations</span>
        <input
          ref={search}
          type="search"
          placeholder="Search"
          value={words}
          data-testid="search"
          onInput={(event) => setWords(event.currentTarget.value)}
        />
      </label>
      <div class="list-scroll">
        <Groups heads={found} />
        {found.length === 0 && <p class="subtle empty">{words ? "Nothing found." : "No conversations yet."}</p>}
      </div>
      <TransferButtons />
    </nav>
  );
}

function Groups({ heads }: { heads: readonly ConversationHead[] }) {
  const groups = new Map<string, ConversationHead[]>();
  for (const head of heads) {
    const name = period(head.updated);
    const group = groups.get(name);
    if (group) group.push(head);
    else groups.set(name, [head]);
  }
  return (
    <>
      {[...groups].map(([name, members]) => (
        <section key={name}>
          <h2>{name}</h2>
          <ul>
            {members.map((head) => (
              <ConversationItem key={head.id} head={head} />
            ))}
          </ul>
        </section>
      ))}
    </>
  );
}

/** The conversations with these words; all of them at once when there are none. */
function useFound(words: string): readonly ConversationHead[] {
  const { store, library } = useApp();
  const heads = store.heads.value;
  const [found, setFound] = useState<readonly ConversationHead[]>([]);
  useEffect(() => {
    if (!words.trim()) return;
    let isCurrent = true;
    const timer = setTimeout(async () => {
      const matching = await library.find(words);
      if (isCurrent) setFound(matching);
    }, 120);
    return () => {
      isCurrent = false;
      clearTimeout(timer);
    };
  }, [words, heads, library]);
  return words.trim() ? found.filter((head) => heads.some(({ id }) => id === head.id)) : heads;
}

function Brand() {
  return (
    <svg class="brand-mark" viewBox="0 0 32 32" aria-hidden="true">
      <rect width="32" height="32" rx="8" />
      <path d="M8 16h5c3 0 3-6 6-6h5M13 16c3 0 3 6 6 6h5" />
      <circle cx="8" cy="16" r="2.4" />
    </svg>
  );
}
