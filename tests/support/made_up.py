"""Regexes, grammars, choices and tools that nobody wrote, and what texts fit them."""

import sys
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

_ATOMS = st.sampled_from(
    ["a", "b", "ab", "é", "日本", "7", " ", r"\.", "[a-f]", "[^x]", r"\d", "."]
)
_TIMES = st.sampled_from(["*", "+", "?", "{2}", "{0,3}", "{2,}", "{1,12}", "*?"])
REGEXES = st.recursive(
    _ATOMS,
    lambda inner: st.one_of(
        st.tuples(inner, _TIMES).map(lambda pair: f"(?:{pair[0]}){pair[1]}"),
        st.lists(inner, min_size=2, max_size=4).map("".join),
        st.lists(inner, min_size=2, max_size=4).map(lambda parts: f"({'|'.join(parts)})"),
    ),
    max_leaves=8,
)
_STEMS = st.sampled_from(["", "mage", "mage of the ", "日本", "<turn|>", '{"a": ', "Ωmega "])
CHOICES = st.lists(
    st.tuples(_STEMS, st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=9)),
    min_size=1,
    max_size=6,
).map(lambda pairs: [*dict.fromkeys(stem + rest or "x" for stem, rest in pairs)])


@dataclass(frozen=True)
class Language:
    """A context-free grammar. A rule is its options, an option its parts.

    An option names one rule at most: grammars that can be read in many ways take xgrammar long.
    A part is a literal `"..."`, a class `[...]`, either of them with `*`, `+` or `?` after it, or
    the number of a rule. An option begins with a literal, so that no rule begins with itself, and
    the first one of every rule names no rule, so that every rule has an end.
    """

    rules: tuple[tuple[tuple[str | int, ...], ...], ...]

    def ebnf(self) -> str:
        return self._written("root", "::=", str)

    def lark(self) -> str:
        return self._written("start", ":", lambda part: _slashed(part) if "[" in part else part)

    def _written(self, first: str, sign: str, spell: Any) -> str:
        names = [first, *(f"r{i}" for i in range(1, len(self.rules)))]
        return "\n".join(
            f"{name} {sign} "
            + " | ".join(
                " ".join(names[p] if isinstance(p, int) else spell(p) for p in option)
                for option in options
            )
            for name, options in zip(names, self.rules, strict=True)
        )

    def fits(self, text: str) -> bool:
        known: dict[tuple[int, int], set[int]] = {}

        def ends(rule: int, start: int) -> set[int]:
            """Return where a rule may end that begins at `start`."""
            if (rule, start) not in known:
                found: set[int] = set()
                for option in self.rules[rule]:
                    at = {start}
                    for part in option:
                        at = set().union(*(ends_after(part, begin) for begin in at))
                    found |= at
                known[rule, start] = found
            return known[rule, start]

        def ends_after(part: str | int, start: int) -> set[int]:
            if isinstance(part, int):
                return ends(part, start)
            sign = part[-1] if part[-1] in "*+?" else ""
            found, at = {start} if sign in ("*", "?") else set(), {start}
            while at:
                at = {end for begin in at if (end := _one(part.rstrip("*+?"), text, begin)) >= 0}
                at -= found
                found |= at
                if sign in ("", "?"):
                    break
            return found

        before = sys.getrecursionlimit()
        sys.setrecursionlimit(1_000_000)  # it goes as deep as the text is long
        try:
            return len(text) in ends(0, 0)
        finally:
            sys.setrecursionlimit(before)


def _one(part: str, text: str, start: int) -> int:
    """Return where a literal or a class ends that begins at `start`; -1: it does not match."""
    if part[0] == '"':
        return start + len(part) - 2 if text.startswith(part[1:-1], start) else -1
    low, high = part[1], part[3]
    return start + 1 if start < len(text) and low <= text[start] <= high else -1


def _slashed(part: str) -> str:
    return f"/{part.rstrip('*+?')}/{part[len(part.rstrip('*+?')) :]}"


_LITERALS = st.sampled_from(['"a"', '"ab"', '"("', '"<turn|>"', '"日本"', '", "', '"+"'])
_CLASSES = st.sampled_from(["[a-f]", "[0-9]", "[é-ü]"])
_PIECES = st.tuples(_LITERALS | _CLASSES, st.sampled_from(["", "", "*", "+", "?"])).map("".join)


@st.composite
def languages(draw: Any) -> Language:
    count = draw(st.integers(1, 4))
    parts = st.tuples(
        st.lists(_PIECES, max_size=2), st.integers(0, count - 1), st.lists(_PIECES, max_size=2)
    ).map(lambda split: [*split[0], split[1], *split[2]])
    rules = []
    for _ in range(count):
        closed = draw(st.lists(_PIECES, max_size=2))
        open_ = draw(st.lists(parts, max_size=2))
        rules.append(tuple((draw(_LITERALS), *option) for option in [closed, *open_]))
    return Language(tuple(rules))


_PARAMETERS = st.sampled_from(
    [
        {"type": "string"},
        {"type": "string", "maxLength": 6},
        {"type": "string", "pattern": "^[A-Z]{2}-[0-9]+$"},
        {"enum": ["mage", "<turn|>", '<|"|>', 7, None]},
        {"type": "integer", "minimum": -3, "maximum": 40},
        {"type": "number"},
        {"type": "boolean"},
        {"type": ["string", "null"]},
        {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 3},
        {"type": "array", "items": {"type": "string"}},
        {
            "type": "object",
            "properties": {"x": {"type": "number"}, "label": {"const": "ab cd"}},
            "required": ["x"],
            "additionalProperties": False,
        },
    ]
)


@st.composite
def tools(draw: Any) -> list[dict[str, Any]]:
    names = draw(st.lists(st.sampled_from(["book", "book_room", "stop"]), min_size=1, unique=True))
    made = []
    for name in names:
        properties = draw(
            st.dictionaries(st.sampled_from(["a", "of", "name", "x_1"]), _PARAMETERS, max_size=3)
        )
        required = draw(st.lists(st.sampled_from([*properties]), unique=True)) if properties else []
        schema = {
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": False,
        }
        made.append({"type": "function", "function": {"name": name, "parameters": schema}})
    return made
