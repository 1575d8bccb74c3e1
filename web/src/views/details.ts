/** Hooks for what is kept of an answer beside its text. */

import { useEffect, useState } from "preact/hooks";
import { useApp } from "../state/app";
import type { Message } from "../state/conversation";
import type { DetailKind } from "../state/storage";

/** The tokens of an answer or the trace of its search; a live list only ever grows. Null while it is loaded. */
export function useDetails(message: Message, kind: DetailKind, isLive: boolean): readonly unknown[] | null {
  const { store } = useApp();
  const [stored, setStored] = useState<readonly unknown[] | null>(null);
  const conversation = store.current.value.id;
  const holder = kind === "trace" ? traceHolder(message, store.current.value.messages) : message.id;
  useEffect(() => {
    if (isLive) return;
    let isCurrent = true;
    const load = async () => {
      await store.settled();
      const items = await store.storage.details(conversation, holder, kind);
      if (isCurrent) setStored(items);
    };
    load().catch(() => isCurrent && setStored([]));
    return () => {
      isCurrent = false;
    };
  }, [store, conversation, holder, kind, isLive]);
  const generation = isLive ? store.generation.value : null;
  if (generation === null) return stored;
  generation.frame.value;
  return kind === "trace" ? generation.trace.items : (generation.answer(message.id)?.tokens.items ?? []);
}

/** The trace of a request with several answers is kept with the first. */
function traceHolder(message: Message, messages: Record<string, Message>): string {
  if (!message.choice || !message.group) return message.id;
  const first = Object.values(messages).find(({ group, choice }) => group === message.group && choice === 0);
  return first?.id ?? message.id;
}
