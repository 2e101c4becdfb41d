// @anthropic-ai/sdk: a message, its stream, its runner of tools and its errors.

import Anthropic from "@anthropic-ai/sdk";
import { CALL, SCHEMA, TEXT, report, script } from "./scripts.mjs";

const client = new Anthropic({ baseURL: process.argv[2], apiKey: "none", maxRetries: 0 });
const fixed = { model: "dlm", max_tokens: 200 };
const tools = [{ name: "weather", description: "The weather.", input_schema: SCHEMA }];

function answered(messages, message) {
  const [used] = message.content;
  const result = { type: "tool_result", tool_use_id: used.id, content: "21" };
  return [
    ...messages,
    { role: "assistant", content: message.content },
    { role: "user", content: [result] },
  ];
}

async function message() {
  const messages = [{ role: "user", content: script(CALL, TEXT) }];
  const first = await client.messages.create({ ...fixed, messages, tools });
  const rest = answered(messages, first);
  const last = await client.messages.create({ ...fixed, messages: rest, tools });
  return [first.stop_reason, first.content[0].input, last.content[0].text];
}

async function stream() {
  const messages = [{ role: "user", content: script(CALL, TEXT) }];
  const first = await client.messages.stream({ ...fixed, messages, tools }).finalMessage();
  const rest = answered(messages, first);
  const second = client.messages.stream({ ...fixed, messages: rest, tools });
  let text = "";
  second.on("text", (delta) => (text += delta));
  const last = await second.finalMessage();
  return [first.content[0].input, text, last.content[0].text];
}

async function runner() {
  const seen = [];
  const run = (given) => (seen.push(given.city), "21");
  const runnable = { ...tools[0], run, parse: (given) => given };
  const messages = [{ role: "user", content: script(CALL, TEXT) }];
  const last = await client.beta.messages.toolRunner({ ...fixed, messages, tools: [runnable] });
  return [last.content[0].text, seen];
}

async function count() {
  const messages = [{ role: "user", content: "Hello" }];
  const counted = await client.messages.countTokens({ model: "dlm", messages });
  return counted.input_tokens > 0;
}

async function error() {
  const messages = [{ role: "user", content: "Hello" }];
  try {
    await client.messages.create({ ...fixed, model: "other", messages });
  } catch (thrown) {
    return [thrown instanceof Anthropic.NotFoundError, thrown.status];
  }
}

report({
  message: await message(),
  stream: await stream(),
  runner: await runner(),
  count: await count(),
  error: await error(),
});
