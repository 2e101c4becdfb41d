"use strict";
// Examples that the built-in model answers rightly. Nothing here touches the document.

const TEXT = {type: "string"};

/** A schema of an object whose properties are all required, as a text with a property a line. */
function objectText(properties) {
  const lines = Object.entries(properties).map(([name, schema]) => `    "${name}": ${JSON.stringify(schema)}`);
  const required = JSON.stringify(Object.keys(properties)).replaceAll(",", ", ");
  return `{\n  "type": "object",\n  "properties": {\n${lines.join(",\n")}\n  },\n  "required": ${required}\n}`;
}

const WEATHER = {
  name: "get_weather",
  description: "The weather in a city.",
  parameters: schemaOf([{name: "city", type: "text", required: true}, {name: "days", type: "whole number", required: true}]),
};
const EXAMPLES = {
  "An invoice": {
    prompt: "Invoice AK-4071 for Silver Robotics came to 218.50 euros and has been paid.",
    kind: "json",
    constraint: objectText({
      invoice_id: {...TEXT, pattern: "^[A-Z]{2}-[0-9]{4}$"}, customer: TEXT, total: {type: "number"}, paid: {type: "boolean"},
    }),
  },
  "A list": {
    prompt: "Extract name, ingredients as JSON. Olga Lopez needs eggs, flour and butter for the cake.",
    kind: "json",
    constraint: objectText({name: TEXT, ingredients: {type: "array", items: TEXT, minItems: 1}}),
  },
  "One of three words": {
    prompt: "Answer with one word of teacher, nurse, driver. My brother Ben Kim is a nurse in Oslo.",
    kind: "choice",
    constraint: "teacher\nnurse\ndriver",
  },
  "A call of a tool": {
    prompt: "Use a tool. What is the weather in Oslo in the next 3 days?",
    kind: "none",
    constraint: "",
    tools: [WEATHER],
    choice: "required",
  },
};
const SOURCES = { // by kind of constraint, a text to begin with
  json: EXAMPLES["An invoice"].constraint,
  choice: EXAMPLES["One of three words"].constraint,
  regex: "[A-Z]{2}-[0-9]{4}",
  grammar: 'start: "yes" | "no" | NUMBER\nNUMBER: /[0-9]{1,3}/',
  none: "",
};
