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
  /** Where the first branches come from. */
  rootY: number;
  /** Rows that there was no room for. */
  numHidden: number;
}

export type Shown = "hypotheses" | "recent" | "all";

const CHARACTER = 7.25;
const PADDING = 16;
const GAP = 34;
const ROW = 32;
const MAX_LABEL = 34;
const MAX_ROWS = 240;
const SCORE_WIDTH = 60;

export function layoutTree(tree: SearchTree, shown: Shown): TreeLayout {
  const hypotheses = tree.hypotheses();
  const standings = tree.standings(hypotheses);
  const wanted = wantedNodes(tree, hypotheses, shown);
  const layout: TreeLayout = { segments: [], links: [], width: 0, height: 0, rootY: 0, numHidden: 0 };
  const placer = new Placer(tree, standings, wanted, layout);
  placer.placeAll();
  layout.height = Math.max(placer.numRows, 1) * ROW + 8;
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

class Placer {
  readonly #tree: SearchTree;
  readonly #standings: ReadonlyMap<number, Standing>;
  readonly #wanted: ReadonlySet<number>;
  readonly #layout: TreeLayout;
  numRows = 0;

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

  placeAll(): void {
    const first = this.#place(this.#childrenOf(PROMPT), 4);
    this.#layout.rootY = middle(first.map(({ y }) => y)) ?? 0;
  }

  /** Places branches below each other; returns where they are linked from. */
  #place(ids: readonly number[], x: number): { y: number; standing: Standing }[] {
    return ids.flatMap((id) => {
      const y = this.#placeSegment(id, x);
      return y === null ? [] : [{ y, standing: this.#standing(id) }];
    });
  }

  #placeSegment(first: number, x: number): number | null {
    const chain = this.#chain(first);
    const last = chain.at(-1) ?? first;
    const below = this.#childrenOf(last);
    if (below.length === 0 && this.numRows >= MAX_ROWS) {
      this.#layout.numHidden++;
      return null;
    }
    const segment = this.#segment(chain, x, below.length === 0);
    const placed = this.#place(below, x + segment.width + GAP);
    segment.y = middle(placed.map((below) => below.y)) ?? this.numRows++ * ROW + ROW / 2 + 4;
    this.#layout.segments.push(segment);
    const from = { x: x + segment.width, y: segment.y };
    for (const { y, standing } of placed) {
      this.#layout.links.push({ from, to: { x: x + segment.width + GAP, y }, standing });
    }
    const right = x + segment.width + (segment.isEnd ? SCORE_WIDTH : 0);
    this.#layout.width = Math.max(this.#layout.width, right + 4);
    return segment.y;
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

  #childrenOf(id: number): number[] {
    return this.#tree.childrenOf(id).filter((child) => this.#wanted.has(child));
  }
}

/** Halfway between the first and the last. */
function middle(ys: readonly number[]): number | null {
  const [first, last] = [ys[0], ys.at(-1)];
  return first === undefined || last === undefined ? null : (first + last) / 2;
}

/** What is settled is cut at its beginning (the news are at its end), the rest in the middle. */
function shortened(text: string, isSettled: boolean): string {
  const characters = [...text.replaceAll("\n", "↵").replaceAll("\t", " ")];
  if (characters.length <= MAX_LABEL) return characters.join("");
  if (isSettled) return `…${characters.slice(1 - MAX_LABEL).join("")}`;
  const half = Math.floor((MAX_LABEL - 1) / 2);
  return `${characters.slice(0, half).join("")}…${characters.slice(-half).join("")}`;
}
