/** What the server and the page say to each other. Field names are those on the wire. */

/** The body of an error answer, and of an `error` event. */
export interface ApiErrorBody {
  message: string;
  type?: string;
  param?: string | null;
  code?: string | null;
}

export type Role = "system" | "user" | "assistant";

export interface WireMessage {
  role: Role;
  content: string;
}

/** Sampling fields of a request; what is absent is the server's default. */
export interface SamplingFields {
  temperature?: number;
  top_p?: number;
  top_k?: number;
  min_p?: number;
  presence_penalty?: number;
  frequency_penalty?: number;
  repetition_penalty?: number;
  max_tokens?: number;
  seed?: number;
  stop?: string[];
}

/** The body of `PUT /ui/stream/{id}`: that of `/v1/chat/completions`. */
export interface StreamBody extends SamplingFields {
  messages: WireMessage[];
  model?: string;
  decoder?: string;
  decoder_params?: Record<string, unknown>;
  n?: number;
  return_trace?: boolean;
  logprobs?: boolean;
  top_logprobs?: number;
  continue_final_message?: boolean;
  add_generation_prompt?: boolean;
}

export interface OpenEvent {
  request_id: string;
  model: string;
  decoder: string;
  n: number;
  prompt_tokens: number;
  max_model_len: number;
}

/** `position` is the place in the queue, from 1; `prefilled` of `prompt_tokens` are computed. */
export interface StatusEvent {
  state: "queued" | "prefill" | "decode";
  position?: number;
  prefilled?: number;
  prompt_tokens?: number;
  cached_tokens?: number;
}

/** `bytes` are the token's true bytes; none when it stands for no text. */
export interface TokenAlternative {
  id: number;
  text: string;
  bytes?: number[];
  logprob: number;
}

/** `logprob` is null for a token that was forced; `bytes` are its true bytes. */
export interface Token {
  id: number;
  text: string;
  bytes: number[];
  logprob: number | null;
  top: TokenAlternative[];
  /** Ours: the user chose it, the model was made to go on from it. */
  forced?: boolean;
}

export interface DeltaEvent {
  choice: number;
  text: string;
  tokens?: Token[];
  finish_reason?: string | null;
}

export interface TraceEvent {
  entries: unknown[];
}

export interface Usage {
  prompt_tokens: number;
  completion_tokens: number;
  cached_tokens?: number;
  computed_tokens?: number;
}

/** Seconds; null for a phase that was never reached. */
export interface Timings {
  queue_s: number | null;
  prefill_s: number | null;
  decode_s: number | null;
  ttft_s: number | null;
}

export interface DoneEvent {
  usage: Usage;
  timings: Timings;
  stopped?: boolean;
}

export interface ErrorEvent {
  error: ApiErrorBody;
}

/** The named events of `/ui/stream/{id}`. */
export type StreamEvent =
  | { type: "open"; data: OpenEvent }
  | { type: "status"; data: StatusEvent }
  | { type: "delta"; data: DeltaEvent }
  | { type: "trace"; data: TraceEvent }
  | { type: "done"; data: DoneEvent }
  | { type: "error"; data: ErrorEvent };

/** Counts of KV blocks; `block_size` is in tokens. */
export interface BlockCounts {
  total: number;
  used: number;
  shared: number;
  cached: number;
  free: number;
  swapped: number;
  block_size: number;
}

export interface EngineRequest {
  id: string;
  decoder: string;
  state: "waiting" | "prefill" | "running" | "preempted";
  sequences: number;
  blocks: number;
  tokens: number;
}

export interface EngineRates {
  tokens_per_s: number;
  requests_per_s: number;
}

/** One value for each block, or [value, count] runs when there are many. */
export type PerBlock = number[] | [value: number, count: number][];

/** The `state` event of `/ui/engine`. `map`: 0 free, 1 used, 2 shared, 3 cached, 4 pinned; `owners`: index of a request, or -1. */
export interface EngineState {
  blocks: BlockCounts;
  map: PerBlock;
  owners: PerBlock;
  requests: EngineRequest[];
  rates: EngineRates;
}

/** The `change` event: what changed. */
export interface EngineChange {
  blocks?: BlockCounts;
  map?: [block: number, code: number, owner: number][];
  requests?: EngineRequest[];
  rates?: EngineRates;
}

/** A node of a search; node 0, the prompt, is never sent. `total` sums the log-probabilities from the prompt to here. */
export interface TraceNode {
  id: number;
  parent: number;
  token: number;
  text: string;
  logprob: number | null;
  total: number | null;
  state: TraceState;
  drafted?: boolean;
}

export type TraceState = "kept" | "dropped" | "finished" | "returned";

/** A record of `SearchTree`; decoders may trace other things too. */
export interface TraceRecord {
  step: number;
  nodes: TraceNode[];
  changed?: { id: number; state: TraceState; choice?: number }[];
}

export interface ModelInfo {
  id: string;
  max_model_len?: number;
}

export interface DecoderInfo {
  id: string;
  name: string;
  description: string;
  version?: string;
  distribution?: string;
  parameters: JsonSchema;
  state: string;
  reason?: string | null;
}

export interface PrefixInfo {
  id: string;
  tokens: number;
}

/** The part of JSON Schema that parameter structs produce. */
export interface JsonSchema {
  $ref?: string;
  $defs?: Record<string, JsonSchema>;
  title?: string;
  description?: string;
  type?: string | string[];
  enum?: unknown[];
  const?: unknown;
  anyOf?: JsonSchema[];
  items?: JsonSchema | boolean;
  properties?: Record<string, JsonSchema>;
  required?: string[];
  default?: unknown;
  minimum?: number;
  maximum?: number;
  exclusiveMinimum?: number;
  exclusiveMaximum?: number;
  minLength?: number;
  maxLength?: number;
  pattern?: string;
}
