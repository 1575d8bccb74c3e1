/** Lines above the chat about what does not work: the storage, the server, a missing key. */

import { useEffect, useRef, useState } from "preact/hooks";
import { apiKey, setApiKey } from "../api/http";
import { useApp } from "../state/app";
import { Icon } from "./icon";

export function Notices() {
  const { store, server } = useApp();
  return (
    <>
      {server.needsKey.value && <KeyForm />}
      {server.problem.value && !server.needsKey.value && (
        <p class="notice" role="status" data-testid="server-problem">
          <Icon name="warning" />
          <span>{server.problem.value} Trying again…</span>
          <button type="button" class="button small" onClick={() => void server.refresh()}>
            Retry now
          </button>
        </p>
      )}
      {store.storageProblem.value && (
        <p class="notice" role="status" data-testid="storage-problem">
          <Icon name="warning" />
          <span>This browser does not keep the conversations: {store.storageProblem.value}</span>
        </p>
      )}
    </>
  );
}

function KeyForm() {
  const { server } = useApp();
  const field = useRef<HTMLInputElement>(null);
  const [isRefused, setRefused] = useState(apiKey() !== "");
  useEffect(() => field.current?.focus(), []);
  const submit = async (event: Event) => {
    event.preventDefault();
    setRefused(false);
    setApiKey(field.current?.value.trim() ?? "");
    await server.refresh();
    // With the right key this form is gone.
    setRefused(true);
    field.current?.select();
  };
  return (
    <form class="notice" onSubmit={submit} data-testid="key-form">
      <Icon name="key" />
      <label>
        <span>{isRefused ? "The server refused this API key." : "This server wants an API key."}</span>
        <input ref={field} class="field" type="password" autocomplete="off" required aria-invalid={isRefused} />
      </label>
      <button type="submit" class="button small">
        Use this key
      </button>
    </form>
  );
}
