/** A store with an empty database, as a page that has just been opened; and waiting for what it does. */

import { afterEach, beforeEach, expect, vi } from "vitest";
import { Actions } from "../src/state/actions";
import { type Message, shownPath } from "../src/state/conversation";
import { Library } from "../src/state/library";
import { DEFAULT_SETTINGS } from "../src/state/settings";
import { Storage as Database } from "../src/state/storage";
import { ChatStore } from "../src/state/store";

let numDatabases = 0;
let database = "";

/** Another page over the same database. */
export function openPage() {
  const store = new ChatStore(new Database(database));
  store.newChat(DEFAULT_SETTINGS);
  return { store, actions: new Actions(store), library: new Library(store) };
}

/** From now on pages are opened in a browser that knows nothing. */
export function takeFreshDatabase(): void {
  database = `test-${numDatabases++}`;
}

export const last = (store: ChatStore) => shownPath(store.current.value).at(-1) as Message;

export const token = (text: string) => ({
  id: 1,
  text,
  bytes: [...new TextEncoder().encode(text)],
  logprob: -1,
  top: [],
});

/** Waits until nothing runs and all is stored. */
export async function finished(store: ChatStore): Promise<void> {
  await vi.waitFor(() => expect(store.generation.value).toBeNull());
  await store.settled();
}

beforeEach(takeFreshDatabase);

afterEach(() => {
  sessionStorage.clear();
  vi.unstubAllGlobals();
});
