/** `ServerInfo`: what the server offers, asked again when it may have changed. */

import { computed, signal } from "@preact/signals";
import { ApiError } from "../api/http";
import { listDecoders, listModels, listPrefixes } from "../api/lists";
import type { DecoderInfo, ModelInfo, PrefixInfo } from "../api/types";

const RETRY_MS = 3000;

export class ServerInfo {
  readonly models = signal<readonly ModelInfo[]>([]);
  readonly decoders = signal<readonly DecoderInfo[]>([]);
  readonly prefixes = signal<readonly PrefixInfo[]>([]);
  /** Why the server cannot be used, or null. */
  readonly problem = signal<string | null>(null);
  readonly needsKey = signal(false);
  readonly model = computed(() => this.models.value[0] ?? null);
  #timer: ReturnType<typeof setTimeout> | null = null;

  /** Asks for all lists; while the server does not answer, again and again. */
  async refresh(): Promise<void> {
    if (this.#timer !== null) clearTimeout(this.#timer);
    this.#timer = null;
    try {
      const [models, decoders] = await Promise.all([listModels(), listDecoders()]);
      this.models.value = models;
      this.decoders.value = decoders;
      this.problem.value = null;
      this.needsKey.value = false;
      this.prefixes.value = await listPrefixes().catch(() => []);
    } catch (error) {
      this.needsKey.value = error instanceof ApiError && error.status === 401;
      this.problem.value = error instanceof Error ? error.message : String(error);
      if (!this.needsKey.value) this.#timer = setTimeout(() => void this.refresh(), RETRY_MS);
    }
  }
}
