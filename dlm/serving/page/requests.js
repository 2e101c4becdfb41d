"use strict";
// From a request's state to bodies and code. Nothing here touches the document.
// A state has: base (address of the server), key (whether there is one), model, turns (earlier ones, see below), prompt,
// images (data URLs, before the prompt), constraint (null, or one of {json}, {choice}, {regex}, {grammar}), tools (name,
// description, parameters), choice (auto, required, none, or {name} of a tool), effort, most (tokens), seed, temperature
// (undefined: the server's), stream.
// A turn is {role: "user", text, images}, {role: "assistant", text, calls: [{id, name, arguments}]} or {role: "tool",
// results: [{id, text}]}. With results as the last turn, an empty prompt is no turn of its own.
const FORMS = {chat: "Chat completions", responses: "Responses", messages: "Messages"};
const LANGUAGES = {curl: "curl", python: "Python", typescript: "TypeScript"};
const PATHS = {chat: "v1/chat/completions", responses: "v1/responses", messages: "v1/messages"};
const EXTRAS = {chat: ["structured_outputs"], responses: ["structured_outputs", "seed"], messages: ["seed", "temperature"]}; // unknown to SDKs

const LONGEST_IMAGE = 2000; // characters of a data URL that stands in code as it is

/** The image of a data URL as its kind and its data in base64. */
const partsOf = image => ({kind: image.slice(5, image.indexOf(";")), data: image.slice(image.indexOf(",") + 1)});

/** All turns of a conversation, with the prompt as the last. */
function turnsOf({turns = [], prompt, images = []}) {
  const answered = turns.at(-1)?.role === "tool" && !prompt && !images.length;
  return answered ? turns : [...turns, {role: "user", text: prompt, images}];
}

/** The messages that a turn becomes, in each form. */
const MESSAGES = {
  chat: {
    user: ({text, images = []}) => [{role: "user", content: images.length ? [
      ...images.map(image => ({type: "image_url", image_url: {url: image}})), {type: "text", text},
    ] : text}],
    assistant: ({text, calls}) => [{role: "assistant", content: text, ...(calls.length && {
      tool_calls: calls.map(({id, ...call}) => ({id, type: "function", function: call})),
    })}],
    tool: ({results}) => results.map(({id, text}) => ({role: "tool", tool_call_id: id, content: text})),
  },
  responses: {
    user: ({text, images = []}) => [{role: "user", content: images.length ? [
      ...images.map(image => ({type: "input_image", detail: "auto", image_url: image})), {type: "input_text", text},
    ] : text}],
    assistant: ({text, calls}) => [
      ...(text ? [{role: "assistant", content: text}] : []),
      ...calls.map(({id, name, arguments: words}) => ({type: "function_call", call_id: id, name, arguments: words})),
    ],
    tool: ({results}) => results.map(({id, text}) => ({type: "function_call_output", call_id: id, output: text})),
  },
  messages: {
    user: ({text, images = []}) => [{role: "user", content: images.length ? [
      ...images.map(partsOf).map(({kind, data}) => ({type: "image", source: {type: "base64", media_type: kind, data}})),
      {type: "text", text},
    ] : text}],
    assistant: ({text, calls}) => [{role: "assistant", content: calls.length ? [
      ...(text ? [{type: "text", text}] : []),
      ...calls.map(({id, name, arguments: words}) => ({type: "tool_use", id, name, input: JSON.parse(words)})),
    ] : text}],
    tool: ({results}) => [{role: "user", content: results.map(({id, text}) => ({type: "tool_result", tool_use_id: id, content: text}))}],
  },
};

const messagesOf = (state, form) => turnsOf(state).flatMap(turn => MESSAGES[form][turn.role](turn));

/** The input of a response: a lone prompt is a text. */
function inputOf(state) {
  const items = messagesOf(state, "responses");
  return items.length === 1 && typeof items[0].content === "string" ? items[0].content : items;
}

const withoutLong = images => (images ?? []).map(
  image => image.length <= LONGEST_IMAGE ? image : `data:${partsOf(image).kind};base64,IMAGE`);

/** The state whose code is shown: a long image is left to the reader. */
const coded = state => ({
  ...state,
  images: withoutLong(state.images),
  turns: (state.turns ?? []).map(turn => turn.images ? {...turn, images: withoutLong(turn.images)} : turn),
});

