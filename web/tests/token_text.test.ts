// @vitest-environment node
import { expect, test } from "vitest";
import type { Token } from "../src/api/types";
import { percent } from "../src/lib/format";
import { shadeOf, TokenText, textOf } from "../src/lib/token_text";

/** Tokens of the given numbers of bytes. */
function tokensOf(text: string, lengths: readonly number[]): Token[] {
  const bytes = [...new TextEncoder().encode(text)];
  return lengths.map((length, id) => ({ id, text: "?", bytes: bytes.splice(0, length), logprob: -1, top: [] }));
}

test("a character over several tokens is shown with the last of them, and cannot be branched into", () => {
  const tokens = tokensOf("a🦙b日", [1, 2, 2, 1, 1, 2]);
  const text = new TokenText();
  text.read(tokens);
  expect(text.shown.map(({ text: shown }) => shown)).toEqual(["a", "", "🦙", "b", "", "日"]);
  expect(text.shown.map(({ before }) => before)).toEqual(["", "a", null, "a🦙", "a🦙b", null]);
  expect(textOf(tokens)).toBe("a🦙b日");
});

test("every cut of a text into tokens shows the whole text", () => {
  const whole = "é🦙ü";
  const length = new TextEncoder().encode(whole).length;
  for (let mask = 0; mask < 2 ** (length - 1); mask++) {
    const lengths: number[] = [];
    let run = 1;
    for (let bit = 0; bit < length - 1; bit++) {
      if ((mask >> bit) & 1) {
        lengths.push(run);
        run = 1;
      } else run++;
    }
    lengths.push(run);
    const text = new TokenText("given ");
    text.read(tokensOf(whole, lengths));
    expect(text.shown.map(({ text: shown }) => shown).join("")).toBe(whole);
    for (const { before } of text.shown) expect(before ?? "given ").toMatch(/^given (é(🦙(ü)?)?)?$/u);
  }
});

test("an end token, which has no text, is shown by its name", () => {
  const text = new TokenText();
  text.read([{ id: 2, text: "<|im_end|>", bytes: [], logprob: 0, top: [] }]);
  expect(text.shown[0]).toMatchObject({ text: "<|im_end|>", isSpecial: true, before: "" });
});

test("the list may grow", () => {
  const tokens = tokensOf("abc", [1, 1, 1]);
  const text = new TokenText();
  for (let length = 0; length <= 3; length++) text.read(tokens.slice(0, length));
  expect(text.shown).toHaveLength(3);
});

test("shades and percentages", () => {
  expect([1, 0.8, 0.5, 0.3, 0.1, 0.01].map((probability) => shadeOf(Math.log(probability)))).toEqual([
    0, 1, 2, 3, 4, 5,
  ]);
  expect([1, 0.5, 0.0123, 0.00004].map((probability) => percent(Math.log(probability)))).toEqual([
    "100%",
    "50.0%",
    "1.2%",
    "0.004%",
  ]);
});
