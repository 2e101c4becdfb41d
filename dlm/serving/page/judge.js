"use strict";
// Whether an answer keeps its constraint, as far as this page can judge. Nothing here touches the document.

/** The value of a JSON text; undefined: it is none. */
function parsed(words) {
  try {
    return JSON.parse(words);
  } catch {
    return undefined;
  }
}

/** Whether a regex is found in a text; undefined: the browser cannot read the regex, which the server can. */
function matches(regex, words) {
  try {
    return new RegExp(regex, "u").test(words);
  } catch {
    return undefined;
  }
}

// Judgements are true, false, or undefined: not known here.
const all = found => (found.includes(false) ? false : found.includes(undefined) ? undefined : true);
const any = found => (found.includes(true) ? true : found.includes(undefined) ? undefined : false);
const not = found => (found === undefined ? undefined : !found);
const isObject = value => typeof value === "object" && value !== null && !Array.isArray(value);
const same = (a, b) =>
  a === b ||
  (Array.isArray(a) && Array.isArray(b) && a.length === b.length && a.every((one, i) => same(one, b[i]))) ||
  (isObject(a) && isObject(b) && Object.keys(a).length === Object.keys(b).length &&
    Object.keys(a).every(name => Object.hasOwn(b, name) && same(a[name], b[name])));
const KINDS = {
  string: value => typeof value === "string",
  number: value => typeof value === "number",
  integer: Number.isInteger,
  boolean: value => typeof value === "boolean",
  null: value => value === null,
  array: Array.isArray,
  object: isObject,
};
const limit = (applies, measure, holds) => (given, value) =>
  !applies(value) || (typeof given === "number" ? holds(measure(value), given) : undefined);
const atLeast = (a, b) => a >= b, atMost = (a, b) => a <= b;
const characters = value => [...value].length, items = value => value.length, itself = value => value;
const KEYWORDS = {
  type: (given, value) => [given].flat().some(kind => KINDS[kind]?.(value)),
  enum: (given, value) => given.some(one => same(one, value)),
  const: same,
  minLength: limit(KINDS.string, characters, atLeast),
  maxLength: limit(KINDS.string, characters, atMost),
  minItems: limit(KINDS.array, items, atLeast),
  maxItems: limit(KINDS.array, items, atMost),
  minimum: limit(KINDS.number, itself, atLeast),
  maximum: limit(KINDS.number, itself, atMost),
  exclusiveMinimum: limit(KINDS.number, itself, (a, b) => a > b),
  exclusiveMaximum: limit(KINDS.number, itself, (a, b) => a < b),
  pattern: (given, value) => !KINDS.string(value) || matches(given, value),
  required: (given, value) => !isObject(value) || given.every(name => Object.hasOwn(value, name)),
  properties: (given, value, judge) =>
    !isObject(value) ||
    all(Object.keys(given).filter(name => Object.hasOwn(value, name)).map(name => judge(given[name], value[name]))),
  additionalProperties: (given, value, judge, schema) => {
    if (!isObject(value)) return true;
    if (schema.patternProperties) return undefined;
    const others = Object.keys(value).filter(name => !Object.hasOwn(schema.properties ?? {}, name));
    return all(others.map(name => judge(given, value[name])));
  },
  prefixItems: (given, value, judge) => !Array.isArray(value) || all(given.slice(0, value.length).map((one, i) => judge(one, value[i]))),
  items: (given, value, judge, schema) =>
    !Array.isArray(value) || all(value.slice(schema.prefixItems?.length ?? 0).map(one => judge(given, one))),
  allOf: (given, value, judge) => all(given.map(one => judge(one, value))),
  anyOf: (given, value, judge) => any(given.map(one => judge(one, value))),
  oneOf: (given, value, judge) => {
    const found = given.map(one => judge(one, value));
    return found.filter(Boolean).length > 1 ? false : found.includes(undefined) ? undefined : found.includes(true);
  },
  not: (given, value, judge) => not(judge(given, value)),
};
const WITHOUT_EFFECT = ["$schema", "$defs", "definitions", "$comment", "title", "description", "default", "examples", "deprecated", "readOnly", "writeOnly"];
const DEEPEST = 100; // levels, so that a reference to itself ends

/** Whether a value fits a JSON schema; undefined: the schema says more than this page can judge. */
function fits(schema, value, root = schema, depth = 0) {
  if (typeof schema === "boolean") return schema;
  if (!isObject(schema) || depth > DEEPEST) return undefined;
  const judge = (inner, one) => fits(inner, one, root, depth + 1);
  return all(Object.entries(schema).map(([keyword, given]) => {
    if (WITHOUT_EFFECT.includes(keyword)) return true;
    if (keyword === "$ref") return judge(referred(root, given), value);
    return Object.hasOwn(KEYWORDS, keyword) ? KEYWORDS[keyword](given, value, judge, schema) : undefined;
  }));
}

/** As `fits`, also for a schema that is none: not known. */
function judged(schema, value) {
  try {
    return fits(schema, value);
  } catch {
    return undefined;
  }
}

/** The schema that a reference within a document means; undefined: it is none of those. */
function referred(root, reference) {
  if (!/^#(\/|$)/.test(reference)) return undefined;
  const names = decodeURIComponent(reference).split("/").slice(1);
  return names.reduce((found, name) => found?.[name.replaceAll("~1", "/").replaceAll("~0", "~")], root);
}

/** What an answer is to be, in words (empty: nothing), and whether its text and its calls are. */
function checkOf({constraint, tools, choice}) {
  const {json, choice: words, regex} = constraint ?? {};
  const schemas = Object.fromEntries(tools.map(tool => [tool.name, tool.parameters]));
  const named = json !== undefined ? ["fits the schema", "does not fit the schema"]
    : words ? ["is one of the choices", "is none of the choices"] : ["matches", "does not match"];
  const [yes, no] = constraint ? named : ["", ""];
  const text = {
    yes,
    no,
    holds(answer) {
      if (json !== undefined) {
        const value = parsed(answer);
        return value === undefined ? false : judged(json, value);
      }
      return words ? words.includes(answer) : regex === undefined ? undefined : matches(`^(?:${regex})$`, answer);
    },
  };
  if (!tools.length || choice === "none") return text;
  return {
    ofCalls: true,
    yes: "calls fit their tools",
    no: "no call that fits a tool",
    holds(answer, calls) {
      if (!calls.length) return choice !== "auto" ? false : constraint ? text.holds(answer) : undefined;
      return all(calls.map(call => {
        const value = parsed(call.arguments);
        return value !== undefined && Object.hasOwn(schemas, call.name) ? judged(schemas[call.name], value) : false;
      }));
    },
  };
}
