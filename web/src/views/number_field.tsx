/** A number that may be left out. What is not allowed is marked and not taken. */

import { useLayoutEffect, useState } from "preact/hooks";

interface NumberFieldProps {
  id: string;
  value: number | undefined;
  placeholder: string;
  isInteger?: boolean;
  minimum?: number | undefined;
  maximum?: number | undefined;
  onChange: (value: number | undefined) => void;
  "aria-describedby"?: string | undefined;
  "data-testid"?: string;
}

export function NumberField({ value, isInteger = false, minimum, maximum, onChange, ...attributes }: NumberFieldProps) {
  const [text, setText] = useState(value === undefined ? "" : String(value));
  useLayoutEffect(() => {
    setText((shown) => (parse(shown) === value ? shown : value === undefined ? "" : String(value)));
  }, [value]);
  const isAllowed = (number: number) =>
    (!isInteger || Number.isInteger(number)) && number >= (minimum ?? -Infinity) && number <= (maximum ?? Infinity);
  const parsed = parse(text);
  const isBad = text.trim() !== "" && (parsed === undefined || !isAllowed(parsed));
  const take = (entered: string) => {
    setText(entered);
    const number = parse(entered);
    if (entered.trim() === "") onChange(undefined);
    else if (number !== undefined && isAllowed(number)) onChange(number);
  };
  return (
    <input
      {...attributes}
      class="field number"
      type="text"
      inputMode={isInteger ? "numeric" : "decimal"}
      autocomplete="off"
      value={text}
      aria-invalid={isBad}
      title={isBad ? rangeText(isInteger, minimum, maximum) : undefined}
      onInput={(event) => take(event.currentTarget.value)}
    />
  );
}

function parse(text: string): number | undefined {
  const number = Number(text.trim().replace(",", "."));
  return text.trim() === "" || !Number.isFinite(number) ? undefined : number;
}

function rangeText(isInteger: boolean, minimum?: number, maximum?: number): string {
  const kind = isInteger ? "A whole number" : "A number";
  const from = minimum === undefined ? "" : ` from ${minimum}`;
  return `${kind}${from}${maximum === undefined ? "" : ` to ${maximum}`}`;
}
