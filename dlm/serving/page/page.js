"use strict";
// The page: its form, the conversation, requests and their errors, replay, links, and the request in code.

const calm = matchMedia("(prefers-reduced-motion: reduce)");
const CALM_PAUSE = 500; // milliseconds between two pictures of a canvas, where motion is to be reduced
const REPLAY_PAUSE = 400; // milliseconds between two pictures of a replay
const CONTROLS = { // by field of a body, the control of the form that it comes from
  messages: "prompt", response_format: "constraint", structured_outputs: "constraint", tools: "add", tool_choice: "choice",
  model: "model", seed: "seed", max_completion_tokens: "most", temperature: "temperature", reasoning_effort: "effort",
};
const LABELS = {json: "JSON schema", choice: "Choices", regex: "Regular expression", grammar: "Grammar"};
const MODES = {auto: "if it wants", required: "at least one", none: "none"};

const form = {turns: [], tools: [], images: [], sources: {...SOURCES}}; // what no control holds
let running = null; // an AbortController
let last = Promise.resolve(); // the end of what was asked last
let playing = null; // the timer of a replay
let asked = null; // the state of the answers that are shown

// Errors: each is shown once, beside its control where it has one.

function showFault({control, message, line}) {
  at("problem").textContent = message;
  if (!control) return at("bar").before(at("problem"));
  control.closest("details")?.setAttribute("open", "");
  (control.closest(".row, .editor") ?? control).after(at("problem"));
  control.setAttribute("aria-invalid", "true");
  control.setAttribute("aria-describedby", "problem");
  if (control === at("constraint")) number(line);
}

function clearFault() {
  at("problem").textContent = "";
  at("bar").before(at("problem"));
  for (const control of document.querySelectorAll("[aria-invalid]")) {
    control.removeAttribute("aria-invalid");
    control.removeAttribute("aria-describedby");
  }
  number();
}

/** An error for an answer of the server that is none. */
function faultOf(status, error) {
  const words = error?.message ?? "", control = status === 401 ? at("key") : at(CONTROLS[error?.param]);
  if (status === 401) return new Fault(control, "This server wants an API key. Write it here.");
  if (status === 413 || status === 431) return new Fault(null, "The request is too large for this server. Use fewer or smaller images.");
  if (status === 429) return new Fault(null, "The server is busy. Ask again in a moment.");
  if (status >= 500) return new Fault(null, "The server has a problem of its own. Its log says which.");
  if (error?.code === "context_length_exceeded") return new Fault(at("prompt"), `This is too long for the model: ${words}`);
  if (status === 422) return new Fault(null, `No valid answer could be made: ${words}`);
  if (/policy|not served|takes no (regex|grammar)/.test(words) && ["regex", "grammar"].includes(at("kind").value))
    return new Fault(at("constraint"), "This server takes schemas, choices and tools alone. Started with --policy all, it takes this too.");
  const reason = words.replace(/^[\w.[\]]+: /, "") || `status ${status}`; // without the field of the body
  if (control !== at("constraint")) return new Fault(control, `The server refuses this: ${reason}.`);
  const offset = at("kind").value === "json" ? offsetIn(words, readJson(control.value).places) : undefined;
  const line = offset && placeOf(control.value, offset).line;
  const where = line ? `line ${line}, ` : "", what = LABELS[at("kind").value];
  const why = reason.replace(/^(JSON schema|regex|grammar|choice)( at)?[: ]*/, "").replace(/^\/\S*: /, "");
  return Object.assign(new Fault(control, `${what} refused: ${where}${why}.`), {line});
}

// Requests.

const keyHeader = () => (at("key").value ? {Authorization: `Bearer ${at("key").value}`} : {});

/** The chunks of a stream of server-sent events. Throws a `Fault`. */
async function* chunksOf(body, signal) {
  const headers = {"Content-Type": "application/json", ...keyHeader()};
  const options = {method: "POST", headers, body: JSON.stringify(body), signal};
  const answer = await fetch(PATHS.chat, options).catch(error => {
    throw error.name === "AbortError" ? error : new Fault(null, "The server cannot be reached. Does it still run?");
  });
  if (!answer.ok) throw faultOf(answer.status, parsed(await answer.text())?.error);
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = "";;) {
    const {value, done} = await reader.read();
    if (done) throw new Fault(null, "The connection ended before the answer did.");
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      if (part === "data: [DONE]") return;
      if (!part.startsWith("data: ")) continue; // a sign of life
      const chunk = JSON.parse(part.slice(6));
      if (chunk.error) throw faultOf(400, chunk.error);
      yield chunk;
    }
  }
}

