/** `SearchTree`: the nodes that a decoder traced, put together from its records; and what of them is settled. */

import type { TraceNode, TraceRecord } from "../api/types";

/** Node 0, which stands for the prompt. */
export const PROMPT = 0;

/** How a node stands: in every answer that is still possible, in some, in none any more; or part of an answer. */
export type Standing = "settled" | "contested" | "dead" | "returned";

/** `dropped`: it had finished, and better ones were returned in its place. */
export type HypothesisState = "live" | "finished" | "returned" | "dropped";

export interface Hypothesis {
  id: number;
  text: string;
  length: number;
  total: number | null;
  state: HypothesisState;
}

export class SearchTree {
  readonly nodes = new Map<number, TraceNode>();
  readonly #children = new Map<number, number[]>();
  /** Records that are no tree, as they are. */
  readonly others: unknown[] = [];
  /** Nodes at which hypotheses ended, whatever became of them. */
  readonly #finished = new Set<number>();
  #numRead = 0;
  #lastStep = -1;
  /** First node of the last record that kept any. */
  #frontier = 1;

  get numSteps(): number {
    return this.#lastStep + 1;
  }

  /** Takes what is new in a growing list of trace entries. */
  read(entries: readonly unknown[]): void {
    for (; this.#numRead < entries.length; this.#numRead++) {
      const entry = entries[this.#numRead];
      if (isRecord(entry)) this.#add(entry);
      else this.others.push(entry);
    }
  }

  childrenOf(id: number): readonly number[] {
    return this.#children.get(id) ?? [];
  }

  /** Nodes at which a hypothesis ends that is, may be or might have been an answer; returned ones and better ones first. */
  hypotheses(): Hypothesis[] {
    const ends = [...this.nodes.values()].flatMap((node) => {
      const state = this.#endState(node);
      return state === null ? [] : [this.#hypothesis(node, state)];
    });
    const isOver = ends.some(({ state }) => state === "returned");
    return ends
      .filter(({ state }) => !isOver || state !== "live")
      .sort((a, b) => Number(b.state === "returned") - Number(a.state === "returned") || mean(b) - mean(a));
  }

  /** How every node on the way to a hypothesis stands; nodes that are not listed are dead. */
  standings(hypotheses: readonly Hypothesis[] = this.hypotheses()): Map<number, Standing> {
    const isOver = hypotheses.some(({ state }) => state === "returned");
    const possible = hypotheses.filter(({ state }) => (isOver ? state === "returned" : state !== "dropped"));
    const numBelow = new Map<number, number>();
    for (const { id } of possible) for (const on of this.pathTo(id)) numBelow.set(on, (numBelow.get(on) ?? 0) + 1);
    const entries = [...numBelow].map(([id, below]): [number, Standing] => {
      if (isOver) return [id, "returned"];
      return [id, below === possible.length ? "settled" : "contested"];
    });
    return new Map(entries);
  }

  /** Node ids from the first token to this one. */
  pathTo(id: number): number[] {
    const path: number[] = [];
    for (let node = this.nodes.get(id); node !== undefined; node = this.nodes.get(node.parent)) path.push(node.id);
    return path.reverse();
  }

  /** The step's first node id, from which on nodes count as recent. */
  get frontier(): number {
    return this.#frontier;
  }

  #add(record: TraceRecord): void {
    this.#lastStep = Math.max(this.#lastStep, record.step);
    const kept = record.nodes.find((node) => node.state !== "dropped");
    for (const node of record.nodes) {
      // A parent's id is smaller than its child's: no cycles, whatever is sent.
      if (node.id <= node.parent || this.nodes.has(node.id)) continue;
      this.nodes.set(node.id, { ...node });
      if (node.state === "finished") this.#finished.add(node.id);
      const siblings = this.#children.get(node.parent);
      if (siblings) siblings.push(node.id);
      else this.#children.set(node.parent, [node.id]);
    }
    if (kept) this.#frontier = kept.id;
    for (const { id, state } of record.changed ?? []) {
      const node = this.nodes.get(id);
      if (node) node.state = state;
      if (state === "finished") this.#finished.add(id);
    }
  }

  #endState(node: TraceNode): HypothesisState | null {
    if (node.state === "returned" || this.#finished.has(node.id))
      return node.state === "kept" ? "finished" : node.state;
    if (node.state === "dropped" || node.id < this.#frontier) return null;
    const goesOn = this.childrenOf(node.id).some((child) => this.nodes.get(child)?.state !== "dropped");
    return goesOn ? null : "live";
  }

  #hypothesis(node: TraceNode, state: HypothesisState): Hypothesis {
    const path = this.pathTo(node.id).map((id) => this.nodes.get(id));
    return {
      id: node.id,
      text: path.map((on) => on?.text ?? "").join(""),
      length: path.length,
      total: node.total,
      state,
    };
  }
}

/** Log-probability a token; what has none comes last. */
function mean({ total, length }: Hypothesis): number {
  return total === null ? -Infinity : total / Math.max(length, 1);
}

function isRecord(entry: unknown): entry is TraceRecord {
  const record = entry as Partial<TraceRecord> | null;
  return (
    typeof record === "object" && record !== null && typeof record.step === "number" && Array.isArray(record.nodes)
  );
}
