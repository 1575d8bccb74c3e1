/** `Journal`: what must survive a reload from the very moment on, in session storage until the database has it. */

import type { Conversation, Message } from "./conversation";
import type { ConversationHead, Storage } from "./storage";

interface Entry {
  head: ConversationHead;
  messages: Message[];
}

const PREFIX = "chatserve.unsaved.";

export class Journal {
  #numEntries = 0;

  /** Holds the conversation's head and these messages; returns what lets go of them, or null when there is no room. */
  hold(conversation: Conversation, messages: readonly Message[]): (() => void) | null {
    const { messages: _, ...head } = conversation;
    const key = `${PREFIX}${conversation.id}.${this.#numEntries++}`;
    try {
      sessionStorage.setItem(key, JSON.stringify({ head, messages }));
    } catch {
      return null;
    }
    return () => sessionStorage.removeItem(key);
  }

  /** Brings into the database what the page before this one had no time for. */
  async restore(storage: Storage): Promise<void> {
    const keys = Object.keys(sessionStorage).filter((key) => key.startsWith(PREFIX));
    for (const key of keys.sort()) {
      const { head, messages } = JSON.parse(sessionStorage.getItem(key) ?? "null") as Entry;
      const stored = await storage.load(head.id);
      const missing = messages.filter(({ id }) => !(id in (stored?.messages ?? {})));
      if (missing.length > 0) await storage.save({ ...head, messages: {} }, missing);
      sessionStorage.removeItem(key);
    }
  }
}