/** Draws both films to one scale. */
function fit() {
  const width = Math.min(...lanes.map(lane => lane.room));
  for (const lane of lanes) lane.fit(width);
}

const lanes = [];
lanes.push(new Lane("Under the constraint", seek, fit), new Lane("Free", seek, fit));
at("lanes").append(...lanes.map(lane => lane.section));

async function ask() {
  let state;
  clearFault();
  try {
    state = readState();
  } catch (fault) {
    if (!(fault instanceof Fault)) throw fault;
    showFault(fault);
    fault.control?.focus();
    return;
  }
  running?.abort();
  const mine = running = new AbortController(), bound = state.constraint || (state.tools.length && state.choice !== "none");
  at("stop").hidden = false;
  await last;
  if (running !== mine) return;
  const two = Boolean(bound) && at("beside").checked, check = checkOf(state);
  begin(state, bound, two);
  const bodies = [sentOf(state), sentOf({...state, constraint: null, tools: []})];
  const asking = lanes.slice(0, two ? 2 : 1).map((lane, i) => lane.ask(bodies[i], check, mine.signal));
  last = Promise.allSettled(asking);
  const ends = await last;
  if (running !== mine) return;
  finish(ends);
}

/** Clears the picture for answers to a request. */
function begin(state, bound, two) {
  asked = null;
  at("stage").hidden = false;
  at("after").hidden = true;
  at("masks").hidden = true;
  at("summary").textContent = "The model writes.";
  for (const lane of lanes) lane.clear();
  lanes[0].rename(state.constraint ? "Under the constraint" : bound ? "With tools" : "Answer");
  lanes[1].section.hidden = !two;
  at("lanes").classList.toggle("two", two);
  allowReplay(false);
  asked = state;
  if (at("stage").getBoundingClientRect().top > innerHeight * .6)
    at("stage").scrollIntoView({behavior: calm.matches ? "auto" : "smooth"});
}

/** Shows how requests have ended; an error is shown once, whichever of them it is of. */
function finish(ends) {
  running = null;
  if (document.activeElement === at("stop")) at("go").focus();
  at("stop").hidden = true;
  const failure = ends.find(end => end.status === "rejected")?.reason;
  if (failure) {
    if (!(failure instanceof Fault)) throw failure;
    for (const lane of lanes) lane.clear();
    at("stage").hidden = true;
    at("summary").textContent = "";
    showFault(failure);
    return;
  }
  at("summary").textContent = ends.map(end => end.value).join(" ");
  at("masks").hidden = !lanes.some(lane => lane.picture.rows.some(row => row.cells.some(cell => cell.kind === "mask")));
  at("after").hidden = lanes[0].section.dataset.state !== "done";
  allowReplay(true);
}

// Replay.

/** Shows pass `number` of both answers; beyond the last one, the whole answers. */
function seek(number) {
  at("frame").value = number;
  const shown = Number(at("frame").value), most = Number(at("frame").max);
  const words = shown < most ? `pass ${shown + 1} of ${most}` : most ? "answer" : "";
  at("frames").textContent = words;
  at("frame").setAttribute("aria-valuetext", words);
  for (const lane of lanes) lane.seek(shown);
}

function pause() {
  clearInterval(playing);
  playing = null;
  delete at("play").dataset.playing;
  at("play").setAttribute("aria-label", "Replay");
}

function play() {
  if (playing) return pause();
  if (at("frame").value === at("frame").max) seek(0);
  at("play").dataset.playing = "";
  at("play").setAttribute("aria-label", "Pause");
  playing = setInterval(() => {
    seek(Number(at("frame").value) + 1);
    if (at("frame").value === at("frame").max) pause();
  }, REPLAY_PAUSE);
}

/** Lets the passes be shown again, or not while a request runs. */
function allowReplay(allowed) {
  pause();
  const most = allowed ? Math.max(...lanes.map(lane => lane.passes)) : 0;
  at("play").disabled = at("frame").disabled = !most;
  at("frame").max = most;
  at("frame").value = most;
  at("frames").textContent = most ? "answer" : "";
}

// The form.

