/** What the server offers: models, decoders, registered prefixes. */

import { getJson } from "./http";
import type { DecoderInfo, ModelInfo, PrefixInfo } from "./types";

interface List<T> {
  data: T[];
}

export async function listModels(): Promise<ModelInfo[]> {
  return (await getJson<List<ModelInfo>>("v1/models")).data;
}

export async function listDecoders(): Promise<DecoderInfo[]> {
  return (await getJson<List<DecoderInfo>>("v1/decoders")).data;
}

export async function listPrefixes(): Promise<PrefixInfo[]> {
  return (await getJson<List<PrefixInfo>>("v1/prefixes")).data;
}
