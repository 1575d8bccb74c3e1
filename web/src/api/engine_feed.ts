/** `EngineFeed`: the state of the engine, kept up to date over a connection that is made again when it breaks. */

import { readEvents } from "./events";
import { request } from "./http";
import type { BlockCounts, EngineChange, EngineRates, EngineRequest, EngineState, PerBlock } from "./types";

/** The engine as it is now. The arrays are changed in place; `version` tells when. */
export interface EngineView {
  version: number;
  blocks: BlockCounts;
  /** For each block 0 free, 1 used, 2 shared, 3 cached, 4 pinned. */
  codes: Uint8Array;
  /** For each block the index of one of the requests that hold it, or -1. */
  owners: Int32Array;
  requests: EngineRequest[];
  rates: EngineRates;
}

const RETRY_MS = 1000;

export class EngineFeed {
  readonly #onView: (view: EngineView) => void;
  readonly #onLost: (isLost: boolean) => void;
  readonly #abort = new AbortController();

  constructor(onView: (view: EngineView) => void, onLost: (isLost: boolean) => void) {
    this.#onView = onView;
    this.#onLost = onLost;
  }

  /** Watches until `stop`. */
  async run(): Promise<void> {
    while (!this.#abort.signal.aborted) {
      try {
        await this.#watch();
      } catch {
        // The server is down or restarting; the views show that they are not up to date.
      }
      if (this.#abort.signal.aborted) return;
      this.#onLost(true);
      await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
    }
  }

  stop(): void {
    this.#abort.abort();
  }

  async #watch(): Promise<void> {
    const response = await request("ui/engine", { signal: this.#abort.signal });
    if (response.body === null) return;
    let view: EngineView | null = null;
    for await (const { name, data } of readEvents(response.body)) {
      if (name === "state") view = viewOf(JSON.parse(data) as EngineState);
      else if (name === "change" && view !== null) view = changed(view, JSON.parse(data) as EngineChange);
      if (view === null) continue;
      this.#onLost(false);
      this.#onView(view);
    }
  }
}

export function viewOf(state: EngineState): EngineView {
  const { total } = state.blocks;
  return {
    version: 0,
    blocks: state.blocks,
    codes: Uint8Array.from(spread(state.map, total)),
    owners: Int32Array.from(spread(state.owners, total)),
    requests: state.requests,
    rates: state.rates,
  };
}

export function changed(view: EngineView, change: EngineChange): EngineView {
  for (const [block, code, owner] of change.map ?? []) {
    view.codes[block] = code;
    view.owners[block] = owner;
  }
  return {
    ...view,
    version: view.version + 1,
    blocks: change.blocks ?? view.blocks,
    requests: change.requests ?? view.requests,
    rates: change.rates ?? view.rates,
  };
}

/** Values for each block, from a list or from runs. */
function spread(values: PerBlock, total: number): number[] {
  if (!Array.isArray(values[0])) return values as number[];
  const list = (values as [number, number][]).flatMap(([value, count]) => new Array<number>(count).fill(value));
  return list.slice(0, total);
}