/** The request that the form describes. Throws a `Fault`. */
function readState() {
  for (const control of at("form").querySelectorAll("#settings input"))
    if (!control.checkValidity()) throw new Fault(control, control.validationMessage);
  const number = id => (at(id).value === "" ? undefined : Number(at(id).value));
  const choice = at("choice").value, tools = form.tools.map(tool => tool.read());
  tools.forEach(({name}, i) => {
    if (tools.findIndex(tool => tool.name === name) < i) throw new Fault(form.tools[i].part(".name"), `There are two tools ${name}.`);
  });
  const turns = [...form.turns], open = turns.at(-1)?.calls ?? [];
  if (open.length) {
    const results = [...at("results").querySelectorAll("textarea")].map((box, i) => ({id: open[i].id, text: box.value}));
    turns.push({role: "tool", results});
  } else if (!at("prompt").value) {
    throw new Fault(at("prompt"), "The prompt is empty.");
  }
  return {
    base: new URL(".", location.href).href.replace(/\/$/, ""),
    key: at("key").value !== "",
    model: at("model").value,
    turns,
    prompt: at("prompt").value,
    images: form.images.map(image => image.url),
    constraint: readConstraint(),
    tools,
    choice: choice.startsWith("=") ? {name: tools[Number(choice.slice(1))].name} : choice,
    effort: at("effort").value,
    most: number("most"),
    seed: number("seed"),
    temperature: number("temperature"),
    stream: at("stream").checked,
  };
}

function readConstraint() {
  const kind = at("kind").value, source = at("constraint").value;
  if (kind === "none") return null;
  if (!source.trim()) throw new Fault(at("constraint"), "The constraint is empty. Write it, or choose none.");
  if (kind === "json") return {json: jsonIn(at("constraint"), "The schema").value};
  return {[kind]: kind === "choice" ? source.split("\n").filter(line => line.trim()) : source};
}

/** Numbers the lines of the constraint, and marks the wrong one. */
function number(wrong) {
  const count = at("constraint").value.split("\n").length;
  at("gutter").replaceChildren(...Array.from({length: count}, (_, i) =>
    Object.assign(document.createElement("span"), {textContent: i + 1, className: i + 1 === wrong ? "bad" : ""})));
  at("gutter").scrollTop = at("constraint").scrollTop;
}

/** Shows a constraint of a kind, with its text. */
function showKind(kind, source) {
  at("kind").value = kind;
  at("constraint").setAttribute("aria-label", LABELS[kind] ?? "Constraint");
  at("constraint").value = source;
  at("editor").hidden = kind === "none";
  number();
}

function toolForm(tool) {
  return new ToolForm(tool, render, gone => {
    clearFault();
    form.tools.splice(form.tools.indexOf(gone), 1);
    at("add").focus();
    if (at("choice").value.startsWith("=")) at("choice").value = "auto"; // numbers of tools have changed
    showTools();
    render();
  });
}

function addTool(made) {
  form.tools.push(made);
  at("tools").append(made.field);
}

/** Shows other tools. Those that cannot be shown throw, and the form stays as it is. */
function setTools(tools, choice = "auto") {
  const made = tools.map(toolForm);
  form.tools.length = 0;
  at("tools").replaceChildren();
  made.forEach(addTool);
  showTools();
  at("choice").value = choice;
}

/** Shows the names of the tools, and what may be called. */
function showTools() {
  const names = form.tools.map(tool => tool.part(".name").value.trim()), before = at("choice").value;
  at("count").textContent = names.join(", ") || "none";
  at("choice").replaceChildren(
    ...Object.entries(MODES).map(([value, words]) => new Option(words, value)),
    ...names.map((name, i) => new Option(`${name || "this one"} alone`, `=${i}`)));
  at("choice").value = before;
  if (at("choice").selectedIndex < 0) at("choice").value = "auto";
}

/** Shows the images of the prompt. */
function showImages() {
  at("thumbnails").replaceChildren(...form.images.map((image, i) => {
    const item = document.createElement("li");
    const remove = Object.assign(document.createElement("button"), {type: "button", textContent: "✕"});
    remove.setAttribute("aria-label", `Remove ${image.name}`);
    remove.onclick = () => {
      form.images.splice(i, 1);
      showImages();
      render();
    };
    item.append(Object.assign(new Image(), {src: image.url, alt: image.name}), remove);
    return item;
  }));
}

const dataUrl = file => new Promise((resolve, reject) => {
  const reader = new FileReader();
  reader.onload = () => resolve(reader.result);
  reader.onerror = () => reject(reader.error);
  reader.readAsDataURL(file);
});

