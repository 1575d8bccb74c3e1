/** A form for the parameters of any decoder, from its JSON Schema. Only what differs from the defaults is sent. */

import type { JSX } from "preact";
import { useId, useState } from "preact/hooks";
import type { JsonSchema } from "../api/types";
import { type Field, fieldsOf } from "../lib/schema";
import { NumberField } from "./number_field";

type Values = Record<string, unknown>;

interface SchemaFormProps {
  schema: JsonSchema;
  values: Values;
  /** Names that a parameter called `prefix` can take. */
  prefixes: readonly string[];
  onChange: (values: Values) => void;
}

export function SchemaForm({ schema, values, prefixes, onChange }: SchemaFormProps) {
  const fields = fieldsOf(schema);
  if (fields.length === 0) return <p class="subtle">This decoder has no parameters.</p>;
  const set = (name: string, value: unknown) => {
    const { [name]: _, ...others } = values;
    onChange(value === undefined ? others : { ...others, [name]: value });
  };
  return (
    <div class="schema-form" data-testid="schema-form">
      {fields.map((field) => (
        <SchemaField
          key={field.name}
          field={field}
          value={values[field.name]}
          suggestions={field.name === "prefix" ? prefixes : []}
          onChange={(value) => set(field.name, value)}
        />
      ))}
    </div>
  );
}

interface SchemaFieldProps {
  field: Field;
  /** Undefined: not set, the decoder's default holds. */
  value: unknown;
  suggestions: readonly string[];
  onChange: (value: unknown) => void;
}

function SchemaField({ field, value, suggestions, onChange }: SchemaFieldProps) {
  const id = useId();
  const described = field.description ? `${id}-text` : undefined;
  const common = { id, "aria-describedby": described, "data-testid": `param-${field.name}` };
  return (
    <div class="form-field" data-kind={field.kind}>
      <label for={id}>
        {field.label}
        {field.isRequired && <span class="required"> required</span>}
      </label>
      <Control field={field} value={value} suggestions={suggestions} onChange={onChange} common={common} />
      {field.description && (
        <p class="hint" id={described}>
          {field.description.replaceAll("`", "")}
        </p>
      )}
    </div>
  );
}

interface ControlProps extends SchemaFieldProps {
  common: { id: string; "aria-describedby": string | undefined; "data-testid": string };
}

function Control({ field, value, suggestions, onChange, common }: ControlProps): JSX.Element {
  switch (field.kind) {
    case "boolean":
      return (
        <input
          {...common}
          type="checkbox"
          class="switch"
          checked={Boolean(value ?? field.default)}
          onChange={(event) => onChange(event.currentTarget.checked)}
        />
      );
    case "number":
      return (
        <NumberField
          {...common}
          value={typeof value === "number" ? value : undefined}
          placeholder={placeholderOf(field)}
          isInteger={field.isInteger}
          minimum={field.minimum}
          maximum={field.maximum}
          onChange={onChange}
        />
      );
    case "choice":
      return <Choice options={field.options} value={value ?? field.default} onChange={onChange} common={common} />;
    case "text":
      return <Text field={field} value={value} suggestions={suggestions} onChange={onChange} common={common} />;
    case "lines":
      return (
        <textarea
          {...common}
          class="field"
          rows={3}
          placeholder="One a line"
          value={(Array.isArray(value) ? value : []).join("\n")}
          onChange={(event) => onChange(linesOf(event.currentTarget.value))}
        />
      );
    case "json":
      return <JsonText value={value ?? field.default} onChange={onChange} common={common} />;
  }
}

type ChoiceProps = Pick<ControlProps, "value" | "onChange" | "common"> & {
  options: readonly { label: string; value: unknown }[];
};

function Choice({ options, value, onChange, common }: ChoiceProps) {
  const selected = options.findIndex((option) => option.value === value);
  return (
    <select {...common} class="field" onChange={(event) => onChange(options[Number(event.currentTarget.value)]?.value)}>
      {selected < 0 && <option value="-1">default</option>}
      {options.map((option, index) => (
        <option key={option.label} value={index} selected={index === selected}>
          {option.label}
        </option>
      ))}
    </select>
  );
}

function Text({ field, value, suggestions, onChange, common }: ControlProps) {
  const { isLong, ...limits } = field.kind === "text" ? field : { isLong: false };
  const shared = {
    ...common,
    class: "field",
    value: typeof value === "string" ? value : "",
    placeholder: placeholderOf(field),
    ...("maxLength" in limits && limits.maxLength !== undefined ? { maxLength: limits.maxLength } : {}),
  };
  const take = (text: string) => onChange(text === "" ? undefined : text);
  if (isLong) return <textarea {...shared} rows={2} onInput={(event) => take(event.currentTarget.value)} />;
  const listId = suggestions.length > 0 ? `${common.id}-list` : undefined;
  return (
    <>
      <input
        {...shared}
        type="text"
        list={listId}
        autocomplete="off"
        onInput={(event) => take(event.currentTarget.value)}
      />
      {listId && (
        <datalist id={listId}>
          {suggestions.map((suggestion) => (
            <option key={suggestion} value={suggestion} />
          ))}
        </datalist>
      )}
    </>
  );
}

function JsonText({ value, onChange, common }: Pick<ControlProps, "value" | "onChange" | "common">) {
  const [isBad, setBad] = useState(false);
  const take = (text: string) => {
    try {
      onChange(text.trim() ? JSON.parse(text) : undefined);
      setBad(false);
    } catch {
      setBad(true);
    }
  };
  return (
    <textarea
      {...common}
      class="field code"
      rows={3}
      aria-invalid={isBad}
      placeholder="JSON"
      defaultValue={value === undefined ? "" : JSON.stringify(value)}
      onChange={(event) => take(event.currentTarget.value)}
    />
  );
}

function placeholderOf(field: Field): string {
  return field.default === undefined || field.default === null
    ? ""
    : JSON.stringify(field.default).replace(/^"|"$/g, "");
}

function linesOf(text: string): string[] | undefined {
  const lines = text.split("\n").filter((line) => line !== "");
  return lines.length > 0 ? lines : undefined;
}
