"use strict";
// JSON texts with the place of every value, so that an error has a line. Nothing here touches the document.

/** An error of a JSON text, at an offset in characters. */
class JsonError extends Error {
  constructor(message, offset) {
    super(message);
    this.offset = offset;
  }
}

/** The value of a JSON text, and the offset of each value in it, by JSON pointer. Throws a `JsonError`. */
function readJson(text) {
  const places = new Map();
  let at = 0;
  const fail = (message, offset = at) => { throw new JsonError(message, offset); };
  const blank = () => { while (/[ \t\r\n]/.test(text[at] ?? "")) at += 1; };
  const shown = () => (at < text.length ? `“${text[at]}”` : "the end");
  const word = pattern => {
    pattern.lastIndex = at;
    const match = pattern.exec(text);
    if (match) at += match[0].length;
    return match?.[0];
  };

  function string() {
    const begin = at, raw = word(/"(?:[^"\\\u0000-\u001f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"/y);
    if (raw !== undefined) return JSON.parse(raw);
    const end = text.indexOf("\n", begin);
    const line = text.slice(begin + 1, end < 0 ? undefined : end);
    return fail(/(^|[^\\])(\\\\)*"/.test(line) ? "This text has a wrong escape." : "This text has no closing quote.", begin);
  }

  function members(pointer, close, one) {
    at += 1;
    blank();
    if (text[at] === close) return void (at += 1);
    for (let count = 0;; count += 1) {
      blank();
      if (text[at] === close) fail("There is a comma too many before this.");
      one(count);
      blank();
      if (text[at] === close) return void (at += 1);
      if (text[at] !== ",") fail(`A comma or “${close}” is missing before ${shown()}.`);
      at += 1;
    }
  }

  function value(pointer, depth) {
    blank();
    if (depth > 500) fail("This is nested too deeply.");
    places.set(pointer, at);
    if (text[at] === '"') return string();
    if (text[at] === "[") {
      const items = [];
      members(pointer, "]", i => items.push(value(`${pointer}/${i}`, depth + 1)));
      return items;
    }
    if (text[at] === "{") {
      const entries = [];
      members(pointer, "}", () => {
        if (text[at] !== '"') fail(`A key in double quotes is missing before ${shown()}.`);
        const key = string();
        blank();
        if (text[at] !== ":") fail(`A colon is missing before ${shown()}.`);
        at += 1;
        const name = key.replaceAll("~", "~0").replaceAll("/", "~1");
        entries.push([key, value(`${pointer}/${name}`, depth + 1)]);
      });
      return Object.fromEntries(entries);
    }
    const raw = word(/-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?(?![\w.])|(?:true|false|null)(?!\w)/y);
    return raw === undefined ? fail(`A value is missing before ${shown()}.`) : JSON.parse(raw);
  }

  const whole = value("", 0);
  blank();
  if (at < text.length) fail(`Nothing may follow the value, but ${shown()} does.`);
  return {value: whole, places};
}

/** Line and column of an offset, from 1. */
function placeOf(text, offset) {
  const lines = text.slice(0, offset).split("\n");
  return {line: lines.length, column: lines.at(-1).length + 1};
}

/** The offset of the value that words are about: that of the longest JSON pointer in them; undefined: they have none. */
function offsetIn(words, places) {
  const named = [...places.keys()].filter(pointer => pointer && words.includes(pointer));
  return places.get(named.sort((a, b) => b.length - a.length)[0]);
}
