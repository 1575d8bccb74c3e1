/** `ChatStore`: the conversations, which one is open, and what runs in them. Views read its signals. */

import { computed, signal } from "@preact/signals";
import type { StreamSource } from "../api/answer_stream";
import type { StreamBody } from "../api/types";
import { takeTurn } from "../lib/turn";
import {
  type Conversation,
  emptyConversation,
  type Message,
  newId,
  ROOT,
  shownPath,
  withComparing,
  withoutBranch,
  withReplaced,
} from "./conversation";
import { Generation, type GenerationKeeper, type KnownDetails } from "./generation";
import { Journal } from "./journal";
import { type ChatSettings, DEFAULT_SETTINGS } from "./settings";
import { type ConversationHead, type DetailPiece, Storage } from "./storage";

export class ChatStore implements GenerationKeeper {
  /** All stored conversations, the last used first. */
  readonly heads = signal<readonly ConversationHead[]>([]);
  readonly current = signal<Conversation>(emptyConversation(DEFAULT_SETTINGS));
  readonly running = signal<ReadonlyMap<string, Generation>>(new Map());
  /** Why nothing is stored (a window without IndexedDB, a full disk), or null. */
  readonly storageProblem = signal<string | null>(null);
  readonly path = computed(() => shownPath(this.current.value));
  readonly generation = computed(() => this.running.value.get(this.current.value.id) ?? null);
  readonly storage: Storage;
  /** Conversations that are not open but still being written. */
  readonly #background = new Map<string, Conversation>();
  /** What lets other windows go on in the conversation of a generation. */
  readonly #turns = new WeakMap<Generation, Promise<() => void>>();
  readonly #writes = new Set<Promise<void>>();
  readonly #journal = new Journal();

  constructor(storage = new Storage()) {
    this.storage = storage;
  }

  async start(): Promise<void> {
    await this.write(() => this.#journal.restore(this.storage));
    await this.refreshHeads();
  }

  /** Reads the list of conversations anew. */
  async refreshHeads(): Promise<void> {
    await this.write(async () => {
      this.heads.value = await this.storage.heads();
    });
  }

  /** Resolves when everything said so far is stored. */
  async settled(): Promise<void> {
    while (this.#writes.size > 0) await Promise.all(this.#writes);
  }

  /** Does something with the storage; a failure becomes `storageProblem`. */
  async write(work: () => Promise<void>): Promise<void> {
    const done = work().catch((error: unknown) => {
      this.storageProblem.value = error instanceof Error ? error.message : String(error);
    });
    this.#writes.add(done);
    await done;
    this.#writes.delete(done);
  }

  newChat(settings: ChatSettings = this.current.value.settings): void {
    this.#leave();
    this.current.value = emptyConversation(settings);
  }

  /** Opens a stored conversation and takes up again what was being written in it; false when there is none. */
  async open(id: string): Promise<boolean> {
    if (id === this.current.value.id) return true;
    const conversation = this.#background.get(id) ?? (await this.storage.load(id).catch(() => null));
    if (conversation === null) return false;
    this.#leave();
    this.current.value = this.#background.get(id) ?? conversation;
    this.#background.delete(id);
    if (!this.running.value.has(id)) void this.#resume(id);
    return true;
  }

  /** Applies a change to a conversation that is open or running, and stores it with the named messages. */
  change(
    id: string,
    edit: (conversation: Conversation) => Conversation,
    changed: readonly string[] = [],
    pieces: readonly DetailPiece[] = [],
  ): void {
    const isOpen = id === this.current.value.id;
    const before = isOpen ? this.current.value : this.#background.get(id);
    if (before === undefined) return;
    const after = edit(before);
    if (isOpen) this.current.value = after;
    else this.#background.set(id, after);
    this.#setHead(after);
    const messages = changed.flatMap((key) => after.messages[key] ?? []);
    void this.write(() => this.storage.save(after, messages, pieces));
  }

  /** Removes messages of the open conversation from the storage, after `after` has taken its place. */
  drop(after: Conversation, removed: readonly string[]): void {
    this.current.value = after;
    void this.write(() => this.storage.removeMessages(after, removed));
  }

  /** Takes a conversation off the list; the open one gives way to a new chat. */
  async remove(id: string): Promise<void> {
    this.running.value.get(id)?.stop();
    this.#background.delete(id);
    this.heads.value = this.heads.value.filter((head) => head.id !== id);
    if (this.current.value.id === id) this.current.value = emptyConversation(this.current.value.settings);
    await this.write(() => this.storage.remove(id));
  }

  /** Has these answers of the open conversation written. Nothing is asked that a reload would not find again. */
  generate(answers: readonly Message[], body: StreamBody, known?: KnownDetails): void {
    const source = { id: newId(), lastEventId: 0, body };
    const generation = this.#begin(answers, source, takeTurn(this.current.value.id), known);
    generation.save();
    void this.#held(generation, known).then(() => generation.run());
  }

  keep(generation: Generation, messages: readonly Message[], pieces: readonly DetailPiece[]): void {
    const ids = messages.map((message) => message.id);
    this.change(generation.conversation, (c) => withReplaced(c, messages), ids, pieces);
  }

  finished(generation: Generation, messages: readonly Message[], pieces: readonly DetailPiece[]): void {
    const { conversation } = generation;
    const running = new Map(this.running.value);
    if (running.get(conversation) === generation) running.delete(conversation);
    this.running.value = running;
    const ids = messages.map((message) => message.id);
    this.change(conversation, (c) => ({ ...withReplaced(c, messages), updated: Date.now() }), ids, pieces);
    if (messages.length > 1 && messages.every(isRefused)) this.#leaveOne(conversation, messages);
    if (conversation !== this.current.value.id) this.#background.delete(conversation);
    void this.#endTurn(generation);
  }

  /** Stores what has come so far of every running answer. */
  saveRunning(): void {
    for (const generation of this.running.value.values()) generation.save();
  }

  /** Resolves when a reload finds the question and where its answers are to be had. */
  async #held(generation: Generation, known?: KnownDetails): Promise<void> {
    const { current } = this;
    const answers = generation.messages();
    const question = current.value.messages[answers[0]?.parent ?? ROOT];
    // The tokens that a branch begins with may be too many to be held: they are waited for.
    const release = known ? null : this.#journal.hold(current.value, question ? [question, ...answers] : answers);
    const stored = this.settled();
    if (release) void stored.then(release);
    else await stored;
  }

  #begin(
    answers: readonly Message[],
    source: StreamSource,
    turn: Promise<() => void>,
    known?: KnownDetails,
  ): Generation {
    const { id } = this.current.value;
    const generation = new Generation(id, answers, source, this, known);
    this.#turns.set(generation, turn);
    this.running.value = new Map(this.running.value).set(id, generation);
    return generation;
  }

