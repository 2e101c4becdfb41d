// The AI SDK with @ai-sdk/openai: its default model, which is that of responses, and that of chats.

import { createOpenAI } from "@ai-sdk/openai";
import { Output, generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import { CALL, TEXT, report, script } from "./scripts.mjs";

const openai = createOpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: "none" });
const PARIS = '{"city": "Paris", "degrees": 21}';

function weather(seen) {
  return tool({
    description: "Return the weather of a city.",
    inputSchema: z.object({ city: z.string() }),
    execute: async ({ city }) => (seen.push(city), { degrees: 21 }),
  });
}

async function generated(model) {
  const seen = [];
  const { text, steps } = await generateText({
    model,
    prompt: script(CALL, TEXT),
    tools: { weather: weather(seen) },
    stopWhen: stepCountIs(3),
    maxRetries: 0,
  });
  return [text, seen, steps.length];
}

async function streamed(model) {
  const seen = [];
  const result = streamText({
    model,
    prompt: script(CALL, TEXT),
    tools: { weather: weather(seen) },
    stopWhen: stepCountIs(3),
    maxRetries: 0,
  });
  let text = "";
  for await (const delta of result.textStream) text += delta;
  return [text, seen, (await result.steps).length];
}

async function typed(model) {
  const schema = z.object({ city: z.string(), degrees: z.number().int() });
  const { output } = await generateText({
    model,
    prompt: script(PARIS),
    output: Output.object({ schema }),
    maxRetries: 0,
  });
  return output;
}

async function reasoned(model) {
  const { text, reasoningText } = await generateText({
    model,
    prompt: script({ thought: "Paris it is.", then: TEXT }),
    providerOptions: { openai: { forceReasoning: true, reasoningEffort: "low", reasoningSummary: "auto" } },
    maxRetries: 0,
  });
  return [text, reasoningText];
}

async function all(model) {
  return {
    generated: await generated(model),
    streamed: await streamed(model),
    typed: await typed(model),
  };
}

report({
  provider: openai("dlm").provider,
  responses: await all(openai("dlm")),
  reasoned: await reasoned(openai("dlm")),
  chats: await all(openai.chat("dlm")),
});
