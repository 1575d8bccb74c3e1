import { expect, test } from "vitest";
import { closeHalfOpen } from "../src/lib/half_open";
import { MarkdownStream } from "../src/lib/markdown_stream";
import { renderMarkdown, renderStream } from "./render";

test.each([
  ["some **bo", "some **bo**"],
  ["some **bold*", "some **bold**"],
  ["some **", "some "],
  ["an *it", "an *it*"],
  ["*a **b", "*a **b***"],
  ["done **bold** and", "done **bold** and"],
  ["~~gone", "~~gone~~"],
  ["code `x = 1", "code `x = 1`"],
  ["code `", "code "],
  ["[name](https://exa", "name"],
  ["see [na", "see na"],
  ["a ![pic](htt", "a "],
  ["2 * 3 * 4", "2 * 3 * 4"],
  ["snake_case_name", "snake_case_name"],
  ["- item\n- ", "- item\n- "],
  ["- [ ", "- [ "],
  ["first\n\nthen **b", "first\n\nthen **b**"],
  ["```py\nx = **", "```py\nx = **"],
  ["```py\nx\n``", "```py\nx\n"],
  ["text\n``", "text\n"],
  ["`a` and `b", "`a` and `b`"],
  ["\\*not", "\\*not"],
])("half-open %j is drawn as %j", (source, closed) => {
  expect(closeHalfOpen(source)).toBe(closed);
});

const TEXT = [
  "# Title\n\nA paragraph with **bold**, `code` and a [link](https://example.org).\n",
  "It goes on\nand on.\n\n",
  "1. first\n2. second\n\n   more of second\n3. third\n\n",
  "```python\ndef f(x):\n\n    return x ** 2  # **not bold**\n```\n\n",
  "| a | b |\n|---|---|\n| 1 | 2 |\n\n> a quote\n> goes on\n\n- [ ] todo\n- [x] done\n\nThe end.",
].join("");

test.each([1, 3, 7, 50, 1000])("a streamed answer ends up as a whole one, %i characters at a time", (size) => {
  const pieces = TEXT.match(new RegExp(`[\\s\\S]{1,${size}}`, "g")) ?? [];
  const streamed = renderStream(pieces).innerHTML;
  expect(streamed).toBe(renderMarkdown(TEXT).innerHTML);
});

test("a half-open fence is a code block from its first line on", () => {
  const texts: (string | undefined)[] = [];
  renderStream(["Look:\n\n", "```", "py", "\nx = 1", "\n``", "`", "\n\nend"], (element) => {
    texts.push(element.querySelector("pre")?.textContent ?? undefined);
  });
  expect(texts.slice(3)).toEqual(["x = 1", "x = 1", "x = 1", "x = 1"]);
});

test("no piece of the text is lost or drawn twice", () => {
  const text = Array.from({ length: 300 }, (_, index) => `Paragraph ${index} of *many*.`).join("\n\n");
  const element = renderStream(text.match(/[\s\S]{1,97}/g) ?? []);
  expect(element.textContent).toBe(text.replaceAll("\n\n", "").replaceAll("*", ""));
});

test("what is lexed again stays short: blocks, list items and pieces of endless paragraphs are frozen", () => {
  for (const unit of ["A paragraph.\n\n", "- item number one\n", "word after word ", "line of a poem\n"]) {
    const stream = new MarkdownStream();
    let longest = 0;
    for (let total = 0; total < 12_000; total += unit.length) {
      stream.append(unit);
      if (total % 128 < unit.length) stream.open;
      longest = Math.max(longest, stream.tailLength);
    }
    expect(longest).toBeLessThan(6000);
  }
});

test("pieces of an endless paragraph say what it says", () => {
  const text = Array.from({ length: 4000 }, (_, index) => `word${index}`).join(" ");
  const element = renderStream(text.match(/[\s\S]{1,500}/g) ?? []);
  expect(element.textContent).toBe(text);
  expect(element.querySelectorAll("p.part").length).toBeGreaterThan(2);
});

test("a definition is known to the parts behind it", () => {
  const paragraphs = "x\n\n".repeat(5);
  const element = renderStream([`[here]: https://example.org\n\n${paragraphs}`, "See [here] now.", "\n\nEnd"]);
  expect(element.querySelector("a")?.getAttribute("href")).toBe("https://example.org");
});
