"use strict";
// From a stream's chunks to a picture of its canvases: a row a pass, a cell a token. Nothing here touches the document.

const KINDS_OF_CELLS = {
  committed: "committed: part of the answer",
  pinned: "pinned: fixed for good",
  accepted: "accepted: kept for the next pass",
  noise: "noise: drawn anew",
  suspect: "suspect: after a token that the grammar changed",
  mask: "masked: no token yet",
};

const GAP = "…";

/** A text on one line; a control token is a dot. */
const onLine = words => words.replaceAll("\n", "⏎") || "·";

/** The kind of each cell of a draft, as the words of `KINDS_OF_CELLS`. */
function kindsOf({tokens, accepted, masked, pinned, suspect}) {
  return tokens.map((_, i) => {
    if (i < pinned) return "pinned";
    if (i >= suspect) return masked?.[i] ? "mask" : "suspect";
    if (accepted[i]) return "accepted";
    return masked?.[i] ? "mask" : "noise";
  });
}

/** The rows of an answer, as its stream goes on. */
class Picture {
  constructor() {
    this.rows = []; // each a pass: before, cells, frontier, and the numbers of that moment
    this.written = []; // the tokens before the canvas of the last row; gaps where no draft has shown them
    this.text = this.reasoning = "";
    this.calls = [];
    this.usage = this.reason = null;
  }

  /** Takes one chunk, `seconds` after the request. */
  take(chunk, seconds) {
    if (chunk.usage) this.usage = chunk.usage;
    for (const {delta, finish_reason: reason} of chunk.choices) {
      this.reasoning += delta.reasoning ?? "";
      this.text += delta.content ?? "";
      for (const {index, id, function: piece} of delta.tool_calls ?? []) {
        const call = (this.calls[index] ??= {id: "", name: "", arguments: ""});
        call.id += id ?? "";
        call.name += piece?.name ?? "";
        call.arguments += piece?.arguments ?? "";
      }
      this.reason = reason ?? this.reason;
    }
    if (chunk.draft) this.rows.push(this.rowOf(chunk.draft, seconds));
  }

  rowOf(draft, seconds) {
    const kinds = kindsOf(draft), before = this.before(draft);
    const cells = draft.tokens.map((token, i) => ({text: kinds[i] === "mask" ? "░" : onLine(token), kind: kinds[i]}));
    const end = lastCell(draft.tokens);
    return {
      draft, before, seconds, cells: cells.slice(0, end),
      frontier: draft.suspect < Math.min(end, cells.length) ? draft.suspect : null,
      committed: draft.committed, final: draft.committed + draft.pinned,
      passes: draft.passes, entropy: draft.entropy,
    };
  }

  /**
   * The text before the canvas of the next draft. A slow client does not get every draft: of those that it lacks only
   * what was pinned before them is known, and the rest is a gap.
   */
  before(draft) {
    const last = this.rows.at(-1), written = this.written.slice(0, draft.committed);
    if (last) {
      const count = Math.max(0, draft.committed - last.committed), next = draft.passes === last.passes + 1;
      written.push(...last.draft.tokens.slice(0, next ? count : Math.min(count, last.draft.pinned)));
    }
    const missing = draft.committed - written.length;
    if (missing > 0) written.push(GAP, ...Array(missing - 1).fill(""));
    this.written = written;
    return written.join("");
  }

  /** The numbers to be shown with row `number`; after the last one, those of the whole answer. */
  numbers(number) {
    const row = this.rows[Math.min(number, this.rows.length - 1)];
    if (!row) return {};
    const ended = number >= this.rows.length && this.usage;
    const tokens = ended ? this.usage.completion_tokens : row.final;
    return {
      passes: row.passes, tokens, rate: (tokens / row.passes).toFixed(1), seconds: row.seconds.toFixed(1),
    };
  }
}

/** How many cells a row shows: all up to the first control token of those that end the canvas. */
function lastCell(tokens) {
  let end = tokens.length;
  while (end > 0 && tokens[end - 1] === "") end -= 1;
  return Math.min(tokens.length, end + 1);
}

/** The number of characters that the widest row takes. A control token takes one. */
const widest = rows => Math.max(1, ...rows.map(
  ({before, cells}) => onLine(before).length + cells.reduce((sum, {text}) => sum + text.length, 0)));
