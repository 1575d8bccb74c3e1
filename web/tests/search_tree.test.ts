// @vitest-environment node
import { expect, test } from "vitest";
import type { TraceNode, TraceRecord, TraceState } from "../src/api/types";
import { SearchTree } from "../src/lib/search_tree";
import { layoutTree, type Shown } from "../src/lib/tree_layout";

function node(id: number, parent: number, text: string, state: TraceState = "kept", total = -id): TraceNode {
  return { id, parent, token: id, text, logprob: -1, total, state };
}

/** Two beams: "the" goes on to "the cat" and "the dog"; "a" was dropped, "cow" too. */
const BEAM: TraceRecord[] = [
  { step: 0, nodes: [node(1, 0, "the"), node(2, 0, "a", "dropped")] },
  { step: 1, nodes: [node(3, 1, " cat"), node(4, 1, " dog"), node(5, 1, " cow", "dropped")] },
];
const LAST: TraceRecord = {
  step: 2,
  nodes: [node(6, 3, ".", "finished"), node(7, 4, ".", "finished")],
  changed: [],
};
const VERDICT: TraceRecord = {
  step: 3,
  nodes: [],
  changed: [
    { id: 6, state: "returned", choice: 0 },
    { id: 7, state: "dropped" },
  ],
};

function treeOf(...records: unknown[]): SearchTree {
  const tree = new SearchTree();
  tree.read(records);
  return tree;
}

test("while it runs, what all hypotheses share is settled and the rest contested", () => {
  const tree = treeOf(...BEAM);
  expect(tree.hypotheses().map(({ text, state }) => [text, state])).toEqual([
    ["the cat", "live"],
    ["the dog", "live"],
  ]);
  expect(Object.fromEntries(tree.standings())).toEqual({ 1: "settled", 3: "contested", 4: "contested" });
});

test("a kept node that nothing goes on from has died out", () => {
  const tree = treeOf(...BEAM, { step: 2, nodes: [node(6, 3, " sat"), node(7, 3, " ran")] });
  expect(tree.hypotheses().map(({ text }) => text)).toEqual(["the cat sat", "the cat ran"]);
  expect(Object.fromEntries(tree.standings())).toEqual({ 1: "settled", 3: "settled", 6: "contested", 7: "contested" });
});

test("at the end the returned one comes first, and what it was chosen over stays listed", () => {
  const tree = treeOf(...BEAM, LAST, VERDICT);
  expect(tree.hypotheses().map(({ text, state }) => [text, state])).toEqual([
    ["the cat.", "returned"],
    ["the dog.", "dropped"],
  ]);
  expect([...tree.standings().values()]).toEqual(["returned", "returned", "returned"]);
});

test("records may come one by one, and are taken once", () => {
  const entries: unknown[] = [];
  const tree = new SearchTree();
  for (const record of [...BEAM, LAST]) {
    entries.push(record);
    tree.read(entries);
    tree.read(entries);
  }
  expect(tree.nodes.size).toBe(7);
  expect(tree.numSteps).toBe(3);
});

test("what is no tree is kept apart, and broken nodes make no cycle", () => {
  const tree = treeOf({ ways: [1, 2] }, "text", null, {
    step: 0,
    nodes: [node(3, 5, "x"), node(4, 4, "y"), node(5, 0, "z")],
  });
  expect(tree.others).toHaveLength(3);
  expect([...tree.nodes.keys()]).toEqual([5]);
});

/** A random search: every node has up to three children. */
function randomTree(seed: number): SearchTree {
  let state = seed;
  const random = () => {
    state = (state * 1103515245 + 12345) % 2147483648;
    return state / 2147483648;
  };
  const nodes: TraceNode[] = [];
  for (let id = 1; id <= 300; id++) {
    const parent = Math.floor(random() * Math.min(id, 40)) + Math.max(0, id - 40);
    nodes.push(
      node(id, Math.min(parent, id - 1), "x".repeat(Math.floor(random() * 12)), random() < 0.5 ? "kept" : "dropped"),
    );
  }
  return treeOf(...nodes.map((one, step) => ({ step, nodes: [one] })));
}

test.each<Shown>(["hypotheses", "recent", "all"])("no two parts of a drawing overlap (%s)", (shown) => {
  for (let seed = 1; seed <= 5; seed++) {
    const { segments, width, height } = layoutTree(randomTree(seed), shown);
    expect(segments.length).toBeGreaterThan(0);
    const isInside = segments.every((one) => one.x + one.width <= width && one.y < height);
    const overlapping = segments.flatMap((one, index) =>
      segments.slice(index + 1).filter((other) => {
        const isApart = one.x + one.width <= other.x || other.x + other.width <= one.x;
        return one.y === other.y && !isApart;
      }),
    );
    expect(isInside).toBe(true);
    expect(overlapping).toEqual([]);
  }
});

test("nodes in a row are one part; a fork begins new ones, linked to it", () => {
  const { segments, links } = layoutTree(treeOf(...BEAM), "all");
  expect(segments.map(({ label, standing }) => [label, standing])).toEqual([
    ["the", "settled"],
    ["cat", "contested"],
    ["dog", "contested"],
    ["cow", "dead"],
    ["a", "dead"],
  ]);
  expect(links).toHaveLength(3);
  expect(layoutTree(treeOf(...BEAM), "hypotheses").segments).toHaveLength(3);
});

test("a very large search is cut, and says so", () => {
  const nodes = Array.from({ length: 1000 }, (_, index) => node(index + 1, 0, "x", "dropped"));
  const { segments, numHidden } = layoutTree(treeOf({ step: 0, nodes }), "all");
  expect(segments.length + numHidden).toBe(1000);
  expect(numHidden).toBeGreaterThan(0);
});
