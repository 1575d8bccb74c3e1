/** `Presets`: named settings, and those that new chats begin with. Kept in `localStorage`. */

import { signal } from "@preact/signals";
import { BUILT_IN_PRESETS, type ChatSettings, type Preset, settingsFrom } from "./settings";

const PRESETS_ITEM = "chatserve.presets";
const LAST_ITEM = "chatserve.settings";

export class Presets {
  readonly own = signal<readonly Preset[]>(read<unknown[]>(PRESETS_ITEM, []).flatMap(presetFrom));

  get all(): readonly Preset[] {
    return [...BUILT_IN_PRESETS, ...this.own.value];
  }

  /** Adds a preset, in place of one with the same name. */
  save(name: string, settings: ChatSettings): void {
    this.#set([...this.own.value.filter((preset) => preset.name !== name), { name, settings }]);
  }

  remove(name: string): void {
    this.#set(this.own.value.filter((preset) => preset.name !== name));
  }

  #set(presets: readonly Preset[]): void {
    this.own.value = presets;
    write(PRESETS_ITEM, presets);
  }
}

/** What was set last: new chats begin with it. */
export function lastSettings(): ChatSettings {
  return settingsFrom(read<unknown>(LAST_ITEM, {}));
}

export function rememberSettings(settings: ChatSettings): void {
  write(LAST_ITEM, settings);
}

function presetFrom(stored: unknown): Preset[] {
  const { name, settings } = (stored ?? {}) as Partial<Preset>;
  return typeof name === "string" ? [{ name, settings: settingsFrom(settings) }] : [];
}

function read<T>(item: string, otherwise: T): T {
  try {
    const value = JSON.parse(localStorage.getItem(item) ?? "null") as T | null;
    return value === null || Array.isArray(value) !== Array.isArray(otherwise) ? otherwise : value;
  } catch {
    return otherwise;
  }
}

function write(item: string, value: unknown): void {
  try {
    localStorage.setItem(item, JSON.stringify(value));
  } catch {
    // A full or forbidden storage: they are kept until the page goes.
  }
}
