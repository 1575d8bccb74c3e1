/**
 * `closeHalfOpen`: a text that is still being written, with what it has opened closed, so that it can be drawn as what it
 * will be: `**bo` is bold, `[name](htt` is its name, and a half fence is nothing yet.
 */

const FENCE = /^ {0,3}(`{3,}|~{3,})([^\n]*)$/;
const HALF_FENCE = /(^|\n) {0,3}(?:`{1,2}|~{1,2})$/;

export function closeHalfOpen(source: string): string {
  if (isInFence(source)) return source.replace(HALF_FENCE, "$1");
  const text = source.replace(HALF_FENCE, "$1");
  const start = text.lastIndexOf("\n\n") + 1;
  return text.slice(0, start) + closeInline(text.slice(start));
}

function isInFence(source: string): boolean {
  let open: string | null = null;
  for (const line of source.split("\n")) {
    const fence = FENCE.exec(line);
    if (fence === null) continue;
    const [, run = "", info = ""] = fence;
    if (open === null) {
      if (!(run.startsWith("`") && info.includes("`"))) open = run;
    } else if (run[0] === open[0] && run.length >= open.length && info.trim() === "") {
      open = null;
    }
  }
  return open !== null;
}

function closeInline(text: string): string {
  const code = openCodeSpan(text);
  if (code !== null) {
    const body = text.slice(code.end);
    return body.trim() ? text + code.run : text.slice(0, code.start);
  }
  const cut = cutLink(text);
  return closeEmphasis(cut);
}

/** The backticks of a code span that nothing closes. */
function openCodeSpan(text: string): { start: number; end: number; run: string } | null {
  let open: { start: number; end: number; run: string } | null = null;
  for (const match of text.matchAll(/\\[\s\S]|`+/g)) {
    const run = match[0];
    if (run.startsWith("\\")) continue;
    if (open === null) open = { start: match.index, end: match.index + run.length, run };
    else if (run.length === open.run.length) open = null;
  }
  return open;
}

/** A link without its end becomes its name, an image without its end nothing. */
function cutLink(text: string): string {
  return text.replace(/(!?)\[([^[\]\n]*)(?:\]\([^()\s]*(?: [^()\n]*)?)?$/, (whole, bang: string, name: string) => {
    if (bang) return "";
    return whole.startsWith("[ ") || /^\[[ xX]?$/.test(whole) ? whole : name;
  });
}

/** Adds what closes open `**`, `*`, `__`, `_` and `~~`; an opener with nothing behind it is left out. */
function closeEmphasis(text: string): string {
  const open: { run: string; end: number }[] = [];
  for (const match of text.matchAll(/\\[\s\S]|(`+)[\s\S]*?[^`]\1(?!`)|\*{1,3}|_{1,3}|~~/g)) {
    const run = match[0];
    if (!/^[*_~]+$/.test(run)) continue;
    const before = text[match.index - 1] ?? "\n";
    const end = match.index + run.length;
    const after = text[end] ?? "";
    const inWord = run.startsWith("_") && /[\p{L}\p{N}]/u.test(before) && /[\p{L}\p{N}]/u.test(after);
    if (inWord) continue;
    const last = open.at(-1);
    if (last && last.run === run && !/\s/.test(before)) open.pop();
    else if (last && after === "" && last.run.startsWith(run) && !/\s/.test(before))
      return closeEmphasis(text.slice(0, -run.length));
    else if (after === "" || !/\s/.test(after)) open.push({ run, end });
  }
  let closed = text;
  const dangling = open.at(-1);
  if (dangling && !text.slice(dangling.end).trim()) {
    closed = text.slice(0, dangling.end - dangling.run.length);
    open.pop();
  }
  const trailing = /\s*$/.exec(closed)?.[0] ?? "";
  const closers = open.reverse().map(({ run }) => run);
  return closers.length > 0 ? closed.slice(0, closed.length - trailing.length) + closers.join("") + trailing : closed;
}
