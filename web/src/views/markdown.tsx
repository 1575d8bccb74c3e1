/**
 * Markdown tokens as elements. Text becomes text nodes: nothing that a model or a user wrote is ever read as HTML. (The only
 * place of the page that sets HTML is `highlighted_code.tsx`.)
 */

import { Component, type ComponentChild, type VNode } from "preact";
import { inner, type MarkedToken, safeAddress, type Tokens, unescapeEntities } from "../lib/markdown";
import type { Block } from "../lib/markdown_stream";
import { CodeBlock } from "./code_block";

interface MarkdownBlockProps {
  block: Block;
  /** Whether the block may still grow; only finished code is coloured. */
  isOpen: boolean;
}

/** One block; drawn again only when its source changed. */
export class MarkdownBlock extends Component<MarkdownBlockProps> {
  override shouldComponentUpdate(next: MarkdownBlockProps): boolean {
    const { block, isOpen } = this.props;
    const [before, after] = [block.token, next.block.token];
    return isOpen !== next.isOpen || before.raw !== after.raw || before.type !== after.type;
  }

  override render({ block, isOpen }: MarkdownBlockProps): ComponentChild {
    return drawBlock(block.token, isOpen, block.isPart);
  }
}

function drawBlock(token: MarkedToken, isOpen: boolean, isPart = false): ComponentChild {
  switch (token.type) {
    case "paragraph":
      return <p class={isPart ? "part" : undefined}>{drawAll(inner(token), isOpen)}</p>;
    case "heading":
      return drawHeading(token, isOpen);
    case "code":
      return <CodeBlock source={token.text} language={languageOf(token.lang)} isOpen={isOpen} />;
    case "list":
      return drawList(token, isOpen);
    case "blockquote":
      return <blockquote>{drawAll(inner(token), isOpen)}</blockquote>;
    case "table":
      return drawTable(token, isOpen);
    case "hr":
      return <hr />;
    case "space":
    case "def":
      return null;
    default:
      return drawInline(token, isOpen);
  }
}

function drawAll(tokens: readonly MarkedToken[], isOpen: boolean): ComponentChild[] {
  return tokens.map((token) => drawBlock(token, isOpen));
}

function drawInline(token: MarkedToken, isOpen: boolean): ComponentChild {
  switch (token.type) {
    case "strong":
      return <strong>{drawAll(inner(token), isOpen)}</strong>;
    case "em":
      return <em>{drawAll(inner(token), isOpen)}</em>;
    case "del":
      return <del>{drawAll(inner(token), isOpen)}</del>;
    case "codespan":
      return <code>{token.text}</code>;
    case "br":
      return <br />;
    case "link":
      return drawLink(token, isOpen);
    case "image":
      return drawImage(token);
    case "checkbox":
      return (
        <input type="checkbox" checked={token.checked} disabled aria-label={token.checked ? "done" : "not done"} />
      );
    case "text":
      return "tokens" in token && token.tokens ? drawAll(inner(token), isOpen) : unescapeEntities(token.text);
    case "escape":
      return token.text;
    default:
      return token.raw;
  }
}

/** The page has headings of its own above these: an answer's first level is the page's third. */
function drawHeading(token: Tokens.Heading, isOpen: boolean): VNode {
  const Tag = (["h3", "h4", "h5", "h6", "h6", "h6"] as const)[token.depth - 1] ?? "h6";
  return <Tag class={`heading-${token.depth}`}>{drawAll(inner(token), isOpen)}</Tag>;
}

function drawList(token: Tokens.List, isOpen: boolean): VNode {
  const items = token.items.map((item, index) => (
    <li key={index} class={item.task ? "task" : undefined}>
      {drawAll(inner(item), isOpen)}
    </li>
  ));
  return token.ordered ? <ol start={Number(token.start) || 1}>{items}</ol> : <ul>{items}</ul>;
}

function drawTable(token: Tokens.Table, isOpen: boolean): VNode {
  const alignClass = (index: number) => (token.align[index] ? `align-${token.align[index]}` : undefined);
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reachable by keyboard
    <div class="table-scroll" tabIndex={0} role="region" aria-label="Table">
      <table>
        <thead>
          <tr>
            {token.header.map((cell, index) => (
              <th key={index} class={alignClass(index)}>
                {drawAll(inner(cell), isOpen)}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {token.rows.map((row, index) => (
            <tr key={index}>
              {row.map((cell, column) => (
                <td key={column} class={alignClass(column)}>
                  {drawAll(inner(cell), isOpen)}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function drawLink(token: Tokens.Link, isOpen: boolean): ComponentChild {
  const address = safeAddress(token.href);
  const name = drawAll(inner(token), isOpen);
  if (address === null) return name;
  return (
    <a href={address} title={token.title ?? undefined} target="_blank" rel="noopener noreferrer nofollow">
      {name}
    </a>
  );
}

/** Pictures are not fetched (nothing leaves the machine): a link to one, or its description. */
function drawImage(token: Tokens.Image): ComponentChild {
  const address = safeAddress(token.href);
  const name = `🖼 ${token.text || "image"}`;
  if (address === null) return name;
  return (
    <a href={address} target="_blank" rel="noopener noreferrer nofollow">
      {name}
    </a>
  );
}

function languageOf(info: string | undefined): string {
  return /^[\w+#.-]+/.exec(info ?? "")?.[0].toLowerCase() ?? "";
}
