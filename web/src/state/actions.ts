/** `Actions`: what a user does in the open conversation. */

import {
  childrenOf,
  type Message,
  newId,
  ROOT,
  titleFrom,
  withComparing,
  withMessages,
  withoutBranch,
  withReplaced,
  withSelected,
} from "./conversation";
import { piecesOf } from "./live_answer";
import { branchBody, conversationBody } from "./requests";
import type { ChatSettings } from "./settings";
import type { ChatStore } from "./store";

export class Actions {
  readonly #store: ChatStore;

  constructor(store: ChatStore) {
    this.#store = store;
  }

  get #id(): string {
    return this.#store.current.value.id;
  }

  /** Asks behind `parent`, or behind what is shown. */
  send(text: string, parent = this.#store.path.value.at(-1)?.id ?? ROOT): void {
    const conversation = this.#store.current.value;
    const question: Message = { id: newId(), parent, role: "user", content: text, created: Date.now() };
    const isFirst = Object.keys(conversation.messages).length === 0;
    const title = isFirst && !conversation.isTitled ? { title: titleFrom(text) } : {};
    this.#store.change(this.#id, (c) => ({ ...withMessages(withoutComparing(c, parent), [question]), ...title }), [
      question.id,
    ]);
    this.answer(question.id);
  }

  /** Has a message answered, once for each wanted choice; several are compared side by side. */
  answer(parent: string): void {
    const { settings } = this.#store.current.value;
    const group = newId();
    const answers = Array.from({ length: Math.max(settings.n, 1) }, (_, choice) => newAnswer(parent, group, choice));
    const isCompared = answers.length > 1;
    this.#store.change(this.#id, (c) => withComparing(withMessages(c, answers), parent, isCompared ? group : null));
    this.#store.generate(answers, conversationBody(this.#store.current.value, parent));
  }

  /** Another answer in place of this one, which stays as a branch unless there is nothing in it. */
  regenerate(message: Message): void {
    if (this.#store.generation.value) return;
    for (const empty of this.#emptyOnes(message)) this.removeBranch(empty.id);
    this.answer(message.parent);
  }

  /** Writes on where an answer stopped. */
  async continueAnswer(message: Message): Promise<void> {
    if (this.#store.generation.value) return;
    const id = this.#id;
    const tokens = await this.#store.storage.details(id, message.id, "tokens");
    await this.#store.storage.removeDetails(id, message.id, "trace");
    if (this.#id !== id || this.#store.generation.value) return;
    const { finish: _, error: _error, stream: _stream, ...rest } = message;
    this.#store.change(id, (c) => withReplaced(c, [rest]));
    const body = branchBody(this.#store.current.value, message.parent, message.content);
    this.#store.generate([rest], body, { tokens: [tokens], trace: [] });
  }

  /** A new answer that begins with this text, from which the model goes on; `tokens` are those of the text. */
  branch(message: Message, text: string, tokens: readonly unknown[]): void {
    if (this.#store.generation.value) return;
    const id = this.#id;
    const answer: Message = { ...newAnswer(message.parent, newId(), 0), content: text };
    const pieces = piecesOf(id, answer.id, "tokens", tokens);
    this.#store.change(id, (c) => withComparing(withMessages(c, [answer]), message.parent, null), [answer.id], pieces);
    const body = branchBody(this.#store.current.value, message.parent, text);
    this.#store.generate([answer], body, { tokens: [tokens], trace: [] });
  }

  /** A question in other words, with its answer; or an answer as the user wants it. The old one stays as a branch. */
  edit(message: Message, text: string): void {
    if (this.#store.generation.value) return;
    if (message.role === "user") {
      this.send(text, message.parent);
      return;
    }
    const edited: Message = { ...newAnswer(message.parent, newId(), 0), content: text, finish: "stop" };
    this.#store.change(this.#id, (c) => withComparing(withMessages(c, [edited]), message.parent, null), [edited.id]);
  }

  /** The message and the others of its request, as far as there is nothing in them. */
  #emptyOnes(message: Message): Message[] {
    const siblings = childrenOf(this.#store.current.value, message.parent);
    return siblings.filter(
      (other) => other.content === "" && (other.id === message.id || other.group === message.group),
    );
  }

  select(message: Message): void {
    this.#store.change(this.#id, (c) => withSelected(c, message.id));
  }

  /** Goes on with this one of the compared answers. */
  choose(message: Message): void {
    this.#store.change(this.#id, (c) => withComparing(withSelected(c, message.id), message.parent, null));
  }

  /** Shows the answers of this one's request side by side again. */
  compare(message: Message): void {
    this.#store.change(this.#id, (c) => withComparing(c, message.parent, message.group ?? null));
  }

  removeBranch(id: string): void {
    const { rest, removed } = withoutBranch(this.#store.current.value, id);
    this.#store.drop(rest, removed);
  }

  stop(): void {
    this.#store.generation.value?.stop();
  }

  setSettings(changed: Partial<ChatSettings>): void {
    const { current } = this.#store;
    const settings = { ...current.value.settings, ...changed };
    const isStored = Object.keys(current.value.messages).length > 0;
    if (isStored) this.#store.change(this.#id, (c) => ({ ...c, settings }));
    else current.value = { ...current.value, settings };
  }
}

function newAnswer(parent: string, group: string, choice: number): Message {
  return { id: newId(), parent, role: "assistant", content: "", created: Date.now(), finish: null, group, choice };
}

/** The answers among which a question goes on are no longer compared. */
function withoutComparing(conversation: Parameters<typeof withComparing>[0], id: string): typeof conversation {
  const parent = conversation.messages[id]?.parent;
  return parent === undefined ? conversation : withComparing(conversation, parent, null);
}
