/** The search that found an answer: a live tree, and its hypotheses as a table. */

import { useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { count, plural } from "../lib/format";
import { type Hypothesis, SearchTree } from "../lib/search_tree";
import { type Link, layoutTree, type Segment, type Shown, type TreeLayout } from "../lib/tree_layout";
import type { Message } from "../state/conversation";
import { useDetails } from "./details";

const MAX_LISTED = 12;

export function SearchView({ message, isLive }: { message: Message; isLive: boolean }) {
  const entries = useDetails(message, "trace", isLive);
  const [chosen, setShown] = useState<Shown | null>(null);
  const shown = chosen ?? (isLive ? "recent" : "hypotheses");
  const tree = useTree(message.id, entries);
  if (entries === null) return <p class="loading">Loading…</p>;
  if (tree.nodes.size === 0) return <OtherTrace entries={tree.others} isLive={isLive} />;
  const hypotheses = tree.hypotheses();
  const layout = layoutTree(tree, shown);
  return (
    <section class="search-view" aria-label="Search" data-testid="search-view" data-steps={tree.numSteps}>
      <header>
        <span>
          {plural(tree.numSteps, "step")}, {plural(tree.nodes.size, "candidate")}
          {hypotheses.length > 1 && `, ${count(hypotheses.length)} ${isLive ? "alive" : "hypotheses"}`}
        </span>
        <Filter shown={shown} onShow={setShown} />
      </header>
      <Drawing layout={layout} isLive={isLive} summary={summaryOf(hypotheses)} />
      {layout.numHidden > 0 && <p class="hint">{count(layout.numHidden)} more branches are not drawn.</p>}
      <Legend />
      <Table hypotheses={hypotheses} />
    </section>
  );
}

/** One tree for each message, which takes in only what is new. */
function useTree(id: string, entries: readonly unknown[] | null): SearchTree {
  // Another answer is another tree.
  const tree = useMemo(() => new SearchTree(), [id]);
  if (entries !== null) tree.read(entries);
  return tree;
}

const FILTERS: readonly { shown: Shown; label: string }[] = [
  { shown: "hypotheses", label: "Hypotheses" },
  { shown: "recent", label: "Last step" },
  { shown: "all", label: "All" },
];

function Filter({ shown, onShow }: { shown: Shown; onShow: (shown: Shown) => void }) {
  return (
    <span class="segments" role="group" aria-label="Candidates to draw">
      {FILTERS.map((filter) => (
        <button
          key={filter.shown}
          type="button"
          aria-pressed={shown === filter.shown}
          data-testid={`search-${filter.shown}`}
          onClick={() => onShow(filter.shown)}
        >
          {filter.label}
        </button>
      ))}
    </span>
  );
}

function Drawing({ layout, isLive, summary }: { layout: TreeLayout; isLive: boolean; summary: string }) {
  const scroller = useRef<HTMLDivElement>(null);
  // The search moves to the right: what happens now stays in view.
  useLayoutEffect(() => {
    if (isLive && scroller.current) scroller.current.scrollLeft = scroller.current.scrollWidth;
  }, [isLive, layout.width]);
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reachable by keyboard
    <div class="tree-scroll" ref={scroller} tabIndex={0} role="region" aria-label="Tree of the search">
      <svg
        class="tree"
        width={layout.width}
        height={layout.height}
        viewBox={`0 0 ${layout.width} ${layout.height}`}
        role="img"
        aria-label={summary}
        data-testid="tree"
      >
        {layout.links.map((link) => (
          <path key={`${link.to.x},${link.to.y}`} class={`link ${link.standing}`} d={curve(link)} />
        ))}
        {layout.segments.map((segment) => (
          <Part key={segment.id} segment={segment} />
        ))}
      </svg>
    </div>
  );
}

function Part({ segment }: { segment: Segment }) {
  const { x, y, width, standing, state } = segment;
  return (
    <g class={`segment ${standing} is-${state}`} data-testid="tree-segment">
      <title>{segment.text}</title>
      <rect x={x} y={y - 11} width={width} height={22} rx={6} />
      <text x={x + 8} y={y + 4}>
        {segment.label || "∅"}
      </text>
      {segment.isEnd && segment.total !== null && (
        <text class="score" x={x + width + 7} y={y + 4}>
          {segment.total.toFixed(2)}
        </text>
      )}
    </g>
  );
}

function curve({ from, to }: Link): string {
  const middle = (from.x + to.x) / 2;
  return `M${from.x} ${from.y}C${middle} ${from.y} ${middle} ${to.y} ${to.x} ${to.y}`;
}

function Legend() {
  return (
    <ul class="legend" aria-label="Legend">
      <li class="settled">settled, chosen</li>
      <li class="contested">contested</li>
      <li class="finished">finished</li>
      <li class="dead">dropped</li>
    </ul>
  );
}

function Table({ hypotheses }: { hypotheses: readonly Hypothesis[] }) {
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reachable by keyboard
    <div class="table-scroll" tabIndex={0} role="region" aria-label="Hypotheses">
      <table class="figures-table" data-testid="hypotheses">
        <thead>
          <tr>
            <th>State</th>
            <th class="align-right">Score</th>
            <th class="align-right">per token</th>
            <th class="align-right">Tokens</th>
            <th>Text</th>
          </tr>
        </thead>
        <tbody>
          {hypotheses.slice(0, MAX_LISTED).map((hypothesis) => (
            <tr key={hypothesis.id}>
              <td>{hypothesis.state}</td>
              <td class="align-right">{hypothesis.total?.toFixed(2) ?? "–"}</td>
              <td class="align-right">
                {hypothesis.total === null ? "–" : (hypothesis.total / hypothesis.length).toFixed(3)}
              </td>
              <td class="align-right">{hypothesis.length}</td>
              <td class="clipped" title={hypothesis.text}>
                {ending(hypothesis.text)}
              </td>
            </tr>
          ))}
        </tbody>
      </table>
      {hypotheses.length > MAX_LISTED && <p class="hint">{count(hypotheses.length - MAX_LISTED)} more.</p>}
    </div>
  );
}

/** What a decoder of another kind traced, as it came. */
function OtherTrace({ entries, isLive }: { entries: readonly unknown[]; isLive: boolean }) {
  if (entries.length === 0) {
    return (
      <p class="hint" data-testid="no-trace">
        {isLive ? "No trace yet." : "This answer has no trace: its decoder does not search, or traces were off."}
      </p>
    );
  }
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reachable by keyboard
    <pre class="raw-trace" tabIndex={0} data-testid="raw-trace">
      {entries.slice(-100).map((entry) => `${JSON.stringify(entry)}\n`)}
    </pre>
  );
}

function summaryOf(hypotheses: readonly Hypothesis[]): string {
  const best = hypotheses[0];
  if (best === undefined) return "Search tree";
  return `Search tree with ${plural(hypotheses.length, "hypothesis", "hypotheses")}; the best ends in “${ending(best.text)}”`;
}

function ending(text: string): string {
  const line = text.replaceAll("\n", " ↵ ");
  return line.length > 52 ? `…${line.slice(-52)}` : line;
}
