/** `Storage`: conversations in IndexedDB. Every method writes one transaction, so a reload finds a consistent state. */

import { type DBSchema, type IDBPDatabase, openDB } from "idb";
import type { Conversation, Message } from "./conversation";

/** A conversation without its messages, which are stored one by one. */
export type ConversationHead = Omit<Conversation, "messages">;

/** What is kept of a message beside its text, cut into pieces so that a growing list is not written again and again. */
export type DetailKind = "tokens" | "trace";

export interface DetailPiece {
  conversation: string;
  message: string;
  kind: DetailKind;
  index: number;
  items: unknown[];
}

type StoredMessage = Message & { conversation: string };

interface Schema extends DBSchema {
  conversations: { key: string; value: ConversationHead };
  messages: { key: [string, string]; value: StoredMessage };
  details: { key: [string, string, DetailKind, number]; value: DetailPiece };
}

export class Storage {
  readonly #database: Promise<IDBPDatabase<Schema>>;

  constructor(name = "chatserve") {
    this.#database = openDB<Schema>(name, 1, {
      upgrade(database) {
        database.createObjectStore("conversations", { keyPath: "id" });
        database.createObjectStore("messages", { keyPath: ["conversation", "id"] });
        database.createObjectStore("details", { keyPath: ["conversation", "message", "kind", "index"] });
      },
    });
  }

  /** All conversations, the last used first. */
  async heads(): Promise<ConversationHead[]> {
    const heads = await (await this.#database).getAll("conversations");
    return heads.sort((a, b) => b.updated - a.updated);
  }

  async load(id: string): Promise<Conversation | null> {
    const database = await this.#database;
    const head = await database.get("conversations", id);
    if (head === undefined) return null;
    const stored = await database.getAll("messages", within(id));
    const messages = Object.fromEntries(stored.map(({ conversation: _, ...message }) => [message.id, message]));
    return { ...head, messages };
  }

  /** Writes the head, the given messages and the given pieces together. */
  async save(
    conversation: Conversation,
    changed: readonly Message[],
    pieces: readonly DetailPiece[] = [],
  ): Promise<void> {
    const { messages: _, ...head } = conversation;
    const transaction = (await this.#database).transaction(["conversations", "messages", "details"], "readwrite");
    transaction.objectStore("conversations").put(head);
    for (const message of changed)
      transaction.objectStore("messages").put({ ...message, conversation: conversation.id });
    for (const piece of pieces) transaction.objectStore("details").put(piece);
    await transaction.done;
  }

  async details(conversation: string, message: string, kind: DetailKind): Promise<unknown[]> {
    const pieces = await (await this.#database).getAll("details", within(conversation, message, kind));
    return pieces.flatMap((piece) => piece.items);
  }

  async allDetails(conversation: string): Promise<DetailPiece[]> {
    return (await this.#database).getAll("details", within(conversation));
  }

  async removeMessages(conversation: Conversation, ids: readonly string[]): Promise<void> {
    const { messages: _, ...head } = conversation;
    const transaction = (await this.#database).transaction(["conversations", "messages", "details"], "readwrite");
    transaction.objectStore("conversations").put(head);
    for (const id of ids) {
      transaction.objectStore("messages").delete([conversation.id, id]);
      transaction.objectStore("details").delete(within(conversation.id, id));
    }
    await transaction.done;
  }

  async removeDetails(conversation: string, message: string, kind: DetailKind): Promise<void> {
    await (await this.#database).delete("details", within(conversation, message, kind));
  }

  async remove(id: string): Promise<void> {
    const transaction = (await this.#database).transaction(["conversations", "messages", "details"], "readwrite");
    transaction.objectStore("conversations").delete(id);
    transaction.objectStore("messages").delete(within(id));
    transaction.objectStore("details").delete(within(id));
    await transaction.done;
  }
}

/** All keys that begin with these parts. An array sorts after every string and number. */
function within(...parts: string[]): IDBKeyRange {
  return IDBKeyRange.bound(parts, [...parts, []]);
}
