/** The blocks of an answer, in chunks: those out of sight cost nothing, and those that are done are not looked at again. */

import { Component, type ComponentChild } from "preact";
import type { Block } from "../lib/markdown_stream";
import { MarkdownBlock } from "./markdown";

const CHUNK = 16;

interface MarkdownBlocksProps {
  blocks: readonly Block[];
  /** Whether the last block may still grow. */
  isOpen: boolean;
}

export function MarkdownBlocks({ blocks, isOpen }: MarkdownBlocksProps) {
  const numChunks = Math.ceil(blocks.length / CHUNK);
  return (
    <>
      {Array.from({ length: numChunks }, (_, index) => (
        <Chunk
          // Blocks are only ever added at the end.
          key={index}
          blocks={blocks.slice(index * CHUNK, (index + 1) * CHUNK)}
          isOpen={isOpen && index === numChunks - 1}
        />
      ))}
    </>
  );
}

class Chunk extends Component<MarkdownBlocksProps> {
  override shouldComponentUpdate({ blocks, isOpen }: MarkdownBlocksProps): boolean {
    const before = this.props;
    const isSame =
      blocks.length === before.blocks.length && blocks.every((block, index) => block === before.blocks[index]);
    return !isSame || isOpen !== before.isOpen;
  }

  override render({ blocks, isOpen }: MarkdownBlocksProps): ComponentChild {
    return (
      <div class="blocks">
        {blocks.map((block, index) => (
          <MarkdownBlock key={block.key} block={block} isOpen={isOpen && index === blocks.length - 1} />
        ))}
      </div>
    );
  }
}