  /** Takes up what was being written in the open conversation, once no other window is writing it. */
  async #resume(id: string): Promise<void> {
    if (!isUnfinished(this.current.value)) return;
    const turn = takeTurn(id);
    const endTurn = await turn;
    const stored = await this.storage.load(id).catch(() => null);
    const details = stored && (await this.#unfinishedDetails(stored));
    if (stored === null || this.current.value.id !== id || this.generation.value) return endTurn();
    this.current.value = stored;
    if (details) {
      void this.#begin(details.answers, details.source, turn, details).run();
      return;
    }
    endTurn();
    this.#closeAbandoned(stored);
  }

  /** The answers of the request that was running last, where to attach to it, and what is stored beside them. */
  async #unfinishedDetails(conversation: Conversation) {
    const unfinished = Object.values(conversation.messages).filter((message) => message.stream);
    const source = unfinished[0]?.stream;
    if (source === undefined) return null;
    const answers = unfinished
      .filter((message) => message.stream?.id === source.id)
      .sort((a, b) => (a.choice ?? 0) - (b.choice ?? 0));
    const tokens = await Promise.all(answers.map(({ id }) => this.storage.details(conversation.id, id, "tokens")));
    const trace = await this.storage.details(conversation.id, answers[0]?.id ?? "", "trace");
    return { source, answers, tokens, trace };
  }

  /** Closes answers whose request was not accepted yet when the page went away. */
  #closeAbandoned(conversation: Conversation): void {
    const closed = Object.values(conversation.messages)
      .filter(isBeingWritten)
      .map((message) => ({ ...message, finish: "interrupted" }));
    if (closed.length === 0) return;
    const ids = closed.map(({ id }) => id);
    this.change(conversation.id, (c) => withReplaced(c, closed), ids);
  }

  /** A refused request has no candidates: one message says why. */
  #leaveOne(id: string, messages: readonly Message[]): void {
    const [first, ...others] = messages;
    if (first === undefined) return;
    this.change(id, (conversation) => {
      const rest = others.reduce((left, { id: gone }) => withoutBranch(left, gone).rest, conversation);
      const after = withComparing(rest, first.parent, null);
      void this.write(() =>
        this.storage.removeMessages(
          after,
          others.map((other) => other.id),
        ),
      );
      return after;
    });
  }

  /** Lets other windows go on, once they can read what was written. */
  async #endTurn(generation: Generation): Promise<void> {
    await this.settled();
    const end = await this.#turns.get(generation);
    end?.();
  }

  #leave(): void {
    const { id } = this.current.value;
    if (this.running.value.has(id)) this.#background.set(id, this.current.value);
  }

  #setHead({ messages: _, ...head }: Conversation): void {
    const others = this.heads.value.filter((other) => other.id !== head.id);
    this.heads.value = [head, ...others].sort((a, b) => b.updated - a.updated);
  }
}

function isBeingWritten(message: Message): boolean {
  return message.role === "assistant" && message.finish == null;
}

function isRefused(message: Message): boolean {
  return message.content === "" && message.error !== undefined;
}

function isUnfinished(conversation: Conversation): boolean {
  return Object.values(conversation.messages).some(isBeingWritten);
}