function showExample(name) {
  const example = EXAMPLES[name];
  clearFault();
  startOver();
  at("prompt").value = example.prompt;
  form.sources[example.kind] = example.constraint;
  showKind(example.kind, example.constraint);
  setTools(example.tools ?? [], example.choice);
  for (const button of at("examples").children) button.setAttribute("aria-pressed", button.textContent === name);
  render();
}

// The conversation.

/** Shows the turns so far, and a box for the result of each call of the last one. */
function showTurns() {
  const names = {user: "You", assistant: "Model", tool: "Tools"};
  at("turns").hidden = at("start-over").hidden = !form.turns.length;
  at("examples").hidden = form.turns.length > 0;
  at("turns").replaceChildren(...form.turns.map(turn => {
    const item = Object.assign(document.createElement("li"), {className: turn.role});
    const words = turn.role === "tool" ? turn.results.map(result => result.text)
      : [turn.text, ...(turn.calls ?? []).map(call => `${call.name} ${call.arguments}`)];
    item.append(
      Object.assign(document.createElement("b"), {textContent: names[turn.role]}),
      Object.assign(document.createElement("pre"), {textContent: words.filter(Boolean).join("\n")}));
    return item;
  }));
  const calls = form.turns.at(-1)?.calls ?? [];
  at("results").replaceChildren(...calls.map(call => {
    const label = document.createElement("label");
    label.append(`Result of ${call.name} ${call.arguments}`, Object.assign(document.createElement("textarea"), {rows: 2}));
    return label;
  }));
}

/** Makes the shown answer a turn of the conversation, and leaves the prompt to the next one. */
function goOn() {
  const {text, calls} = lanes[0].picture;
  form.turns = [...turnsOf(asked), {role: "assistant", text, calls: calls.map(call => ({...call}))}];
  at("prompt").value = "";
  form.images = [];
  if (calls.length) at("choice").value = "auto";
  at("after").hidden = true;
  showImages();
  showTurns();
  render();
  (at("results").querySelector("textarea") ?? at("prompt")).focus();
}

function startOver() {
  form.turns = [];
  form.images = [];
  showImages();
  showTurns();
}

// Links that carry a request: in the part of an address that is not sent to the server.

const LINKED = ["prompt", "kind", "constraint", "choice", "seed", "most", "temperature", "effort"]; // controls

function linkOf() {
  const carried = Object.fromEntries(LINKED.map(id => [id, at(id).value]));
  carried.tools = form.tools.map(tool => tool.read());
  carried.turns = form.turns.map(turn => (turn.images ? {...turn, images: []} : turn));
  const bytes = new TextEncoder().encode(JSON.stringify(carried));
  const words = btoa(Array.from(bytes, byte => String.fromCharCode(byte)).join(""));
  return `${location.href.split("#")[0]}#request=${words.replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "")}`;
}

/** Fills the form with the request of a link, if the address has one; nothing is sent. Returns whether it has. */
function openLink() {
  const words = /^#request=([\w-]+)$/.exec(location.hash)?.[1];
  if (!words) return false;
  try {
    const raw = atob(words.replaceAll("-", "+").replaceAll("_", "/"));
    const carried = JSON.parse(new TextDecoder().decode(Uint8Array.from(raw, one => one.charCodeAt(0))));
    const turns = carried.turns.map(readTurn), kind = Object.hasOwn(SOURCES, carried.kind) ? carried.kind : "none";
    const values = LINKED.map(id => String(carried[id]));
    setTools(carried.tools); // all that may throw is before this, or in it
    startOver();
    form.turns = turns;
    showTurns();
    LINKED.forEach((id, i) => { at(id).value = values[i]; });
    showKind(kind, form.sources[kind] = String(carried.constraint));
    render();
    return true;
  } catch {
    showFault(new Fault(null, "The link holds no request that this page can read."));
    return false;
  }
}

/** A turn of a link, with nothing in it that is none of a turn. Images are files, which a link leaves out. */
function readTurn({role, text, calls, results}) {
  if (role === "user") return {role, text: String(text), images: []};
  if (role === "tool") return {role, results: results.map(one => ({id: String(one.id), text: String(one.text)}))};
  if (role !== "assistant") throw new Error("a turn of nobody");
  const read = call => ({id: String(call.id), name: String(call.name), arguments: JSON.stringify(JSON.parse(call.arguments))});
  return {role, text: String(text), calls: calls.map(read)};
}