const BODIES = {
  chat({model, constraint, tools, choice, effort, most, seed, temperature, stream, ...conversation}) {
    const schema = constraint?.json;
    return {
      model,
      messages: messagesOf(conversation, "chat"),
      response_format: schema === undefined ? undefined : {type: "json_schema", json_schema: {name: "answer", schema}},
      structured_outputs: constraint && schema === undefined ? constraint : undefined,
      ...(tools.length && {
        tools: tools.map(tool => ({type: "function", function: tool})),
        tool_choice: choice.name === undefined ? choice : {type: "function", function: {name: choice.name}},
      }),
      reasoning_effort: effort === "none" ? undefined : effort,
      max_completion_tokens: most,
      seed,
      temperature,
      ...(stream && {stream, stream_options: {include_usage: true}}),
    };
  },
  responses({model, constraint, tools, choice, effort, most, seed, temperature, stream, ...conversation}) {
    const schema = constraint?.json;
    return {
      model,
      input: inputOf(conversation),
      text: schema === undefined ? undefined : {format: {type: "json_schema", name: "answer", schema}},
      structured_outputs: constraint && schema === undefined ? constraint : undefined,
      ...(tools.length && {
        tools: tools.map(tool => ({type: "function", strict: false, ...tool})),
        tool_choice: choice.name === undefined ? choice : {type: "function", name: choice.name},
      }),
      reasoning: effort === "none" ? undefined : {effort},
      max_output_tokens: most,
      seed,
      temperature,
      ...(stream && {stream}),
    };
  },
  messages({model, constraint, tools, choice, effort, most, seed, temperature, stream, ...conversation}) {
    const schema = constraint && schemaOfText(constraint);
    const format = constraint ? {type: "json_schema", schema} : undefined;
    const mode = {auto: "auto", required: "any", none: "none"}[choice];
    return {
      model,
      max_tokens: most,
      messages: messagesOf(conversation, "messages"),
      ...(tools.length && {
        tools: tools.map(({parameters, ...tool}) => ({...tool, input_schema: parameters})),
        tool_choice: mode ? {type: mode} : {type: "tool", name: choice.name},
      }),
      ...(effort !== "none" && {thinking: {type: "adaptive"}}),
      ...((format || effort !== "none") && {output_config: {effort: effort === "none" ? undefined : effort, format}}),
      seed,
      temperature,
      ...(stream && {stream}),
    };
  },
};

/** The schema that stands for a constraint in Messages, whose answers under a constraint are JSON. */
function schemaOfText({json, choice, regex, grammar}) {
  if (grammar !== undefined) throw new Error("Messages takes no grammars. Choose another form.");
  if (choice) return {type: "string", enum: choice};
  return regex === undefined ? json : {type: "string", pattern: `^(?:${regex})$`};
}

/** The body of a request in one of the forms. Throws an error for a state that the form cannot express. */
const bodyOf = (state, form) => JSON.parse(JSON.stringify(BODIES[form](state))); // without fields that are undefined

/** The body that the page sends: the streamed chat, with pictures of its canvas. */
const sentOf = state => ({
  ...bodyOf({...state, stream: true}, "chat"),
  stream_options: {include_usage: true, drafts: true},
});

/** What a reader of the code should know about a form; empty: nothing. */
function noteOf({constraint, turns = [], images = []}, form) {
  const notes = [];
  if (form === "messages" && constraint && constraint.json === undefined)
    notes.push("Words and regexes become a schema of a JSON text: the answer stands in quotes.");
  if ([...images, ...turns.flatMap(turn => turn.images ?? [])].some(image => image.length > LONGEST_IMAGE)) notes.push("IMAGE stands for the file in base64.");
  return notes.join(" ");
}

const bare = /^[A-Za-z_$][\w$]*$/;
const STYLES = {
  json: {words: {null: "null", true: "true", false: "false"}, step: "  ", key: JSON.stringify},
  python: {words: {null: "None", true: "True", false: "False"}, step: "    ", key: JSON.stringify},
  typescript: {
    words: {null: "null", true: "true", false: "false"},
    step: "  ",
    key: name => (name === "__proto__" ? '["__proto__"]' : bare.test(name) ? name : JSON.stringify(name)),
  },
};
const WIDTH = 88; // characters of a line, where values can be broken

