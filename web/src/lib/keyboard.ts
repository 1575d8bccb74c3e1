/** Keys: what Enter means in the composer, and the shortcuts of the page. */

type KeyLike = Pick<KeyboardEvent, "key" | "isComposing" | "keyCode" | "shiftKey" | "ctrlKey" | "metaKey" | "altKey">;

/**
 * Whether the key belongs to an input method (Japanese, Chinese, Korean, accents). Safari ends the composition before it
 * reports the Enter that did so; that one has code 229.
 */
export function isComposing(event: Pick<KeyLike, "isComposing" | "keyCode">): boolean {
  return event.isComposing || event.keyCode === 229;
}

/** Whether the key sends what is written. Shift+Enter breaks the line, and an input method's Enter does neither. */
export function isSend(event: KeyLike): boolean {
  return event.key === "Enter" && !event.shiftKey && !event.altKey && !isComposing(event);
}

export interface Shortcut {
  /** As shown: parts joined by "+". */
  keys: string;
  does: string;
}

export const SHORTCUTS: readonly Shortcut[] = [
  { keys: "Enter", does: "Send" },
  { keys: "Shift+Enter", does: "New line" },
  { keys: "Esc", does: "Stop the answer, or close what is open" },
  { keys: "/", does: "Go to the message field" },
  { keys: "Ctrl+K", does: "Search conversations" },
  { keys: "Alt+N", does: "New chat" },
  { keys: "Alt+R", does: "Regenerate the last answer" },
  { keys: "Alt+E", does: "Edit your last message" },
  { keys: "Alt+,", does: "Previous version of the last answer" },
  { keys: "Alt+.", does: "Next version of the last answer" },
  { keys: "Alt+S", does: "Decoding settings" },
  { keys: "Alt+B", does: "Engine view" },
  { keys: "Alt+L", does: "Conversation list" },
  { keys: "?", does: "This list" },
];

export type Command =
  | "escape"
  | "compose"
  | "search"
  | "new"
  | "regenerate"
  | "edit"
  | "previous"
  | "next"
  | "settings"
  | "engine"
  | "list"
  | "help";

// By `code` for Alt: on a Mac, Alt changes what a key types.
const ALT_CODES: Record<string, Command> = {
  KeyN: "new",
  KeyR: "regenerate",
  KeyE: "edit",
  Comma: "previous",
  Period: "next",
  KeyS: "settings",
  KeyB: "engine",
  KeyL: "list",
};

/** The shortcut that a key press means, or null. Plain keys count only outside of fields. */
export function commandOf(event: KeyboardEvent): Command | null {
  if (isComposing(event)) return null;
  if (event.key === "Escape") return "escape";
  const hasCommandKey = event.ctrlKey || event.metaKey;
  if (hasCommandKey && !event.altKey && event.key.toLowerCase() === "k") return "search";
  if (event.altKey && !hasCommandKey) return ALT_CODES[event.code] ?? null;
  if (hasCommandKey || event.altKey || isField(event.target)) return null;
  if (event.key === "?") return "help";
  return event.key === "/" ? "compose" : null;
}

function isField(target: EventTarget | null): boolean {
  return (
    target instanceof HTMLElement && (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName))
  );
}
