/** The open conversation in the page's address (`#/c/<id>`): it survives a reload, and Back leads to the one before. */

import { effect } from "@preact/signals";
import type { ChatStore } from "./store";

const PATTERN = /^#\/c\/([\w-]+)$/;

/** Opens what the address names, and keeps address and store in step from then on. */
export async function restoreOpened(store: ChatStore): Promise<void> {
  await openNamed(store);
  window.addEventListener("hashchange", () => void openNamed(store));
  effect(() => {
    const { id, messages, title } = store.current.value;
    document.title = `${title} · chatserve`;
    const hash = Object.keys(messages).length > 0 ? `#/c/${id}` : "";
    if (hash === location.hash) return;
    const address = `${location.pathname}${location.search}${hash}`;
    // A chat that gets its first message is no step of its own.
    if (location.hash === "") history.replaceState(null, "", address);
    else history.pushState(null, "", address);
  });
}

async function openNamed(store: ChatStore): Promise<void> {
  const id = PATTERN.exec(location.hash)?.[1];
  if (id === undefined || (await store.open(id))) return;
  history.replaceState(null, "", location.pathname + location.search);
}
