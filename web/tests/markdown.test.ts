import { expect, test } from "vitest";
import { safeAddress, unescapeEntities } from "../src/lib/markdown";
import { highlight } from "../src/views/highlighted_code";
import { renderMarkdown, renderStream } from "./render";

const ATTACKS = [
  '<img src=x onerror="window.P=1">',
  "<script>window.P=1</script>",
  "<svg onload=window.P=1>",
  '<iframe srcdoc="<script>parent.P=1</script>"></iframe>',
  "<svg><animate onbegin=window.P=1 attributeName=x dur=1s>",
  '<a href="javascript:window.P=1">x</a>',
  "<details open ontoggle=window.P=1>",
  "<math><mtext><table><mglyph><style><img src=x onerror=window.P=1>",
];

/** No element and no attribute that could run anything or fetch anything. */
function expectHarmless(element: HTMLElement): void {
  expect((window as { P?: unknown }).P).toBeUndefined();
  expect(
    element.querySelector("script, iframe, img, svg:not(.icon), object, embed, style, link, form, math, details"),
  ).toBeNull();
  for (const node of element.querySelectorAll("*")) {
    for (const { name, value } of node.attributes) {
      expect(name).not.toMatch(/^on|^srcdoc$|^style$|^src$/);
      if (name === "href") expect(value).toMatch(/^(https?:|mailto:)/);
    }
  }
}

for (const attack of ATTACKS) {
  test(`h1: shown, not run: ${attack}`, () => {
    for (const text of [
      attack,
      `Look: ${attack} there`,
      `- item\n- ${attack}`,
      `> ${attack}`,
      `| a |\n|---|\n| ${attack} |`,
    ]) {
      const element = renderMarkdown(text);
      expectHarmless(element);
      expect(element.textContent).toContain(attack.slice(0, 8));
    }
  });

  test(`h1: the same while it streams, cut anywhere: ${attack}`, () => {
    const element = renderStream([...`Look: ${attack} there`], expectHarmless);
    expect(element.textContent).toBe(`Look: ${attack} there`);
  });
}

test("links lead only to the web and to mail", () => {
  for (const address of [
    "javascript:alert(1)",
    "JaVaScRiPt:alert(1)",
    "java\tscript:alert(1)",
    " javascript:alert(1)",
    "vbscript:x",
    "data:text/html,<script>alert(1)</script>",
    "file:///etc/passwd",
    "blob:https://x/y",
    "//evil.example",
    "/v1/models",
  ]) {
    expect(safeAddress(address)).toBeNull();
    expectHarmless(renderMarkdown(`[x](${address}) ![x](${address}) <${address}>`));
  }
  expect(safeAddress("https://example.org/a?b=c")).toBe("https://example.org/a?b=c");
  const link = renderMarkdown("[name](https://example.org)").querySelector("a");
  expect(link?.getAttribute("rel")).toContain("noopener");
});

test("pictures are links: nothing is fetched", () => {
  const element = renderMarkdown("![a cat](https://example.org/cat.png) ![x](data:image/svg+xml;base64,PHN2Zz4=)");
  expectHarmless(element);
  expect(element.querySelector("a")?.textContent).toContain("a cat");
});

const INCLUDE = "#include <stdio.h>\nList<int> x;";

test("h3: no angle bracket vanishes, in a fence, outside and in a code span", () => {
  const element = renderMarkdown(`\`\`\`c\n${INCLUDE}\n\`\`\`\n\n${INCLUDE}\n\nsee \`List<int>\` and &lt;b&gt;`);
  expect(element.querySelector("pre")?.textContent).toBe(INCLUDE);
  const paragraphs = [...element.querySelectorAll("p")].map((paragraph) => paragraph.textContent);
  expect(paragraphs[0]).toContain("#include <stdio.h>");
  expect(paragraphs[0]).toContain("List<int> x;");
  expect(element.querySelector("p code")?.textContent).toBe("List<int>");
  expect(paragraphs[1]).toContain("<b>");
});

test("h3: the copy button gives the exact source", async () => {
  let copied = "";
  Object.defineProperty(navigator, "clipboard", {
    configurable: true,
    value: {
      writeText: async (text: string) => {
        copied = text;
      },
    },
  });
  const source = `${INCLUDE}\n\tindented  \n\n  end`;
  renderMarkdown(`\`\`\`c\n${source}\n\`\`\``).querySelector<HTMLElement>("[data-testid=copy]")?.click();
  await Promise.resolve();
  expect(copied).toBe(source);
});

test("coloured code is spans with classes, and says what the source says", () => {
  const source = 'const a = "<img src=x onerror=alert(1)>" // <script>';
  const element = document.createElement("code");
  element.innerHTML = highlight(source, "javascript") ?? "";
  expect(element.textContent).toBe(source);
  expect(element.querySelectorAll(":not(span)")).toHaveLength(0);
  expect(highlight(source, "no-such-language")).toBeNull();
});

test("character references are resolved once, unknown ones are kept", () => {
  expect(unescapeEntities("&lt;b&gt; &amp;amp; &#8594; &#x41; &nope; &#xD800;")).toBe("<b> &amp; → A &nope; \ufffd");
});

test("blocks of every kind", () => {
  const element = renderMarkdown(
    "# One\n\ntext **bold** *em* ~~del~~\n\n1. a\n2. b\n   - c\n\n- [x] done\n\n> quote\n\n---\n\n| a | b |\n|:-:|--:|\n| 1 | 2 |",
  );
  expect(element.querySelector("h3")?.textContent).toBe("One");
  expect(element.querySelector("strong")?.textContent).toBe("bold");
  expect(element.querySelectorAll("ol > li")).toHaveLength(2);
  expect(element.querySelector("ol ul li")?.textContent).toBe("c");
  expect(element.querySelector<HTMLInputElement>("li input")?.checked).toBe(true);
  expect(element.querySelector("blockquote, hr, table")).not.toBeNull();
  expect(element.querySelector("td.align-right")?.textContent).toBe("2");
});
