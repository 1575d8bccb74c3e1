import { h, render } from "preact";
import { MarkdownStream } from "../src/lib/markdown_stream";
import { MarkdownBlock } from "../src/views/markdown";

/** Draws a finished answer into a fresh element of the document. */
export function renderMarkdown(text: string): HTMLElement {
  return renderBlocks(MarkdownStream.blocksOf(text));
}

/** Draws an answer that is still being written, given in pieces; every state in between is drawn, too. */
export function renderStream(
  pieces: readonly string[],
  each: (element: HTMLElement) => void = () => undefined,
): HTMLElement {
  const stream = new MarkdownStream();
  const element = freshElement();
  for (const piece of pieces) {
    stream.append(piece);
    draw(element, [...stream.frozen, ...stream.open]);
    each(element);
  }
  return element;
}

function renderBlocks(blocks: ReturnType<typeof MarkdownStream.blocksOf>): HTMLElement {
  const element = freshElement();
  draw(element, blocks);
  return element;
}

function draw(element: HTMLElement, blocks: ReturnType<typeof MarkdownStream.blocksOf>): void {
  render(
    blocks.map((block) => h(MarkdownBlock, { key: block.key, block, isOpen: true })),
    element,
  );
}

function freshElement(): HTMLElement {
  const element = document.createElement("div");
  document.body.replaceChildren(element);
  return element;
}
