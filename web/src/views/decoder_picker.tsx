/** Which decoder, from the server's list, and the form for its parameters. */

import { useId } from "preact/hooks";
import type { DecoderInfo } from "../api/types";
import { useApp } from "../state/app";
import type { ChatSettings } from "../state/settings";
import { SchemaForm } from "./schema_form";

interface DecoderPickerProps {
  settings: ChatSettings;
  onChange: (changed: Partial<ChatSettings>) => void;
}

export function DecoderPicker({ settings, onChange }: DecoderPickerProps) {
  const { server } = useApp();
  const decoders = server.decoders.value;
  const id = useId();
  const chosen = decoders.find((decoder) => decoder.id === settings.decoder);
  const isMissing = settings.decoder !== "" && chosen === undefined && decoders.length > 0;
  return (
    <>
      <div class="form-field">
        <label class="visually-hidden" for={id}>
          Decoder
        </label>
        <select
          id={id}
          class="field"
          value={settings.decoder}
          data-testid="decoder"
          onChange={(event) => onChange({ decoder: event.currentTarget.value })}
        >
          <option value="">Automatic</option>
          {isMissing && <option value={settings.decoder}>{settings.decoder} (not on this server)</option>}
          {decoders.map((decoder) => (
            <option key={decoder.id} value={decoder.id} disabled={!isUsable(decoder)}>
              {decoder.id}
              {isUsable(decoder) ? "" : " (broken)"}
            </option>
          ))}
        </select>
        <p class="hint" data-testid="decoder-description">
          {chosen
            ? chosen.description.replaceAll("`", "")
            : "Sampling; parallel for several candidates; greedy at temperature 0."}
          {chosen?.distribution && (
            <span class="subtle"> From {[chosen.distribution, chosen.version].filter(Boolean).join(" ")}.</span>
          )}
        </p>
      </div>
      {chosen && (
        <SchemaForm
          key={chosen.id}
          schema={chosen.parameters}
          values={settings.decoderParams[chosen.id] ?? {}}
          prefixes={server.prefixes.value.map((prefix) => prefix.id)}
          onChange={(values) => onChange({ decoderParams: { ...settings.decoderParams, [chosen.id]: values } })}
        />
      )}
      <BrokenDecoders decoders={decoders} />
    </>
  );
}

function BrokenDecoders({ decoders }: { decoders: readonly DecoderInfo[] }) {
  const broken = decoders.filter((decoder) => !isUsable(decoder));
  if (broken.length === 0) return null;
  return (
    <details class="broken" data-testid="broken-decoders">
      <summary>Broken: {broken.map(({ id }) => id).join(", ")}</summary>
      <dl>
        {broken.map(({ id, reason }) => (
          <div key={id}>
            <dt>{id}</dt>
            <dd>{reason}</dd>
          </div>
        ))}
      </dl>
    </details>
  );
}

function isUsable(decoder: DecoderInfo): boolean {
  return decoder.state !== "broken";
}
