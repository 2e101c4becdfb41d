// LibreChat's client library with its settings: a chat with a tool, titles, and dropped parameters.

import { HumanMessage, SystemMessage, ToolMessage } from "@langchain/core/messages";
import { ChatOpenAI } from "@langchain/openai";
import { z } from "zod";
import { CALL, SCHEMA, TEXT, call, report, script } from "./scripts.mjs";

const settings = {
  model: "dlm",
  apiKey: "none",
  user: "665f0c1b2a",
  streaming: true,
  streamUsage: true,
  maxRetries: 0,
  configuration: { baseURL: `${process.argv[2]}/v1` },
};
const sampling = { temperature: 1, topP: 1, presencePenalty: 0, frequencyPenalty: 0, maxTokens: 200 };

async function streamed(model, messages) {
  let whole;
  for await (const chunk of await model.stream(messages)) {
    whole = whole ? whole.concat(chunk) : chunk;
  }
  return whole;
}

async function chat() {
  const tool = { type: "function", function: { name: "weather", parameters: SCHEMA } };
  const model = new ChatOpenAI({ ...settings, ...sampling }).bindTools([tool]);
  const messages = [new SystemMessage("Help."), new HumanMessage(script(CALL, TEXT))];
  const first = await streamed(model, messages);
  const [made] = first.tool_calls;
  messages.push(first, new ToolMessage({ content: "21", name: made.name, tool_call_id: made.id }));
  const last = await streamed(model, messages);
  return [made.name, made.args, last.content, last.usage_metadata.output_tokens > 0];
}

// What `dropParams` leaves out of the settings is not sent.
async function dropped() {
  const model = new ChatOpenAI({ ...settings, user: undefined, streaming: false });
  return (await model.invoke(script(TEXT))).content;
}

async function title(method) {
  const model = new ChatOpenAI({ ...settings, streaming: false, temperature: 0.2 });
  const answer = { language: "English", title: "Weather in Paris" };
  const step = method === "functionCalling" ? [call("extract", answer)] : JSON.stringify(answer);
  const form = z.object({ language: z.string(), title: z.string().describe("A short title") });
  return model.withStructuredOutput(form, { method }).invoke(script(step));
}

report({
  chat: await chat(),
  dropped: await dropped(),
  titles: [await title("functionCalling"), await title("jsonSchema")],
});
