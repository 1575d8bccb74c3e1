/** `Progress`: what the status row tells of a running answer, kept up to date from the stream's events. */

import type { DoneEvent, OpenEvent, StatusEvent, Timings, Usage } from "../api/types";

export type Phase = "connecting" | "queued" | "prefill" | "decode" | "reconnecting";

export interface Progress {
  phase: Phase;
  position: number | null;
  prefilled: number;
  promptTokens: number | null;
  cachedTokens: number | null;
  /** Tokens of all choices; counted as they come, exact at the end. */
  tokens: number;
  /** Tokens of the longest choice. */
  longest: number;
  /** Over the last seconds while decoding, over the whole answer at the end. */
  tokensPerSecond: number | null;
  /** Seconds from sending to the first text. */
  timeToFirst: number | null;
  contextLength: number | null;
}

export const NO_PROGRESS: Progress = {
  phase: "connecting",
  position: null,
  prefilled: 0,
  promptTokens: null,
  cachedTokens: null,
  tokens: 0,
  longest: 0,
  tokensPerSecond: null,
  timeToFirst: null,
  contextLength: null,
};

export function opened(progress: Progress, event: OpenEvent): Progress {
  const phase = progress.phase === "connecting" ? "queued" : progress.phase;
  return { ...progress, phase, promptTokens: event.prompt_tokens, contextLength: event.max_model_len };
}

export function moved(progress: Progress, event: StatusEvent): Progress {
  return {
    ...progress,
    phase: event.state,
    position: event.position ?? null,
    prefilled: event.prefilled ?? progress.prefilled,
    promptTokens: event.prompt_tokens ?? progress.promptTokens,
    cachedTokens: event.cached_tokens ?? progress.cachedTokens,
  };
}

export function ended(progress: Progress, event: DoneEvent): Progress {
  return {
    ...progress,
    tokens: event.usage.completion_tokens,
    promptTokens: event.usage.prompt_tokens,
    cachedTokens: event.usage.cached_tokens ?? progress.cachedTokens,
    tokensPerSecond: decodeRate(event.usage, event.timings),
    timeToFirst: event.timings.ttft_s ?? progress.timeToFirst,
  };
}

/** Tokens a second while decoding, or null when there is nothing to divide. */
export function decodeRate(usage: Usage, timings: Timings): number | null {
  return timings.decode_s && usage.completion_tokens > 0 ? usage.completion_tokens / timings.decode_s : null;
}

/** Counts tokens and tells their rate over the last two seconds. */
export class RateMeter {
  readonly #marks: { time: number; total: number }[] = [];
  total = 0;

  /** `time` in milliseconds. */
  add(count: number, time: number): void {
    this.total += count;
    this.#marks.push({ time, total: this.total });
    while (this.#marks.length > 2 && (this.#marks[0]?.time ?? 0) < time - 2000) this.#marks.shift();
  }

  get perSecond(): number | null {
    const first = this.#marks[0];
    const last = this.#marks.at(-1);
    if (first === undefined || last === undefined || last.time - first.time < 100) return null;
    return ((last.total - first.total) * 1000) / (last.time - first.time);
  }
}