/** A JSON value as a literal. JSON's escapes in texts mean the same in Python and in TypeScript. */
function literal(value, style, indent = "") {
  if (value === null || typeof value === "boolean") return style.words[value];
  if (typeof value !== "object") return JSON.stringify(value);
  const [open, close] = Array.isArray(value) ? "[]" : "{}", inner = indent + style.step;
  const parts = Array.isArray(value)
    ? value.map(one => literal(one, style, inner))
    : Object.entries(value).map(([name, one]) => `${style.key(name)}: ${literal(one, style, inner)}`);
  const line = open + parts.join(", ") + close;
  if (indent.length + line.length <= WIDTH && !line.includes("\n")) return line;
  return `${open}\n${parts.map(part => inner + part).join(",\n")}\n${indent}${close}`;
}

/** A text as one word of a POSIX shell. */
const quoted = words => `'${words.replaceAll("'", "'\\''")}'`;

function curlOf(state, form) {
  const lines = [`curl ${state.stream ? "--no-buffer " : ""}${quoted(`${state.base}/${PATHS[form]}`)}`];
  if (state.key) lines.push('--header "Authorization: Bearer $DLM_API_KEY"');
  return `${[...lines, `--json ${quoted(literal(bodyOf(state, form), STYLES.json))}`].join(" \\\n  ")}\n`;
}

const METHODS = {chat: "client.chat.completions.create", responses: "client.responses.create", messages: "client.messages.create"};

function pythonOf(state, form) {
  const body = bodyOf(state, form), extras = {}, style = STYLES.python;
  for (const name of EXTRAS[form].filter(one => one in body)) [extras[name], body[name]] = [body[name], undefined];
  if (Object.keys(extras).length) body.extra_body = extras;
  const named = (name, value) => `${name}=${literal(value, style, style.step)}`;
  const given = Object.entries(body).filter(([, value]) => value !== undefined);
  const library = form === "messages" ? "anthropic" : "openai", kind = form === "messages" ? "Anthropic" : "OpenAI";
  const address = named("base_url", state.base + (form === "messages" ? "" : "/v1"));
  return [
    `# pip install ${library}`,
    ...(state.key ? ["import os", ""] : []),
    `from ${library} import ${kind}`,
    "",
    `client = ${kind}(${address}, api_key=${state.key ? 'os.environ["DLM_API_KEY"]' : '"none"'})`,
    `answer = ${METHODS[form]}(`,
    ...given.map(([name, value]) => `${style.step}${named(name, value)},`),
    ")",
    ...PYTHON_READERS[form](state),
    "",
  ].join("\n");
}

const PYTHON_READERS = {
  chat: ({stream, tools}) => stream ? [
    "for chunk in answer:",
    "    for choice in chunk.choices:",
    '        print(choice.delta.content or "", end="", flush=True)',
    ...(tools.length ? [
      "        for call in choice.delta.tool_calls or []:",
      "            if call.function.name:",
      '                print(call.function.name, end=" ")',
      '            print(call.function.arguments or "", end="", flush=True)',
    ] : []),
  ] : [
    "message = answer.choices[0].message",
    'print(message.content or "")',
    ...(tools.length ? ["for call in message.tool_calls or []:", "    print(call.function.name, call.function.arguments)"] : []),
  ],
  responses: ({stream, tools}) => stream ? [
    "for event in answer:",
    '    if event.type == "response.output_text.delta":',
    '        print(event.delta, end="", flush=True)',
    ...(tools.length ? [
      '    elif event.type == "response.output_item.done" and event.item.type == "function_call":',
      "        print(event.item.name, event.item.arguments)",
    ] : []),
  ] : [
    "print(answer.output_text)",
    ...(tools.length ? ["for item in answer.output:", '    if item.type == "function_call":', "        print(item.name, item.arguments)"] : []),
  ],
  messages: ({stream, tools}) => stream ? [
    "for event in answer:",
    '    if event.type == "content_block_delta" and event.delta.type == "text_delta":',
    '        print(event.delta.text, end="", flush=True)',
    ...(tools.length ? [
      '    elif event.type == "content_block_start" and event.content_block.type == "tool_use":',
      '        print(event.content_block.name, end=" ")',
      '    elif event.type == "content_block_delta" and event.delta.type == "input_json_delta":',
      '        print(event.delta.partial_json, end="", flush=True)',
    ] : []),
  ] : [
    "for block in answer.content:",
    '    if block.type == "text":',
    "        print(block.text)",
    ...(tools.length ? ['    elif block.type == "tool_use":', "        print(block.name, block.input)"] : []),
  ],
};

