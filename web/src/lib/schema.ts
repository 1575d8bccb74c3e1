/** Form fields from the JSON Schema of a decoder's parameters. What no field fits is edited as JSON. */

import type { JsonSchema } from "../api/types";

interface FieldBase {
  name: string;
  label: string;
  description: string;
  isRequired: boolean;
  default: unknown;
}

export type Field = FieldBase &
  (
    | { kind: "number"; isInteger: boolean; minimum?: number; maximum?: number; isOptional: boolean }
    | { kind: "text"; minLength?: number; maxLength?: number; pattern?: string; isLong: boolean; isOptional: boolean }
    | { kind: "choice"; options: readonly { label: string; value: unknown }[] }
    | { kind: "boolean" }
    | { kind: "lines" }
    | { kind: "json" }
  );

/** The fields of an object schema, in its order. */
export function fieldsOf(schema: JsonSchema): Field[] {
  const defs = schema.$defs ?? {};
  const object = resolve(schema, defs);
  const required = new Set(object.required ?? []);
  return Object.entries(object.properties ?? {}).map(([name, property]) =>
    fieldOf(name, property, defs, required.has(name)),
  );
}

function fieldOf(name: string, property: JsonSchema, defs: Record<string, JsonSchema>, isRequired: boolean): Field {
  const schema = resolve(property, defs);
  const base: FieldBase = {
    name,
    label: labelOf(name),
    description: property.description ?? schema.description ?? "",
    isRequired,
    default: property.default ?? schema.default,
  };
  const options = optionsOf(schema, defs);
  if (options !== null)
    return isBooleanOnly(options) ? { ...base, kind: "boolean" } : { ...base, kind: "choice", options };
  const { schema: single, isOptional } = withoutNull(schema, defs);
  switch (single.type) {
    case "integer":
    case "number":
      return { ...base, kind: "number", isInteger: single.type === "integer", isOptional, ...bounds(single) };
    case "string":
      return { ...base, kind: "text", isOptional, isLong: (single.maxLength ?? 0) > 1000, ...lengths(single) };
    case "array":
      if (typeof single.items === "object" && resolve(single.items, defs).type === "string")
        return { ...base, kind: "lines" };
      return { ...base, kind: "json" };
    default:
      return { ...base, kind: "json" };
  }
}

/** All values that a schema admits, when they can be counted: enums, constants, booleans, and any of these. */
function optionsOf(schema: JsonSchema, defs: Record<string, JsonSchema>): { label: string; value: unknown }[] | null {
  const one = (value: unknown) => ({ label: value === null ? "none" : String(value), value });
  if (schema.enum) return schema.enum.map(one);
  if (schema.const !== undefined) return [one(schema.const)];
  if (schema.type === "boolean") return [one(true), one(false)];
  if (schema.type === "null") return [one(null)];
  if (!schema.anyOf) return null;
  const parts = schema.anyOf.map((part) => optionsOf(resolve(part, defs), defs));
  return parts.some((part) => part === null) ? null : parts.flatMap((part) => part ?? []);
}

function isBooleanOnly(options: readonly { value: unknown }[]): boolean {
  return options.length === 2 && options.every(({ value }) => typeof value === "boolean");
}

function withoutNull(
  schema: JsonSchema,
  defs: Record<string, JsonSchema>,
): { schema: JsonSchema; isOptional: boolean } {
  if (Array.isArray(schema.type)) {
    const types = schema.type.filter((type) => type !== "null");
    if (types.length === 1 && types[0]) return { schema: { ...schema, type: types[0] }, isOptional: true };
  }
  const parts = schema.anyOf?.map((part) => resolve(part, defs)) ?? [];
  const rest = parts.filter((part) => part.type !== "null");
  return parts.length > rest.length && rest.length === 1 && rest[0]
    ? { schema: rest[0], isOptional: true }
    : { schema, isOptional: false };
}

function bounds(schema: JsonSchema): { minimum?: number; maximum?: number } {
  const minimum = schema.minimum ?? schema.exclusiveMinimum;
  const maximum = schema.maximum ?? schema.exclusiveMaximum;
  return { ...(minimum === undefined ? {} : { minimum }), ...(maximum === undefined ? {} : { maximum }) };
}

function lengths({ minLength, maxLength, pattern }: JsonSchema): {
  minLength?: number;
  maxLength?: number;
  pattern?: string;
} {
  return {
    ...(minLength === undefined ? {} : { minLength }),
    ...(maxLength === undefined ? {} : { maxLength }),
    ...(pattern === undefined ? {} : { pattern }),
  };
}

/** Follows `$ref` into `$defs`, a few steps at most. */
function resolve(schema: JsonSchema, defs: Record<string, JsonSchema>): JsonSchema {
  let resolved = schema;
  for (let steps = 0; resolved.$ref && steps < 8; steps++) {
    const target = defs[resolved.$ref.replace(/^#\/\$defs\//, "")];
    if (target === undefined) return {};
    const { $ref: _, ...own } = resolved;
    resolved = { ...target, ...own };
  }
  return resolved;
}

/** `length_penalty` as "Length penalty". */
export function labelOf(name: string): string {
  const words = name.replaceAll("_", " ").trim();
  return words.charAt(0).toUpperCase() + words.slice(1);
}
