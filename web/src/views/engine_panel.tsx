/** The engine as it works: its KV blocks, its requests, its speed. */

import { useEffect, useState } from "preact/hooks";
import { EngineFeed, type EngineView } from "../api/engine_feed";
import type { EngineRequest } from "../api/types";
import { count, rate } from "../lib/format";
import { BlockMap } from "./block_map";
import { SidePanel } from "./side_panel";
import { Sparkline } from "./sparkline";

export function EnginePanel() {
  const { view, isLost } = useEngine();
  return (
    <SidePanel title="Engine" testId="engine-panel">
      {isLost && (
        <p class="hint" role="status" data-testid="engine-lost">
          Connection lost, trying again…
        </p>
      )}
      {view === null ? <p class="loading">Connecting…</p> : <Engine view={view} />}
    </SidePanel>
  );
}

function Engine({ view }: { view: EngineView }) {
  const { blocks, rates, requests } = view;
  const tokens = useHistory(rates.tokens_per_s, view.version);
  return (
    <>
      <section class="panel-section">
        <dl class="tiles">
          <Tile name="tokens/s" value={rate(rates.tokens_per_s)} testId="engine-tokens" />
          <Tile name="requests/s" value={rates.requests_per_s.toFixed(1)} testId="engine-requests-rate" />
          <Tile name="KV in use" value={`${percentUsed(view)} %`} testId="engine-used" />
        </dl>
        <Sparkline values={tokens} label="Tokens per second over the last minute" />
      </section>
      <section class="panel-section">
        <h3>KV blocks</h3>
        <BlockMap view={view} />
        <p class="hint">
          {count(blocks.total)} blocks of {blocks.block_size} tokens. Point at one to see whose it is.
        </p>
      </section>
      <section class="panel-section">
        <h3>Requests</h3>
        <Requests requests={requests} />
      </section>
    </>
  );
}

function Tile({ name, value, testId }: { name: string; value: string; testId: string }) {
  return (
    <div>
      <dt>{name}</dt>
      <dd data-testid={testId}>{value}</dd>
    </div>
  );
}

function Requests({ requests }: { requests: readonly EngineRequest[] }) {
  if (requests.length === 0) {
    return (
      <p class="subtle" data-testid="no-requests">
        The engine is idle.
      </p>
    );
  }
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: what scrolls must be reachable by keyboard
    <div class="table-scroll" tabIndex={0} role="region" aria-label="Requests">
      <table class="figures-table" data-testid="requests">
        <thead>
          <tr>
            <th>Decoder</th>
            <th>State</th>
            <th class="align-right" title="Sequences">
              Seqs
            </th>
            <th class="align-right">Blocks</th>
            <th class="align-right">Tokens</th>
          </tr>
        </thead>
        <tbody>
          {requests.map((request) => (
            <tr key={request.id} title={request.id} data-state={request.state}>
              <td>{request.decoder}</td>
              <td>
                <span class={`state state-${request.state}`}>{request.state}</span>
              </td>
              <td class="align-right">{count(request.sequences)}</td>
              <td class="align-right">{count(request.blocks)}</td>
              <td class="align-right">{count(request.tokens)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

/** The engine's state while the panel is open. */
function useEngine(): { view: EngineView | null; isLost: boolean } {
  const [view, setView] = useState<EngineView | null>(null);
  const [isLost, setLost] = useState(false);
  useEffect(() => {
    const feed = new EngineFeed(setView, setLost);
    void feed.run();
    return () => feed.stop();
  }, []);
  return { view, isLost };
}

const HISTORY = 120;

/** The last values, one for each version of the view. */
function useHistory(value: number, version: number): readonly number[] {
  const [values, setValues] = useState<readonly number[]>([]);
  // A new version is a new value, equal to the one before or not.
  useEffect(() => setValues((before) => [...before, value].slice(-HISTORY)), [version]);
  return values;
}

function percentUsed({ blocks }: EngineView): string {
  return blocks.total > 0 ? ((100 * (blocks.used + blocks.shared)) / blocks.total).toFixed(1) : "0";
}
