/** `Panels`: what is open around the chat. */

import { signal } from "@preact/signals";

export type SidePanel = "settings" | "engine";

const NARROW = "(max-width: 900px)";

export class Panels {
  readonly side = signal<SidePanel | null>(null);
  readonly hasList = signal(!isNarrow());
  readonly hasHelp = signal(false);
  /** The message that is being edited. */
  readonly editing = signal<string | null>(null);
  /** Grows when the composer, or the search field, is to take the focus. */
  readonly composerFocus = signal(0);
  readonly searchFocus = signal(0);

  toggleSide(panel: SidePanel): void {
    this.side.value = this.side.value === panel ? null : panel;
    if (isNarrow()) this.hasList.value = false;
  }

  toggleList(): void {
    this.hasList.value = !this.hasList.value;
    if (isNarrow()) this.side.value = null;
  }

  focusSearch(): void {
    this.hasList.value = true;
    this.searchFocus.value++;
  }

  /** On a narrow screen the list lies over the chat: it goes once something was picked from it. */
  afterPick(): void {
    if (isNarrow()) this.hasList.value = false;
    this.composerFocus.value++;
  }

  /** Closes the uppermost thing; false when nothing was open. */
  closeTop(): boolean {
    if (this.hasHelp.value) this.hasHelp.value = false;
    else if (this.side.value) this.side.value = null;
    else if (isNarrow() && this.hasList.value) this.hasList.value = false;
    else return false;
    return true;
  }
}

export function isNarrow(): boolean {
  return window.matchMedia?.(NARROW).matches ?? false;
}
