"use strict";
// One of the two answers on the page: its canvas in large, a film of all passes, its verdict and its numbers.

const WIDEST_CHARACTER = 8.4; // pixels of the film
const READABLE = 5.4; // pixels of a character; in narrower films only colours are shown
const NARROWEST_CHARACTER = 1.2;
const NUMBERS = 28; // pixels of the column of numbers

const spanOf = (words, kind) => Object.assign(document.createElement("span"), {textContent: words, className: `cell ${kind}`});

class Lane {
  /** `seek` is called with a pass that is clicked, `grown` when the film has another pass or another width. */
  constructor(name, seek, grown) {
    this.grown = grown;
    this.section = at("lane").content.cloneNode(true).firstElementChild;
    this.rename(name);
    this.part(".film").onclick = event => {
      const pass = event.target.closest(".pass");
      if (pass) seek([...this.part(".film").children].indexOf(pass));
    };
    new ResizeObserver(grown).observe(this.part(".film"));
    this.clear();
  }

  part(selector) { return this.section.querySelector(selector); }

  rename(name) {
    this.name = name;
    this.section.setAttribute("aria-label", name);
    this.part("h2").textContent = name;
    this.part(".page").setAttribute("aria-label", `Answer, ${name.toLowerCase()}`);
  }

  get passes() { return this.picture.rows.length; }

  clear() {
    this.picture = new Picture();
    this.ended = null; // the verdict about the whole answer
    this.section.dataset.state = "empty";
    for (const part of [".film", ".text", ".calls"]) this.part(part).replaceChildren();
    this.thought("");
    this.verdict("", "");
    this.numbers({});
  }

  verdict(words, kind) {
    this.part(".verdict").textContent = words;
    this.part(".verdict").className = `verdict ${kind}`;
  }

  thought(words) {
    this.part(".thought").textContent = words;
    this.part(".thought").hidden = !words;
  }

  numbers(numbers) {
    for (const name of ["passes", "tokens", "rate", "seconds"])
      this.part(`[data-number=${name}]`).textContent = numbers[name] ?? "–";
  }

  /** Asks, and follows the stream to its end. Throws what the stream throws; returns a sentence about the answer. */
  async ask(body, check, signal) {
    this.clear();
    this.section.dataset.state = "running";
    const begun = performance.now();
    try {
      for await (const chunk of chunksOf(body, signal)) {
        this.picture.take(chunk, (performance.now() - begun) / 1000);
        if (!chunk.draft) continue;
        this.addPass();
        if (this.watched) this.seek(this.passes - 1);
      }
    } catch (error) {
      this.section.dataset.state = signal.aborted ? "stopped" : "failed";
      if (!signal.aborted) throw error;
      this.verdict("stopped", "");
      return `${this.name}: stopped.`;
    }
    return this.end(check);
  }

  get watched() { // a calm page draws less often
    const now = performance.now();
    if (calm.matches && now - (this.drawn ?? -Infinity) < CALM_PAUSE) return false;
    this.drawn = now;
    return true;
  }

  end(check) {
    const {text, calls, usage, reason} = this.picture;
    const holds = check.holds(text, calls), cut = reason === "length" ? ", cut short" : "";
    const unknown = check.yes && (calls.length || !check.ofCalls) ? "not judged here" : "";
    const [words, kind] = holds === undefined ? [unknown, ""]
      : holds ? [check.yes, "right"] : [check.no, "wrong"];
    this.ended = {words: words + cut, kind};
    this.section.dataset.state = "done";
    this.seek(Infinity);
    const passes = this.passes ? ` in ${this.picture.rows.at(-1).passes} passes` : "";
    return `${this.name}: ${usage.completion_tokens} tokens${passes}${words && `, ${words}`}${cut}.`;
  }

  /** Adds the newest pass to the film. */
  addPass() {
    const row = this.picture.rows.at(-1), pass = document.createElement("div");
    pass.className = "pass";
    const number = Object.assign(document.createElement("span"), {className: "number", textContent: row.passes});
    const before = onLine(row.before);
    const cells = [...(row.before ? [{text: before, kind: "committed"}] : []), ...row.cells].map(({text, kind}) => {
      const cell = spanOf(text, kind);
      cell.style.setProperty("--n", text.length);
      return cell;
    });
    if (row.frontier !== null) cells[row.frontier + (row.before ? 1 : 0)].classList.add("frontier");
    pass.title = `pass ${row.passes}, ${row.entropy.toFixed(3)} nats a position`;
    pass.append(number, ...cells);
    this.part(".film").append(pass);
    this.grown();
  }

  /** The width of a character, in pixels, at which the widest pass fits. */
  get room() {
    const film = this.part(".film");
    return film.clientWidth ? (film.clientWidth - NUMBERS) / widest(this.picture.rows) : Infinity;
  }

  /** Draws the film with characters of a width. */
  fit(width) {
    const chosen = Math.max(NARROWEST_CHARACTER, Math.min(WIDEST_CHARACTER, width));
    this.part(".film").classList.toggle("small", chosen < READABLE);
    this.part(".film").style.setProperty("--ch", `${chosen}px`);
  }

  /** Shows pass `number` everywhere; after the last one, the whole answer. */
  seek(number) {
    const {rows} = this.picture, ended = this.ended !== null && number >= rows.length;
    [...this.part(".film").children].forEach((pass, i) => {
      pass.classList.toggle("later", i > number);
      pass.classList.toggle("now", !ended && i === Math.min(number, rows.length - 1));
    });
    this.numbers(this.picture.numbers(ended ? number : Math.min(number, rows.length - 1)));
    this.part(".page").classList.toggle("ended", ended);
    this.thought(ended || this.ended === null ? this.picture.reasoning : "");
    if (ended) {
      this.showAnswer();
      this.verdict(this.ended.words, this.ended.kind);
    } else if (rows.length) {
      const row = rows[Math.min(number, rows.length - 1)];
      this.verdict(`pass ${row.passes}`, "");
      this.showPass(row);
    }
  }

  showPass({before, cells, frontier}) {
    const spans = cells.map(({text, kind}, i) => spanOf(text, i === frontier ? `${kind} frontier` : kind));
    this.part(".text").replaceChildren(...(before ? [spanOf(before, "committed")] : []), ...spans);
    this.part(".calls").replaceChildren();
    const page = this.part(".page"), first = spans[0];
    if (first && first.offsetTop - page.offsetTop > page.clientHeight / 2) page.scrollTop = first.offsetTop - page.offsetTop - 40;
  }

  showAnswer() {
    const {text, calls} = this.picture, value = parsed(text);
    this.part(".text").textContent = isObject(value) ? JSON.stringify(value, null, 2) : text;
    this.part(".page").scrollTop = 0;
    this.part(".calls").replaceChildren(...calls.map(call => {
      const item = document.createElement("li"), value = parsed(call.arguments);
      const name = Object.assign(document.createElement("b"), {textContent: call.name});
      item.append(name, isObject(value)
        ? Object.entries(value).map(([key, one]) => `\n  ${key}: ${JSON.stringify(one)}`).join("")
        : ` ${call.arguments}`);
      return item;
    }));
  }
}
