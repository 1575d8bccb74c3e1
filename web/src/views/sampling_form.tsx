/** Sampling parameters. An empty field leaves the matter to the server. */

import { useId } from "preact/hooks";
import type { SamplingFields } from "../api/types";
import { labelOf } from "../lib/schema";
import { NumberField } from "./number_field";

interface SamplingFormProps {
  sampling: SamplingFields;
  onChange: (sampling: SamplingFields) => void;
}

type NumberName = Exclude<keyof SamplingFields, "stop">;

const FIELDS: readonly { name: NumberName; label?: string; minimum?: number; maximum?: number; isInteger?: boolean }[] =
  [
    { name: "temperature", minimum: 0, maximum: 2 },
    { name: "top_p", label: "Top-p", minimum: 0, maximum: 1 },
    { name: "top_k", label: "Top-k", minimum: -1, isInteger: true },
    { name: "min_p", label: "Min-p", minimum: 0, maximum: 1 },
    { name: "max_tokens", label: "Max tokens", minimum: 1, isInteger: true },
    { name: "seed", isInteger: true },
    { name: "presence_penalty", minimum: -2, maximum: 2 },
    { name: "frequency_penalty", minimum: -2, maximum: 2 },
    { name: "repetition_penalty", minimum: 0.01, maximum: 10 },
  ];

export function SamplingForm({ sampling, onChange }: SamplingFormProps) {
  const id = useId();
  const set = (name: NumberName, value: number | undefined) => {
    const { [name]: _, ...others } = sampling;
    onChange(value === undefined ? others : { ...others, [name]: value });
  };
  return (
    <div class="field-grid">
      {FIELDS.map(({ name, label, ...limits }) => (
        <div class="form-field" key={name}>
          <label for={`${id}-${name}`}>{label ?? labelOf(name)}</label>
          <NumberField
            id={`${id}-${name}`}
            data-testid={`sampling-${name}`}
            value={sampling[name]}
            placeholder="default"
            {...limits}
            onChange={(value) => set(name, value)}
          />
        </div>
      ))}
      <StopField stop={sampling.stop} id={`${id}-stop`} onChange={(stop) => onChange(withStop(sampling, stop))} />
    </div>
  );
}

function StopField({
  stop,
  id,
  onChange,
}: {
  stop: string[] | undefined;
  id: string;
  onChange: (stop: string[]) => void;
}) {
  return (
    <div class="form-field wide">
      <label for={id}>Stop strings</label>
      <textarea
        id={id}
        class="field"
        rows={2}
        placeholder="One a line"
        data-testid="sampling-stop"
        value={(stop ?? []).join("\n")}
        onChange={(event) => onChange(event.currentTarget.value.split("\n").filter(Boolean))}
      />
    </div>
  );
}

function withStop({ stop: _, ...others }: SamplingFields, stop: string[]): SamplingFields {
  return stop.length > 0 ? { ...others, stop } : others;
}
