/** Presets: choose one, save the settings under a name, remove one of one's own. */

import { useState } from "preact/hooks";
import { useApp } from "../state/app";
import type { ChatSettings } from "../state/settings";
import { IconButton } from "./icon_button";

interface PresetPickerProps {
  settings: ChatSettings;
  onChange: (settings: ChatSettings) => void;
}

export function PresetPicker({ settings, onChange }: PresetPickerProps) {
  const { presets } = useApp();
  const [isNaming, setNaming] = useState(false);
  const all = presets.all;
  const current = all.find((preset) => isSame(preset.settings, settings));
  const isOwn = current !== undefined && !current.isBuiltIn;
  const choose = (name: string) => {
    const preset = all.find((other) => other.name === name);
    // A preset says how answers are found; the system prompt is replaced only by one that has its own.
    if (preset) onChange({ ...preset.settings, system: preset.settings.system || settings.system });
  };
  return (
    <>
      <div class="preset-row">
        <select
          class="field"
          aria-label="Preset"
          value={current?.name ?? ""}
          data-testid="preset"
          onChange={(event) => choose(event.currentTarget.value)}
        >
          {current === undefined && <option value="">Own settings</option>}
          {all.map(({ name }) => (
            <option key={name} value={name}>
              {name}
            </option>
          ))}
        </select>
        <button
          type="button"
          class="button small"
          data-testid="save-preset"
          disabled={current !== undefined}
          onClick={() => setNaming(true)}
        >
          Save as…
        </button>
        {isOwn && (
          <IconButton
            icon="trash"
            label={`Remove preset ${current.name}`}
            testId="remove-preset"
            onClick={() => presets.remove(current.name)}
          />
        )}
      </div>
      {isNaming && (
        <NameForm
          onDone={(name) => {
            setNaming(false);
            if (name) presets.save(name, settings);
          }}
        />
      )}
    </>
  );
}

function NameForm({ onDone }: { onDone: (name: string) => void }) {
  const [name, setName] = useState("");
  return (
    <form
      class="preset-row"
      onSubmit={(event) => {
        event.preventDefault();
        onDone(name.trim());
      }}
    >
      <input
        class="field"
        value={name}
        maxLength={60}
        placeholder="Name of the preset"
        aria-label="Name of the preset"
        data-testid="preset-name"
        onInput={(event) => setName(event.currentTarget.value)}
      />
      <button type="submit" class="button small primary" data-testid="preset-save" disabled={!name.trim()}>
        Save
      </button>
      <button type="button" class="button small" onClick={() => onDone("")}>
        Cancel
      </button>
    </form>
  );
}

function isSame(one: ChatSettings, other: ChatSettings): boolean {
  const plain = ({ system: _, decoderParams, ...rest }: ChatSettings) => ({
    ...rest,
    params: decoderParams[rest.decoder] ?? {},
  });
  const isSystemSame = one.system === "" || one.system === other.system;
  return isSystemSame && JSON.stringify(plain(one)) === JSON.stringify(plain(other));
}
