// A small form from a decoder's JSON Schema. What is left empty is not sent, so the decoder's own default holds.

export class ParameterForm {
  constructor(container) {
    this.container = container;
    this.fields = [];
  }

  show(schema) {
    this.container.replaceChildren();
    this.fields = Object.entries(resolved(schema, schema).properties ?? {}).map(([name, property]) => {
      const field = fieldFor(name, resolved(property, schema));
      const label = document.createElement("label");
      label.append(name.replaceAll("_", " ") + " ", field.input);
      if (property.description) label.title = property.description;
      this.container.append(label);
      return field;
    });
  }

  values() {
    const values = {};
    for (const { name, input, read } of this.fields) {
      const value = read(input);
      if (value !== undefined) values[name] = value;
    }
    return values;
  }
}

function resolved(part, schema) {
  const target = part.$ref ? schema.$defs?.[part.$ref.split("/").pop()] : part;
  const choice = target?.anyOf?.find((option) => option.type !== "null");
  return choice ? { ...target, ...resolved(choice, schema) } : { ...part, ...target };
}

function fieldFor(name, property) {
  if (property.enum) return selectField(name, property.enum, property.default);
  if (property.type === "boolean") return selectField(name, [true, false], property.default);
  const input = document.createElement("input");
  input.name = name;
  if (property.default !== undefined) input.placeholder = JSON.stringify(property.default);
  if (property.type !== "integer" && property.type !== "number") {
    const read = property.type === "string" ? (element) => element.value || undefined : readJson;
    return { name, input, read };
  }
  input.type = "number";
  input.step = property.type === "integer" ? "1" : "any";
  if (property.minimum !== undefined) input.min = property.minimum;
  if (property.maximum !== undefined) input.max = property.maximum;
  return { name, input, read: (element) => (element.value === "" ? undefined : Number(element.value)) };
}

function selectField(name, values, preset) {
  const input = document.createElement("select");
  input.name = name;
  input.append(new Option(preset === undefined ? "default" : `default (${preset})`, ""));
  for (const value of values) input.append(new Option(String(value), JSON.stringify(value)));
  return { name, input, read: (element) => (element.value ? JSON.parse(element.value) : undefined) };
}

function readJson(element) {
  if (!element.value.trim()) return undefined;
  try {
    return JSON.parse(element.value);
  } catch {
    return element.value;
  }
}
