/** Hooks for what is kept of an answer beside its text. */

import { useEffect, useRef, useState } from "preact/hooks";
import { useApp } from "../state/app";
import type { Message } from "../state/conversation";
import type { DetailKind } from "../state/storage";

/** The tokens of an answer or the trace of its search; a live list only ever grows. Null while it is loaded. */
export function useDetails(message: Message, kind: DetailKind, isLive: boolean): readonly unknown[] | null {
  const live = useLive(message, kind, isLive);
  const stored = useStored(message, kind, live !== null);
  return live ?? stored;
}

/** The list of a running answer, and the same list when it has ended. */
function useLive(message: Message, kind: DetailKind, isLive: boolean): readonly unknown[] | null {
  const { store } = useApp();
  const last = useRef<readonly unknown[] | null>(null);
  const generation = isLive ? store.generation.value : null;
  if (generation === null) return last.current;
  generation.frame.value;
  last.current = kind === "trace" ? generation.trace.items : (generation.answer(message.id)?.tokens.items ?? []);
  return last.current;
}

function useStored(message: Message, kind: DetailKind, isKnown: boolean): readonly unknown[] | null {
  const { store } = useApp();
  const [stored, setStored] = useState<readonly unknown[] | null>(null);
  const conversation = store.current.value.id;
  const holder = kind === "trace" ? traceHolder(message, store.current.value.messages) : message.id;
  useEffect(() => {
    if (isKnown) return;
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
  }, [store, conversation, holder, kind, isKnown]);
  return stored;
}

/** The trace of a request with several answers is kept with the first. */
function traceHolder(message: Message, messages: Record<string, Message>): string {
  if (!message.choice || !message.group) return message.id;
  const first = Object.values(messages).find(({ group, choice }) => group === message.group && choice === 0);
  return first?.id ?? message.id;
}
