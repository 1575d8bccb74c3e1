// @vitest-environment node
import { expect, test } from "vitest";
import type { JsonSchema } from "../src/api/types";
import { fieldsOf } from "../src/lib/schema";

/** As the server makes it from a parameter struct. */
const BEAM: JsonSchema = {
  $ref: "#/$defs/BeamParams",
  $defs: {
    BeamParams: {
      title: "BeamParams",
      type: "object",
      properties: {
        width: { description: "Hypotheses kept.", type: "integer", minimum: 1, maximum: 64, default: 4 },
        length_penalty: { type: "number", minimum: -10, maximum: 10, default: 1.0 },
        early_stopping: { anyOf: [{ type: "boolean" }, { enum: ["never"] }], default: false },
      },
      required: [],
    },
  },
};

test("the fields of a parameter struct, in order, with bounds and defaults", () => {
  const [width, penalty, stopping] = fieldsOf(BEAM);
  expect(width).toMatchObject({
    name: "width",
    label: "Width",
    kind: "number",
    isInteger: true,
    minimum: 1,
    maximum: 64,
    default: 4,
  });
  expect(penalty).toMatchObject({ label: "Length penalty", kind: "number", isInteger: false });
  expect(stopping).toMatchObject({ kind: "choice", default: false });
  expect(stopping?.kind === "choice" && stopping.options.map(({ value }) => value)).toEqual([true, false, "never"]);
});

const object = (property: JsonSchema, required: string[] = []): JsonSchema => ({
  type: "object",
  properties: { field: property },
  required,
  $defs: { Mode: { enum: ["a", "b"] }, Deep: { $ref: "#/$defs/Deep" } },
});

test.each<[JsonSchema, string]>([
  [{ type: "boolean", default: true }, "boolean"],
  [{ type: "string", maxLength: 20 }, "text"],
  [{ enum: ["x", "y", 3] }, "choice"],
  [{ $ref: "#/$defs/Mode" }, "choice"],
  [{ anyOf: [{ type: "integer" }, { type: "null" }] }, "number"],
  [{ type: ["number", "null"] }, "number"],
  [{ anyOf: [{ type: "string" }, { type: "null" }] }, "text"],
  [{ type: "array", items: { type: "string" } }, "lines"],
  [{ type: "array", items: { type: "number" } }, "json"],
  [{ type: "object" }, "json"],
  [{ anyOf: [{ type: "string" }, { type: "integer" }] }, "json"],
  [{}, "json"],
  [{ $ref: "#/$defs/Missing" }, "json"],
  [{ $ref: "#/$defs/Deep" }, "json"],
])("%j becomes a field of kind %s", (property, kind) => {
  const [field] = fieldsOf(object(property));
  expect(field?.kind).toBe(kind);
});

test("required and optional fields are told apart", () => {
  expect(fieldsOf(object({ type: "string" }, ["field"]))[0]).toMatchObject({ isRequired: true, isOptional: false });
  expect(fieldsOf(object({ type: ["string", "null"] }))[0]).toMatchObject({ isRequired: false, isOptional: true });
});

test("a schema without properties has no fields", () => {
  expect(fieldsOf({ type: "object", properties: {} })).toEqual([]);
  expect(fieldsOf({})).toEqual([]);
});
