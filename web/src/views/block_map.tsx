/** The KV blocks as cells of a map, drawn on a canvas: there may be tens of thousands. */

import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import type { EngineView } from "../api/engine_feed";
import { count } from "../lib/format";
import { cellAt, gridFor } from "../lib/grid";

/** In the order of their codes; the last has none, it is not on the device. */
const KINDS = ["free", "used", "shared", "cached", "pinned", "swapped"] as const;
const SWAPPED = KINDS.indexOf("swapped");
const MEANINGS: Record<string, string> = {
  used: "held by one sequence",
  shared: "held by several sequences",
  cached: "held by none, kept for equal beginnings",
  free: "empty",
  pinned: "belongs to a registered prefix",
  swapped: "moved to the host's memory",
};

export function BlockMap({ view }: { view: EngineView }) {
  const canvas = useRef<HTMLCanvasElement>(null);
  const width = useWidth(canvas);
  const [pointed, setPointed] = useState<number | null>(null);
  // Swapped blocks come behind those of the device.
  const numCells = view.codes.length + view.blocks.swapped;
  const grid = gridFor(numCells, width);
  const scheme = useScheme();
  // The map's arrays are changed in place; their version tells when.
  useLayoutEffect(() => {
    if (canvas.current && width > 0) paint(canvas.current, view, grid, pointed);
  }, [view, view.version, width, pointed, scheme]);
  const block = pointed !== null && pointed < numCells ? pointed : null;
  return (
    <div class="block-map">
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reachable by keyboard */}
      <div class="block-map-scroll" tabIndex={0} role="region" aria-label="Map of the KV blocks">
        <canvas
          ref={canvas}
          role="img"
          aria-label={summaryOf(view)}
          data-testid="block-map"
          onPointerMove={(event) => setPointed(cellAt(grid, event.offsetX, event.offsetY))}
          onPointerLeave={() => setPointed(null)}
        />
      </div>
      <p class="block-line" data-testid="block-line">
        {block === null ? "\u00a0" : describe(view, block)}
      </p>
      <Counts view={view} />
    </div>
  );
}

function Counts({ view }: { view: EngineView }) {
  const { blocks } = view;
  const numPinned = view.codes.reduce((sum, code) => sum + (code === 4 ? 1 : 0), 0);
  const counts: [string, number][] = [
    ["used", blocks.used],
    ["shared", blocks.shared],
    ["cached", blocks.cached],
    ["free", blocks.free],
    ["swapped", blocks.swapped],
  ];
  if (numPinned > 0) counts.push(["pinned", numPinned]);
  return (
    <ul class="block-counts">
      {counts.map(([kind, number]) => (
        <li key={kind} title={MEANINGS[kind]} data-testid={`blocks-${kind}`}>
          <i class={`swatch ${kind}`} />
          {kind} <b>{count(number)}</b>
        </li>
      ))}
    </ul>
  );
}

function describe(view: EngineView, block: number): string {
  if (block >= view.codes.length) return `A swapped block, ${MEANINGS.swapped}`;
  const kind = KINDS[view.codes[block] ?? 0] ?? "free";
  const owner = view.requests[view.owners[block] ?? -1];
  return `Block ${count(block)}: ${kind}${owner ? `, ${owner.decoder} (${owner.id.slice(-8)})` : `, ${MEANINGS[kind]}`}`;
}

function paint(
  canvas: HTMLCanvasElement,
  view: EngineView,
  grid: ReturnType<typeof gridFor>,
  pointed: number | null,
): void {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(grid.width * ratio);
  canvas.height = Math.round(grid.height * ratio);
  canvas.style.height = `${grid.height}px`;
  const context = canvas.getContext("2d");
  if (!context) return;
  context.scale(ratio, ratio);
  const style = getComputedStyle(canvas);
  const colours = KINDS.map((kind) => style.getPropertyValue(`--block-${kind}`).trim());
  const size = grid.pitch - grid.gap;
  const owner = pointed === null ? -1 : (view.owners[pointed] ?? -1);
  for (let block = 0; block < grid.length; block++) {
    const code = view.codes[block] ?? SWAPPED;
    const isDimmed = owner >= 0 && view.owners[block] !== owner;
    context.globalAlpha = isDimmed ? 0.3 : 1;
    context.fillStyle = colours[code] ?? colours[0] ?? "";
    context.fillRect((block % grid.columns) * grid.pitch, Math.floor(block / grid.columns) * grid.pitch, size, size);
  }
}

/** The width of an element, as it changes. */
function useWidth(element: { current: HTMLElement | null }): number {
  const [width, setWidth] = useState(0);
  useEffect(() => {
    const watched = element.current;
    if (!watched) return;
    const observer = new ResizeObserver(() => setWidth(watched.clientWidth));
    observer.observe(watched);
    return () => observer.disconnect();
  }, [element]);
  return width;
}

/** Changes when the system's colours do: a canvas is not repainted by itself. */
function useScheme(): boolean {
  const [isDark, setDark] = useState(false);
  useEffect(() => {
    const query = window.matchMedia("(prefers-color-scheme: dark)");
    const update = () => setDark(query.matches);
    update();
    query.addEventListener("change", update);
    return () => query.removeEventListener("change", update);
  }, []);
  return isDark;
}

function summaryOf({ blocks }: EngineView): string {
  return `KV blocks: ${blocks.used} used, ${blocks.shared} shared, ${blocks.cached} cached, ${blocks.free} free of ${blocks.total}`;
}
