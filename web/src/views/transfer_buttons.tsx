/** Export of all or of the open conversation, and import. */

import { useRef, useState } from "preact/hooks";
import { plural } from "../lib/format";
import { exportName, saveFile } from "../lib/save_file";
import { useApp } from "../state/app";
import { Icon } from "./icon";

export function TransferButtons() {
  const { library, store } = useApp();
  const [line, setLine] = useState("");
  const picker = useRef<HTMLInputElement>(null);
  const hasAny = store.heads.value.length > 0;
  const take = async () => {
    try {
      saveFile(exportName("all"), await library.exportText());
      setLine("");
    } catch (error) {
      setLine(String(error));
    }
  };
  const bring = async (file: File | undefined) => {
    if (file === undefined) return;
    try {
      const ids = await library.importText(await file.text());
      setLine(`${plural(ids.length, "conversation")} imported.`);
      if (ids[0]) await store.open(ids[0]);
    } catch (error) {
      setLine(error instanceof Error ? error.message : String(error));
    }
  };
  return (
    <div class="list-foot">
      <button type="button" class="button small" disabled={!hasAny} onClick={() => void take()} data-testid="export">
        <Icon name="download" />
        Export all
      </button>
      <button type="button" class="button small" onClick={() => picker.current?.click()} data-testid="import">
        <Icon name="upload" />
        Import
      </button>
      <input
        ref={picker}
        type="file"
        accept=".json,application/json"
        class="visually-hidden"
        tabIndex={-1}
        aria-label="Export file to import"
        data-testid="import-file"
        onChange={(event) => {
          void bring(event.currentTarget.files?.[0]);
          event.currentTarget.value = "";
        }}
      />
      {line && (
        <p class="subtle" role="status" data-testid="transfer-line">
          {line}
        </p>
      )}
    </div>
  );
}
