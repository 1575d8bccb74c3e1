/** Turns between windows of this page: only one at a time may have an answer of a conversation written. */

/** Waits for the turn named so; resolves with what ends it. A window that closes gives its turn up. */
export function takeTurn(name: string): Promise<() => void> {
  // Missing on pages that are not a secure context; then nobody waits.
  if (!navigator.locks) return Promise.resolve(() => undefined);
  return new Promise((taken) => {
    const held = () => new Promise<void>((release) => taken(release));
    navigator.locks.request(`chatserve.${name}`, held).catch(() => taken(() => undefined));
  });
}
