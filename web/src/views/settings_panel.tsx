/** How answers are made: presets, system prompt, decoder with its parameters, sampling. */

import type { ComponentChildren } from "preact";
import { useEffect, useId, useMemo } from "preact/hooks";
import { useApp } from "../state/app";
import { rememberSettings } from "../state/presets";
import type { ChatSettings } from "../state/settings";
import { DecoderPicker } from "./decoder_picker";
import { NumberField } from "./number_field";
import { PresetPicker } from "./preset_picker";
import { SamplingForm } from "./sampling_form";
import { SidePanel } from "./side_panel";

export function SettingsPanel() {
  const { store, actions, server } = useApp();
  const { settings } = store.current.value;
  // A plugin that was registered since is there when one looks.
  useEffect(() => void server.refresh(), [server]);
  const set = useMemo(
    () => (changed: Partial<ChatSettings>) => {
      actions.setSettings(changed);
      rememberSettings(store.current.value.settings);
    },
    [actions, store],
  );
  const id = useId();
  return (
    <SidePanel title="Decoding" testId="settings-panel">
      <Section title="Preset">
        <PresetPicker settings={settings} onChange={set} />
      </Section>
      <Section title="System prompt">
        <textarea
          class="field"
          rows={3}
          value={settings.system}
          aria-label="System prompt"
          placeholder="None"
          data-testid="system-prompt"
          onInput={(event) => set({ system: event.currentTarget.value })}
        />
      </Section>
      <Section title="Decoder">
        <DecoderPicker settings={settings} onChange={set} />
        <div class="form-field inline">
          <label for={`${id}-n`}>Candidates (n)</label>
          <NumberField
            id={`${id}-n`}
            data-testid="setting-n"
            value={settings.n}
            placeholder="1"
            isInteger
            minimum={1}
            maximum={16}
            onChange={(n) => set({ n: n ?? 1 })}
          />
        </div>
      </Section>
      <Section title="Sampling">
        <SamplingForm sampling={settings.sampling} onChange={(sampling) => set({ sampling })} />
      </Section>
      <Section title="Insight">
        <label class="switch-row">
          <input
            type="checkbox"
            class="switch"
            checked={settings.hasTokens}
            data-testid="setting-tokens"
            onChange={(event) => set({ hasTokens: event.currentTarget.checked })}
          />
          Token probabilities and alternatives
        </label>
        <label class="switch-row">
          <input
            type="checkbox"
            class="switch"
            checked={settings.hasTrace}
            data-testid="setting-trace"
            onChange={(event) => set({ hasTrace: event.currentTarget.checked })}
          />
          Trace of the search
        </label>
      </Section>
    </SidePanel>
  );
}

function Section({ title, children }: { title: string; children: ComponentChildren }) {
  return (
    <section class="panel-section">
      <h3>{title}</h3>
      {children}
    </section>
  );
}
