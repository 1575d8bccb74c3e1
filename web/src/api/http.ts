/** Requests to the server that sent the page, and the errors they can end in. */

import type { ApiErrorBody } from "./types";

const KEY_ITEM = "chatserve.api-key";

/** A refusal by the server. */
export class ApiError extends Error {
  readonly status: number;
  readonly body: ApiErrorBody;

  constructor(status: number, body: ApiErrorBody) {
    super(body.message);
    this.name = "ApiError";
    this.status = status;
    this.body = body;
  }
}

/** No answer at all: the server is down, restarting, or out of reach. */
export class UnreachableError extends Error {
  constructor() {
    super("The server cannot be reached.");
    this.name = "UnreachableError";
  }
}

/** The address of a path below the page, wherever the server is mounted. */
export function address(path: string): string {
  return new URL(path, document.baseURI).href;
}

export function apiKey(): string {
  return localStorage.getItem(KEY_ITEM) ?? "";
}

export function setApiKey(key: string): void {
  if (key) localStorage.setItem(KEY_ITEM, key);
  else localStorage.removeItem(KEY_ITEM);
}

/** `fetch` with the key if there is one. Throws ApiError for a refusal, UnreachableError when nothing answered. */
export async function request(path: string, init: RequestInit = {}): Promise<Response> {
  const headers = new Headers(init.headers);
  if (apiKey()) headers.set("Authorization", `Bearer ${apiKey()}`);
  let response: Response;
  try {
    response = await fetch(address(path), { ...init, headers, cache: "no-store" });
  } catch (error) {
    if (init.signal?.aborted) throw error;
    throw new UnreachableError();
  }
  if (!response.ok) throw new ApiError(response.status, await errorBody(response));
  return response;
}

export async function getJson<T>(path: string): Promise<T> {
  const response = await request(path);
  return (await response.json()) as T;
}

/** The `error` object of an answer, or one made up from the status when the body is no such thing. */
async function errorBody(response: Response): Promise<ApiErrorBody> {
  try {
    const body = (await response.json()) as { error?: Partial<ApiErrorBody> };
    if (typeof body.error?.message === "string") return body.error as ApiErrorBody;
  } catch {
    // A proxy's HTML page, or nothing.
  }
  return { message: `The server answered ${response.status} ${response.statusText}`.trim(), code: null };
}
