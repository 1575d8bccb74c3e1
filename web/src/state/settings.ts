/** `ChatSettings`: how the answers of a conversation are made, and the body of a request from them. */

import type { SamplingFields, StreamBody, WireMessage } from "../api/types";
import { isRecord } from "../lib/record";

export interface ChatSettings {
  system: string;
  /** Empty: the server decides, from n and the temperature. */
  decoder: string;
  /** By decoder, so that what was entered is there when one comes back to it. */
  decoderParams: Record<string, Record<string, unknown>>;
  n: number;
  sampling: SamplingFields;
  /** Whether to ask for log-probabilities and alternatives of every token. */
  hasTokens: boolean;
  alternatives: number;
  /** Whether to ask for the trace of a search. */
  hasTrace: boolean;
}

export const DEFAULT_SETTINGS: ChatSettings = {
  system: "",
  decoder: "",
  decoderParams: {},
  n: 1,
  sampling: {},
  hasTokens: true,
  alternatives: 5,
  hasTrace: true,
};

export interface Preset {
  name: string;
  settings: ChatSettings;
  isBuiltIn?: boolean;
}

/** Always there; the user's own come after them. */
export const BUILT_IN_PRESETS: readonly Preset[] = [
  preset("Server defaults", {}),
  preset("Precise", { sampling: { temperature: 0 } }),
  preset("Lively", { sampling: { temperature: 1, top_p: 0.95 } }),
  preset("Three candidates", { n: 3, sampling: { temperature: 0.9 } }),
  preset("Beam search", { decoder: "beam", decoderParams: { beam: { width: 4 } } }),
];

function preset(name: string, changed: Partial<ChatSettings>): Preset {
  return { name, settings: { ...DEFAULT_SETTINGS, ...changed }, isBuiltIn: true };
}

const NUMBERS = [
  "temperature",
  "top_p",
  "top_k",
  "min_p",
  "presence_penalty",
  "frequency_penalty",
  "repetition_penalty",
  "max_tokens",
  "seed",
] as const satisfies readonly (keyof SamplingFields)[];

/** Settings from a file or an older page: what has a wrong type is left at its default. */
export function settingsFrom(given: unknown): ChatSettings {
  if (!isRecord(given)) return DEFAULT_SETTINGS;
  const settings: ChatSettings = { ...DEFAULT_SETTINGS, sampling: samplingFrom(given.sampling) };
  for (const name of ["system", "decoder"] as const) if (typeof given[name] === "string") settings[name] = given[name];
  for (const name of ["hasTokens", "hasTrace"] as const)
    if (typeof given[name] === "boolean") settings[name] = given[name];
  for (const name of ["n", "alternatives"] as const)
    if (Number.isInteger(given[name])) settings[name] = Number(given[name]);
  if (isRecord(given.decoderParams)) {
    const params = Object.entries(given.decoderParams).filter((entry): entry is [string, Record<string, unknown>] =>
      isRecord(entry[1]),
    );
    settings.decoderParams = Object.fromEntries(params);
  }
  return settings;
}

function samplingFrom(given: unknown): SamplingFields {
  const sampling: SamplingFields = {};
  if (!isRecord(given)) return sampling;
  for (const name of NUMBERS) if (typeof given[name] === "number") sampling[name] = given[name];
  if (Array.isArray(given.stop)) sampling.stop = given.stop.filter((text): text is string => typeof text === "string");
  return sampling;
}

/** What every request of these settings says, without the messages. */
export function requestFields(settings: ChatSettings): Omit<StreamBody, "messages"> {
  const params = settings.decoderParams[settings.decoder];
  return {
    ...settings.sampling,
    ...(settings.n > 1 ? { n: settings.n } : {}),
    ...(settings.decoder ? { decoder: settings.decoder } : {}),
    ...(settings.decoder && params && Object.keys(params).length > 0 ? { decoder_params: params } : {}),
    ...(settings.hasTokens ? { logprobs: true, top_logprobs: settings.alternatives } : {}),
    ...(settings.hasTrace ? { return_trace: true } : {}),
  };
}

/** The messages of a request: the system prompt, if there is one, and the turns. */
export function wireMessages(system: string, turns: readonly { role: string; content: string }[]): WireMessage[] {
  const said = turns.map(({ role, content }) => ({ role, content }) as WireMessage);
  return system.trim() ? [{ role: "system", content: system }, ...said] : said;
}
