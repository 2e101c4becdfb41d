// openai-node: a chat, a response and their streams, each with a tool.

import OpenAI from "openai";
import { zodResponseFormat, zodTextFormat } from "openai/helpers/zod";
import { z } from "zod";
import { CALL, SCHEMA, TEXT, report, script } from "./scripts.mjs";

const client = new OpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: "none", maxRetries: 0 });
const model = "dlm";
const own = { name: "weather", parameters: SCHEMA, strict: true };
const Person = z.object({ name: z.string(), age: z.number().int() });
const OLGA = '{"name": "Olga", "age": 61}';

async function chat() {
  const messages = [{ role: "user", content: script(CALL, TEXT) }];
  const tools = [{ type: "function", function: own }];
  const first = await client.chat.completions.create({ model, messages, tools });
  const message = first.choices[0].message;
  const [made] = message.tool_calls;
  messages.push(message, { role: "tool", tool_call_id: made.id, content: "21" });
  const last = await client.chat.completions.create({ model, messages, tools });
  return [made.function.name, made.function.arguments, last.choices[0].message.content];
}

async function runTools() {
  const seen = [];
  const run = (given) => (seen.push(given.city), "21");
  const tool = { ...own, function: run, parse: JSON.parse };
  const messages = [{ role: "user", content: script(CALL, TEXT) }];
  const runner = client.chat.completions.runTools({
    model, messages, stream: true, tools: [{ type: "function", function: tool }],
  });
  return [await runner.finalContent(), seen];
}

async function response() {
  const tools = [{ type: "function", ...own }];
  const first = await client.responses.create({ model, input: script(CALL, TEXT), tools });
  const [made] = first.output;
  const input = [{ type: "function_call_output", call_id: made.call_id, output: "21" }];
  const rest = { model, input, tools, previous_response_id: first.id };
  const stream = client.responses.stream(rest);
  let text = "";
  for await (const event of stream) {
    if (event.type === "response.output_text.delta") text += event.delta;
  }
  const last = await stream.finalResponse();
  return [made.name, made.arguments, text, last.output_text];
}

async function types() {
  const input = script(OLGA);
  const format = zodTextFormat(Person, "person");
  const parsed = await client.responses.parse({ model, input, text: { format } });
  const completion = await client.chat.completions.parse({
    model,
    messages: [{ role: "user", content: input }],
    response_format: zodResponseFormat(Person, "person"),
  });
  return [parsed.output_parsed, completion.choices[0].message.parsed];
}

async function error() {
  try {
    await client.responses.create({ model: "other", input: "Hello" });
  } catch (thrown) {
    return [thrown instanceof OpenAI.NotFoundError, thrown.status];
  }
}

report({
  chat: await chat(),
  runTools: await runTools(),
  response: await response(),
  types: await types(),
  error: await error(),
});
