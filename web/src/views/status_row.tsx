/** One line about the answer that runs, or the last one: where it stands, how fast it is, how full the context is. */

import { count, rate, seconds } from "../lib/format";
import { useApp } from "../state/app";
import type { Message } from "../state/conversation";
import { ended, NO_PROGRESS, type Progress } from "../state/progress";

export function StatusRow() {
  const { store, server } = useApp();
  const generation = store.generation.value;
  const last = store.path.value.at(-1);
  const progress = generation ? generation.progress.value : progressOf(last);
  if (progress === null) return <div class="status-row" data-testid="status-row" />;
  const limit = progress.contextLength ?? server.model.value?.max_model_len ?? null;
  const used = progress.promptTokens === null ? null : progress.promptTokens + progress.longest;
  return (
    <div class="status-row" data-testid="status-row" data-phase={generation ? progress.phase : "idle"}>
      <span class="phase" data-testid="phase">
        {generation ? <Phase progress={progress} /> : "Done"}
      </span>
      {progress.timeToFirst !== null && (
        <Figure name="first token" testId="ttft" value={seconds(progress.timeToFirst)} />
      )}
      {progress.tokensPerSecond !== null && (
        <Figure name="tok/s" testId="tok-s" value={rate(progress.tokensPerSecond)} isAfter />
      )}
      {progress.tokens > 0 && <Figure name="tokens" testId="tokens" value={count(progress.tokens)} isAfter />}
      {progress.cachedTokens !== null && (
        <Figure name="cached" testId="cached" value={count(progress.cachedTokens)} isAfter />
      )}
      {used !== null && limit !== null && <Context used={used} limit={limit} />}
    </div>
  );
}

function Phase({ progress }: { progress: Progress }) {
  switch (progress.phase) {
    case "connecting":
      return <>Sending…</>;
    case "queued":
      return <>Queued{progress.position === null ? "" : ` #${progress.position}`}</>;
    case "prefill":
      return <Prefill done={progress.prefilled} total={progress.promptTokens ?? 0} />;
    case "decode":
      return <>Decoding</>;
    case "reconnecting":
      return <>Connection lost, reconnecting…</>;
  }
}

function Prefill({ done, total }: { done: number; total: number }) {
  const share = total > 0 ? Math.min(done / total, 1) : 0;
  return (
    <>
      Prefill {Math.round(100 * share)} %
      <progress class="meter" max={1} value={share} aria-label="Prefill" />
    </>
  );
}

function Context({ used, limit }: { used: number; limit: number }) {
  return (
    <span class="figure context" data-testid="context" title="Context: tokens used of those the model can see">
      <span>context</span> <b>{count(used)}</b> / {count(limit)}
      <meter class="meter" min={0} max={limit} high={limit * 0.9} value={used} aria-label="Context used" />
    </span>
  );
}

interface FigureProps {
  name: string;
  value: string;
  testId: string;
  isAfter?: boolean;
}

function Figure({ name, value, testId, isAfter = false }: FigureProps) {
  return (
    <span class="figure" data-testid={testId}>
      {isAfter ? (
        <>
          <b>{value}</b> {name}
        </>
      ) : (
        <>
          {name} <b>{value}</b>
        </>
      )}
    </span>
  );
}

function progressOf(message: Message | undefined): Progress | null {
  if (!message?.usage || !message.timings) return null;
  const { usage, timings, numTokens } = message;
  return { ...ended(NO_PROGRESS, { usage, timings }), longest: numTokens ?? usage.completion_tokens };
}
