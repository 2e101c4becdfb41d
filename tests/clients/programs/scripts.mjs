// Scripts of a model's turns, as in tests/support/turn_scripts.py.

export const call = (name, input) => ({ name, arguments: input });
export const script = (...steps) => `Do this. SCRIPT ${JSON.stringify(steps)} END`;

export const TEXT = "It is 21 degrees in Paris.";
export const CALL = [call("weather", { city: "Paris" })];
export const SCHEMA = {
  type: "object",
  properties: { city: { type: "string" } },
  required: ["city"],
  additionalProperties: false,
};

// Prints what a test compares.
export const report = (found) => console.log(JSON.stringify(found));
