/** Where the parts of a search tree are drawn: from left to right, one row for each end. */

import { type Hypothesis, PROMPT, type SearchTree, type Standing } from "./search_tree";

/** Nodes in a row without a fork, drawn as one label. */
export interface Segment {
  id: number;
  label: string;
  /** All of its text; the label may be cut. */
  text: string;
  standing: Standing;
  state: string;
  total: number | null;
  isEnd: boolean;
  x: number;
  y: number;
  width: number;
}

export interface Link {
  from: { x: number; y: number };
  to: { x: number; y: number };
  standing: Standing;
}

export interface TreeLayout {
  segments: Segment[];
  links: Link[];
  width: number;
  height: number;
  /** Rows that there was no room for. */
  numHidden: number;
}

/** A segment that waits for its place. */
interface Place {
  id: number;
  x: number;
  /** The row of its parent. */
  row: number;
  from: { x: number; y: number } | null;
}

export type Shown = "hypotheses" | "recent" | "all";

const CHARACTER = 7.25;
const PADDING = 16;
const GAP = 34;
const ROW = 32;
const MAX_LABEL = 34;
const MAX_ROWS = 120;
const SCORE_WIDTH = 60;

export function layoutTree(tree: SearchTree, shown: Shown): TreeLayout {
  const hypotheses = tree.hypotheses();
  const standings = tree.standings(hypotheses);
  const wanted = wantedNodes(tree, hypotheses, shown);
  const layout: TreeLayout = { segments: [], links: [], width: 0, height: 0, numHidden: 0 };
  new Placer(tree, standings, wanted, layout).placeAll();
  return layout;
}

/** The nodes to draw: what leads to a hypothesis, and of the rest as much as is asked for. */
function wantedNodes(tree: SearchTree, hypotheses: readonly Hypothesis[], shown: Shown): Set<number> {
  const wanted = new Set(hypotheses.flatMap(({ id }) => tree.pathTo(id)));
  if (shown === "hypotheses") return wanted;
  for (const id of tree.nodes.keys()) {
    if (shown === "recent" && id < tree.frontier) continue;
    for (const on of tree.pathTo(id).reverse()) {
      if (wanted.has(on)) break;
      wanted.add(on);
    }
  }
  return wanted;
}

/**
 * Puts every segment on the first row, from its parent's down, where there is room for it. What is alive comes first, so
 * the best hypothesis keeps to its row, and what was dropped on the way hangs below it.
 */
class Placer {
  readonly #tree: SearchTree;
  readonly #standings: ReadonlyMap<number, Standing>;
  readonly #wanted: ReadonlySet<number>;
  readonly #layout: TreeLayout;
  /** For each row the taken stretches. */
  readonly #rows: { from: number; to: number }[][] = [];

  constructor(
    tree: SearchTree,
    standings: ReadonlyMap<number, Standing>,
    wanted: ReadonlySet<number>,
    layout: TreeLayout,
  ) {
    this.#tree = tree;
    this.#standings = standings;
    this.#wanted = wanted;
    this.#layout = layout;
  }

  /** Depth first: what hangs off near the end of a branch comes right below it, and links stay short. */
  placeAll(): void {
    const waiting = this.#childrenOf(PROMPT).map((id): Place => ({ id, x: 4, row: 0, from: null }));
    waiting.reverse();
    for (let next = waiting.pop(); next; next = waiting.pop()) waiting.push(...this.#place(next).reverse());
    this.#layout.height = Math.max(this.#rows.length, 1) * ROW + 8;
  }

  /** Places one segment; returns where those behind it may go. */
  #place({ id, x, row, from }: Place): Place[] {
    const chain = this.#chain(id);
    const below = this.#childrenOf(chain.at(-1) ?? id);
    const segment = this.#segment(chain, x, below.length === 0);
    const right = x + segment.width;
    const taken = this.#take(row, x - GAP / 2, right + (segment.isEnd ? SCORE_WIDTH : GAP / 2));
    if (taken === null) {
      this.#layout.numHidden++;
      return [];
    }
    segment.y = taken * ROW + ROW / 2 + 4;
    this.#layout.segments.push(segment);
    if (from) this.#layout.links.push({ from, to: { x, y: segment.y }, standing: segment.standing });
    this.#layout.width = Math.max(this.#layout.width, right + (segment.isEnd ? SCORE_WIDTH : 0) + 4);
    const end = { x: right, y: segment.y };
    return below.map((child) => ({ id: child, x: right + GAP, row: taken, from: end }));
  }

  /** Takes the stretch in the first row that has room for it; null when there is none. */
  #take(first: number, from: number, to: number): number | null {
    for (let row = first; row < MAX_ROWS; row++) {
      const stretches = this.#rows[row] ?? [];
      if (stretches.some((other) => from < other.to && other.from < to)) continue;
      this.#rows[row] = [...stretches, { from, to }];
      return row;
    }
    return null;
  }

  /** The nodes from this one on that are drawn as one: up to a fork, an end, or a change of standing. */
  #chain(first: number): number[] {
    const chain = [first];
    for (let last = first; ; ) {
      const below = this.#childrenOf(last);
      const next = below[0];
      const isOne = below.length === 1 && next !== undefined && this.#standing(next) === this.#standing(first);
      if (!isOne || this.#tree.nodes.get(last)?.state === "finished") return chain;
      chain.push(next);
      last = next;
    }
  }

  #segment(chain: readonly number[], x: number, isEnd: boolean): Segment {
    const nodes = chain.flatMap((id) => this.#tree.nodes.get(id) ?? []);
    const text = nodes.map((node) => node.text).join("");
    const last = nodes.at(-1);
    const standing = this.#standing(chain[0] ?? PROMPT);
    const label = shortened(text, standing === "settled");
    return {
      id: chain[0] ?? PROMPT,
      label,
      text,
      standing,
      state: last?.state ?? "kept",
      total: last?.total ?? null,
      isEnd,
      x,
      y: 0,
      width: Math.max([...label].length, 1) * CHARACTER + PADDING,
    };
  }

  #standing(id: number): Standing {
    return this.#standings.get(id) ?? "dead";
  }

  /** Those to be drawn, living ones first. */
  #childrenOf(id: number): number[] {
    const children = this.#tree.childrenOf(id).filter((child) => this.#wanted.has(child));
    return children.sort((a, b) => Number(this.#standings.has(b)) - Number(this.#standings.has(a)));
  }
}

/** What is settled is cut at its beginning (the news are at its end), the rest in the middle. */
function shortened(text: string, isSettled: boolean): string {
  const characters = [...text.replaceAll("\n", "↵").replaceAll("\t", " ").trimStart()];
  if (characters.length <= MAX_LABEL) return characters.join("");
  if (isSettled) return `…${characters.slice(1 - MAX_LABEL).join("")}`;
  const half = Math.floor((MAX_LABEL - 1) / 2);
  return `${characters.slice(0, half).join("")}…${characters.slice(-half).join("")}`;
}
