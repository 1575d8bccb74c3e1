/** `Library`: the stored conversations as a collection: find, rename, remove, take out and bring in. */

import type { Conversation } from "./conversation";
import type { ConversationHead } from "./storage";
import type { ChatStore } from "./store";
import { type Exported, type ExportedConversation, exportFile, parseExport } from "./transfer";

export class Library {
  readonly #store: ChatStore;

  constructor(store: ChatStore) {
    this.#store = store;
  }

  /** Conversations with the words in their title or their messages, the last used first. */
  async find(words: string): Promise<ConversationHead[]> {
    const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
    const found: ConversationHead[] = [];
    for (const head of this.#store.heads.value) {
      const conversation = await this.#store.storage.load(head.id);
      const text = [head.title, ...Object.values(conversation?.messages ?? {}).map(({ content }) => content)];
      const whole = text.join("\n").toLowerCase();
      if (wanted.every((word) => whole.includes(word))) found.push(head);
    }
    return found;
  }

  async rename(id: string, title: string): Promise<void> {
    const name = title.trim().slice(0, 200);
    if (!name) return;
    const edit = (conversation: Conversation) => ({ ...conversation, title: name, isTitled: true });
    if (id === this.#store.current.value.id || this.#store.running.value.has(id)) {
      this.#store.change(id, edit);
      return;
    }
    await this.#store.write(async () => {
      const conversation = await this.#store.storage.load(id);
      if (conversation) await this.#store.storage.save(edit(conversation), []);
      this.#store.heads.value = await this.#store.storage.heads();
    });
  }

  remove(id: string): Promise<void> {
    return this.#store.remove(id);
  }

  /** The named conversations, or all of them, as the text of a file. */
  async exportText(ids: readonly string[] = this.#store.heads.value.map(({ id }) => id)): Promise<string> {
    this.#store.saveRunning();
    await this.#store.settled();
    const { storage } = this.#store;
    const exported: ExportedConversation[] = [];
    for (const id of ids) {
      const conversation = await storage.load(id);
      if (conversation) exported.push({ conversation, details: await storage.allDetails(id) });
    }
    return exportFile(exported);
  }

  /** Brings in what an export holds; returns the ids. Throws ImportError and brings in nothing when it is no export. */
  async importText(text: string): Promise<string[]> {
    const taken = new Set(this.#store.heads.value.map(({ id }) => id));
    const exported: Exported = parseExport(text, taken);
    for (const { conversation, details } of exported.conversations) {
      await this.#store.storage.save(conversation, Object.values(conversation.messages), details);
    }
    this.#store.heads.value = await this.#store.storage.heads();
    return exported.conversations.map(({ conversation }) => conversation.id);
  }
}