// Code.

const chosen = name => document.querySelector(`input[name=${name}]:checked`).value;

/** Shows the form's request in code. */
function render() {
  at("copied").textContent = "";
  if (!at("code").open) return;
  let code = "", note;
  try {
    const state = readState();
    code = codeOf(state, chosen("forms"), chosen("languages"));
    note = noteOf(state, chosen("forms"));
  } catch (error) {
    note = error.message;
  }
  at("note").textContent = note;
  at("snippet").textContent = code;
  at("copy").disabled = !code;
}

/** Puts words on the clipboard, which browsers give to pages of https and of this machine alone. */
async function copy(words, what, otherwise) {
  try {
    await navigator.clipboard.writeText(words);
    at("copied").textContent = `${what} is copied.`;
  } catch {
    otherwise();
  }
}

/** Asks the server for its models, and shows what the first of them reads. A server with keys answers those who have one. */
async function offerModels() {
  const answer = await fetch("v1/models", {headers: keyHeader()}).catch(() => null);
  if (!answer?.ok) return;
  const cards = (await answer.json()).data;
  at("models").replaceChildren(...cards.map(({id}) => new Option(id, id)));
  at("model").value ||= cards[0].id;
  at("pictures").hidden = !cards[0].input_modalities?.includes("image");
  render();
}

at("examples").append(...Object.keys(EXAMPLES).map(name => {
  const button = Object.assign(document.createElement("button"), {type: "button", textContent: name});
  button.onclick = () => showExample(name);
  return button;
}));
for (const [name, names] of Object.entries({forms: FORMS, languages: LANGUAGES}))
  for (const [value, words] of Object.entries(names)) {
    const input = Object.assign(document.createElement("input"), {type: "radio", name, value, checked: value === Object.keys(names)[0]});
    const label = document.createElement("label");
    label.append(input, ` ${words}`);
    at(name).append(label);
  }
showExample(Object.keys(EXAMPLES)[0]);
openLink();

at("kind").onchange = () => {
  clearFault();
  showKind(at("kind").value, form.sources[at("kind").value]);
};
at("constraint").oninput = () => {
  form.sources[at("kind").value] = at("constraint").value;
  number();
};
at("constraint").onscroll = () => { at("gutter").scrollTop = at("constraint").scrollTop; };
at("images").onchange = async () => {
  const files = [...at("images").files];
  const urls = await Promise.all(files.map(dataUrl));
  form.images.push(...urls.map((url, i) => ({url, name: files[i].name})));
  at("images").value = "";
  showImages();
  render();
};
at("add").onclick = () => {
  const made = toolForm({name: "", description: "", parameters: schemaOf([])});
  addTool(made);
  made.part(".name").focus();
  showTools();
  render();
};
at("tools").oninput = showTools;
at("key").onchange = offerModels;
at("go-on").onclick = goOn;
at("start-over").onclick = () => {
  startOver();
  render();
  at("prompt").focus();
};
at("share").onclick = () => {
  clearFault();
  try {
    const link = linkOf();
    copy(link, "The link", () => { history.replaceState(null, "", link); at("copied").textContent = "The address of this page is the link now."; });
  } catch (fault) {
    if (!(fault instanceof Fault)) throw fault;
    showFault(fault);
  }
};
at("copy").onclick = () => copy(at("snippet").textContent, "The code", () => {
  getSelection().selectAllChildren(at("snippet"));
  at("copied").textContent = "The code is selected: copy it with Ctrl+C.";
});
at("code").ontoggle = render;
at("play").onclick = play;
at("frame").oninput = () => {
  pause();
  seek(Number(at("frame").value));
};
at("form").onsubmit = event => {
  event.preventDefault();
  ask();
};
at("stop").onclick = () => running?.abort();
document.addEventListener("input", event => event.target === at("frame") || render());
document.addEventListener("change", event => event.target === at("frame") || render());
document.onkeydown = event => {
  if (event.key === "Escape") running?.abort();
  const asks = event.ctrlKey || event.metaKey || (event.target === at("prompt") && !event.shiftKey);
  if (event.key !== "Enter" || !asks || event.isComposing || !at("form").contains(event.target)) return;
  event.preventDefault();
  at("form").requestSubmit();
};
window.onhashchange = openLink;
offerModels();