function typescriptOf(state, form) {
  const body = bodyOf(state, form), style = STYLES.typescript;
  const lines = Object.entries(body).map(([name, value]) => {
    if (!EXTRAS[form].includes(name)) return `  ${name}: ${literal(value, style, "  ")},`;
    return `  ...${literal({[name]: value}, style, "  ")}, // a field that the SDK's types do not have`;
  });
  const anthropic = form === "messages", kind = anthropic ? "Anthropic" : "OpenAI";
  const library = anthropic ? "@anthropic-ai/sdk" : "openai";
  return [
    `// npm install ${library}`,
    `import ${kind} from "${library}";`,
    "",
    `const client = new ${kind}({`,
    `  baseURL: ${JSON.stringify(state.base + (anthropic ? "" : "/v1"))},`,
    `  apiKey: ${state.key ? "process.env.DLM_API_KEY" : '"none"'},`,
    "});",
    `const answer = await ${METHODS[form]}({`,
    ...lines,
    "});",
    ...TYPESCRIPT_READERS[form](state),
    "",
  ].join("\n");
}

const TYPESCRIPT_READERS = {
  chat: ({stream, tools}) => stream ? [
    "for await (const chunk of answer) {",
    "  for (const choice of chunk.choices) {",
    '    process.stdout.write(choice.delta.content ?? "");',
    ...(tools.length ? [
      "    for (const call of choice.delta.tool_calls ?? []) {",
      "      if (call.function?.name) process.stdout.write(`${call.function.name} `);",
      '      process.stdout.write(call.function?.arguments ?? "");',
      "    }",
    ] : []),
    "  }",
    "}",
  ] : [
    "const message = answer.choices[0].message;",
    'console.log(message.content ?? "");',
    ...(tools.length ? [
      "for (const call of message.tool_calls ?? []) {",
      '  if (call.type === "function") console.log(call.function.name, call.function.arguments);',
      "}",
    ] : []),
  ],
  responses: ({stream, tools}) => stream ? [
    "for await (const event of answer) {",
    '  if (event.type === "response.output_text.delta") process.stdout.write(event.delta);',
    ...(tools.length ? [
      '  if (event.type === "response.output_item.done" && event.item.type === "function_call") {',
      "    console.log(event.item.name, event.item.arguments);",
      "  }",
    ] : []),
    "}",
  ] : [
    "console.log(answer.output_text);",
    ...(tools.length ? [
      "for (const item of answer.output) {",
      '  if (item.type === "function_call") console.log(item.name, item.arguments);',
      "}",
    ] : []),
  ],
  messages: ({stream, tools}) => stream ? [
    "for await (const event of answer) {",
    '  if (event.type === "content_block_delta" && event.delta.type === "text_delta") {',
    "    process.stdout.write(event.delta.text);",
    "  }",
    ...(tools.length ? [
      '  if (event.type === "content_block_start" && event.content_block.type === "tool_use") {',
      "    process.stdout.write(`${event.content_block.name} `);",
      "  }",
      '  if (event.type === "content_block_delta" && event.delta.type === "input_json_delta") {',
      "    process.stdout.write(event.delta.partial_json);",
      "  }",
    ] : []),
    "}",
  ] : [
    "for (const block of answer.content) {",
    '  if (block.type === "text") console.log(block.text);',
    ...(tools.length ? ['  if (block.type === "tool_use") console.log(block.name, block.input);'] : []),
    "}",
  ],
};

/** A program that sends the request in a form and prints its answer. */
const codeOf = (state, form, language) =>
  ({curl: curlOf, python: pythonOf, typescript: typescriptOf})[language](coded(state), form);

// Parameters of a tool, as rows of a form: name, type, required.
const TYPES = {
  text: {type: "string"},
  number: {type: "number"},
  "whole number": {type: "integer"},
  "true or false": {type: "boolean"},
  "list of texts": {type: "array", items: {type: "string"}},
};

const schemaOf = rows => ({
  type: "object",
  properties: Object.fromEntries(rows.map(({name, type}) => [name, TYPES[type]])),
  required: rows.filter(row => row.required).map(row => row.name),
});

/** The rows that mean the same as a schema; null: no rows do. */
function rowsOf(schema) {
  const {type, properties = {}, required = [], ...others} = schema ?? {};
  if (type !== "object" || Object.keys(others).length || !Array.isArray(required)) return null;
  const rows = Object.entries(properties).map(([name, inner]) => {
    const kind = Object.keys(TYPES).find(one => JSON.stringify(TYPES[one]) === JSON.stringify(inner));
    return {name, type: kind, required: required.includes(name)};
  });
  const names = rows.map(row => row.name);
  return rows.every(row => row.type) && required.every(name => names.includes(name)) ? rows : null;
}

