/** Lines above the chat about what does not work: the storage, the server, a missing key. */

import { useState } from "preact/hooks";
import { setApiKey } from "../api/http";
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
  const [key, setKey] = useState("");
  const submit = (event: Event) => {
    event.preventDefault();
    setApiKey(key.trim());
    void server.refresh();
  };
  return (
    <form class="notice" onSubmit={submit} data-testid="key-form">
      <label>
        This server wants an API key{" "}
        <input type="password" autocomplete="off" value={key} onInput={(event) => setKey(event.currentTarget.value)} />
      </label>
      <button type="submit" class="button small">
        Use it
      </button>
    </form>
  );
}
