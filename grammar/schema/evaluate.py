"""JSON texts, and the judge of finished values: whether a value fits a schema, and if not, where.

The schema is read as for the grammar, by `DocumentReader`; grammars are unknown here. Untrusted
schemas and values are safe: patterns and formats are matched by automata, or within limits of time,
and never by `re`, which backtracks without limit; numbers are exact; steps and depth are limited.
"""

import json
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from dlm.grammar.errors import InvalidGrammarError, InvalidValueError, UncheckableError
from dlm.grammar.json_problems import json_problem, json_words
from dlm.grammar.regex.automaton import Automaton, TooLargeError
from dlm.grammar.regex.patterns import bounded
from dlm.grammar.schema.backtracking import Backtracking, TooLongError
from dlm.grammar.schema.constants import Constant, constant, exact, kind
from dlm.grammar.schema.documents import DocumentReader, Source, Work
from dlm.grammar.schema.drafts import REFERENCES, pointer
from dlm.grammar.schema.formats import format_texts


def plain(kind: str, data: Any, where: str = "") -> Any:
    """Return a copy of JSON data, or the value of JSON text. Infinity and NaN are kept.

    Raises as `plain_with_text` does.
    """
    return plain_with_text(kind, data, where)[0]


def plain_with_text(kind: str, data: Any, where: str = "") -> tuple[Any, str]:
    """Return the same as `plain`, and its JSON text.

    Raises `InvalidGrammarError` of this `kind`, at `where` and the place in the text, if `data`
    is not JSON.
    """
    try:
        text = data if isinstance(data, str) else json.dumps(data)
        read = json.loads(text)
        if text is data or "\\u" in text:
            json.dumps(read, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        place = f"{where} line {error.lineno} column {error.colno}".strip()
        raise InvalidGrammarError(kind, f"not JSON: {json_words(error)}", place) from error
    except UnicodeEncodeError as error:
        raise InvalidGrammarError(kind, "a lone surrogate is not text", where) from error
    except TypeError as error:
        raise InvalidGrammarError(kind, f"not JSON data: {error}", where) from error
    except (ValueError, RecursionError) as error:
        problem = json_problem(data if isinstance(data, str) else "", error)
        raise InvalidGrammarError(kind, f"not JSON data: {problem}", where) from error
    return read, text


def parsed(text: str) -> Any:
    """Return the JSON value of `text`.

    Raises `InvalidValueError` if it is not JSON, or JSON that parsers read differently: a repeated
    key, a number beyond a double, a lone surrogate. Raises `UncheckableError` beyond Python's
    limits.
    """
    try:
        value = _DECODER.decode(text)
        if "\\u" in text:
            json.dumps(value, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        raise InvalidValueError(f"the text is not JSON: {json_problem(text, error)}") from error
    except UnicodeEncodeError as error:
        raise InvalidValueError("a string has a lone surrogate") from error
    except ValueError as error:  # including InvalidValueError
        if isinstance(error, InvalidValueError):
            raise
        raise UncheckableError(f"the JSON cannot be read: {json_problem(text, error)}") from error
    except RecursionError as error:
        raise UncheckableError("the JSON is nested too deeply to be read") from error
    return value


def decoded(text: str, at: int, repeated: bool = False) -> tuple[Any, int]:
    """Return the JSON value that begins at `text[at]`, and the index of its end.

    With `repeated`, an object may have a key several times, and the last value counts. Raises
    `ValueError` if `parsed` would refuse it, and `RecursionError`.
    """
    value, end = (_REPEATING if repeated else _DECODER).raw_decode(text, at)
    if "\\u" in text[at:end]:
        json.dumps(value, ensure_ascii=False).encode()
    return value, end


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        names = [name for name, _ in pairs]
        again = next(name for i, name in enumerate(names) if name in names[:i])
        raise InvalidValueError(f"an object has the key {again!r:.80} twice", [again])
    return value


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise InvalidValueError(f"the number {text:.40} is larger than a double can be")
    return value


def _constant(text: str) -> float:
    raise InvalidValueError(f"{text} is not JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_float=_float, parse_constant=_constant)
_REPEATING = json.JSONDecoder(parse_float=_float, parse_constant=_constant)


_LOG = logging.getLogger(__name__)
_MOST_NAMED = 3  # schemas of `oneOf` in one message
_DEEPEST = 150  # nested schemas; each takes about 3 of Python's 1,000 stack frames
MOST_STEPS = 50_000  # keywords applied to values; about 10 us each
_UNEVALUATED = {"unevaluatedItems", "unevaluatedProperties"}


def check(
    value: Any,
    schema: Any,
    registry: Mapping[str, Any] | None = None,
    *,
    formats: bool = True,
    about: str | None = None,
) -> None:
    """Raise `InvalidValueError`, with the path of the problem, if `value` does not fit `schema`.

    `about` limits this to problems of the property of that name. Raises `UncheckableError` if the
    check fails or exceeds its limits.
    """
    try:
        reader = DocumentReader(schema, registry, "", Work())
        problems = _Judge(reader, formats).problems(value, reader.root, ())
        problem = next(
            (candidate for candidate in problems if about is None or about in candidate.about), None
        )
    except UncheckableError:
        raise
    except TooLongError as error:
        raise UncheckableError("a pattern takes too long to judge") from error
    except (InvalidGrammarError, TooLargeError, RecursionError) as error:
        raise UncheckableError(f"the JSON cannot be checked: {error!s:.200}") from error
    except Exception as error:
        _LOG.exception("a bug: a finished value could not be checked")
        raise UncheckableError(f"the JSON cannot be checked: {error!r:.200}") from error
    if problem is not None:
        where, reason = pointer(*problem.path) or "/", problem.reason.format(problem.expected)
        raise InvalidValueError(
            f"the JSON does not fit the schema at {where}: {problem.value!r:.80} {reason:.120}",
            problem.path,
        )


Path = tuple[str | int, ...]


class Problem(NamedTuple):
    """The part of a value that breaks its schema, and the reason, with a place for `expected`.

    `branches` has the first steps of the paths of problems in branches of `anyOf` or `oneOf`.
    """

    value: Any
    path: Path
    reason: str
    expected: Any = None
    branches: frozenset[str | int] = frozenset()

    @property
    def about(self) -> frozenset[str | int]:
        """The properties or items of the whole value that the problem is about."""
        return self.branches.union(self.path[:1])


# The type that a keyword is about, whether a value fits, and the reason if it does not.
_LIMITS: dict[str, tuple[str, Callable[[Any, Any], bool], str]] = {
    "minimum": ("number", lambda v, limit: exact(v) >= exact(limit), "is less than {}"),
    "maximum": ("number", lambda v, limit: exact(v) <= exact(limit), "is greater than {}"),
    "exclusiveMinimum": ("number", lambda v, limit: exact(v) > exact(limit), "is not above {}"),
    "exclusiveMaximum": ("number", lambda v, limit: exact(v) < exact(limit), "is not below {}"),
    "multipleOf": ("number", lambda v, n: exact(v) % exact(n) == 0, "is not a multiple of {}"),
    "minLength": ("string", lambda v, n: len(v) >= n, "is shorter than {} characters"),
    "maxLength": ("string", lambda v, n: len(v) <= n, "is longer than {} characters"),
    "minItems": ("array", lambda v, n: len(v) >= n, "has fewer than {} items"),
    "maxItems": ("array", lambda v, n: len(v) <= n, "has more than {} items"),
    "minProperties": ("object", lambda v, n: len(v) >= n, "has fewer than {} properties"),
    "maxProperties": ("object", lambda v, n: len(v) <= n, "has more than {} properties"),
    "uniqueItems": ("array", lambda v, unique: not (unique and _repeats(v)), "has an item twice"),
}
Seen = set[str | int] | None  # evaluated properties and items; None: not needed


class _Judge:
    """Judge of one value: counts the steps, and the schemas within each other."""

    def __init__(self, reader: DocumentReader, formats: bool):
        self._reader, self._formats = reader, formats
        self._steps = self._depth = 0
        self._backtracking = Backtracking()
        self._listed: dict[tuple[Source, str], frozenset[Constant]] = {}

    def problems(
        self, value: Any, source: Source, path: Path, seen: Seen = None
    ) -> Iterator[Problem]:
        """Yield the problems of `value`, at `path`. If there are none, extend `seen`."""
        node = source.node
        self._steps += 1 + len(node)
        if self._steps > MOST_STEPS:
            raise UncheckableError(f"it takes more than {MOST_STEPS} steps to check")
        if self._depth >= _DEEPEST:
            raise UncheckableError(f"more than {_DEEPEST} schemas are nested")
        self._depth += 1
        try:
            mine: Seen = None if seen is None and _UNEVALUATED.isdisjoint(node) else set()
            for reason, expected in self._own(value, source):
                yield Problem(value, path, reason, expected)
            yield from self._combined(value, source, path, mine)
            if isinstance(value, dict):
                yield from self._of_object(value, source, path, mine)
            elif isinstance(value, list):
                yield from self._of_array(value, source, path, mine)
            if seen is not None and mine is not None:
                seen |= mine
        finally:  # the caller may stop after the first problem
            self._depth -= 1

    def _part(
        self, value: Any, part: Any, source: Source, path: Path, seen: Seen = None
    ) -> Iterator[Problem]:
        """Return the problems of `value` with `part`, a subschema of `source`."""
        return self.problems(value, self._reader.source(part, source), path, seen)

    def _fits(self, value: Any, part: Any, source: Source, seen: Seen = None) -> bool:
        """Whether `value` fits `part`; if it does, extend `seen`."""
        return next(self._part(value, part, source, (), seen), None) is None

    def _own(self, value: Any, source: Source) -> Iterator[tuple[str, Any]]:
        """Yield the problems with keywords without subschemas: reasons, and what is expected."""
        node, own_kind = source.node, kind(value)
        kinds = {own_kind}
        if own_kind == "number" and value % 1 == 0 and (source.draft != 4 or type(value) is int):
            kinds.add("integer")
        if (named := node.get("type")) is not None and kinds.isdisjoint(named):
            yield "is not of type {!r:.80}", named if len(named) > 1 else named[0]
        for word in ("enum", "const"):
            if word in node and constant(value) not in self._constants(source, word):
                yield f"is not {'one of ' * (word == 'enum')}{{!r:.80}}", node[word]
        for word, (about, fits, reason) in _LIMITS.items():
            if word in node and about == own_kind and not fits(value, node[word]):
                yield reason, node[word]
        if isinstance(value, str):
            if "pattern" in node and not self._has_pattern(value, node["pattern"]):
                yield "does not match {!r:.80}", node["pattern"]
            if self._formats and not _has_format(value, node.get("format")):
                yield "is not a valid {}", node["format"]

    def _constants(self, source: Source, word: str) -> frozenset[Constant]:
        """Return the values of `word`, `enum` or `const`."""
        if (source, word) not in self._listed:
            values = source.node[word]
            listed = map(constant, values if word == "enum" else [values])
            self._listed[source, word] = frozenset(listed)
        return self._listed[source, word]

    def _has_pattern(self, text: str, pattern: str) -> bool:
        """Whether the pattern occurs; a pattern that takes too long is logged, not enforced."""
        try:
            return self._matches(pattern, text)
        except TooLongError:
            _LOG.warning("not enforced: whether %.80r matches %.80r takes too long", text, pattern)
            return True

    def _matches(self, pattern: str, text: str) -> bool:
        """Whether the pattern occurs in the text. Raises `TooLongError`."""
        try:
            automaton, low, high = bounded(pattern, False)
        except (InvalidGrammarError, TooLargeError):
            return self._backtracking.fits(pattern, text)
        most = len(text) if high is None else high
        return low <= len(text) <= most and automaton.accepts(text)

    def _combined(self, value: Any, source: Source, path: Path, seen: Seen) -> Iterator[Problem]:
        """Yield the problems with schemas that apply to the same value."""
        node = source.node
        for word in REFERENCES:
            if word in node:
                yield from self.problems(value, self._reader.target(source, word), path, seen)
        for part in node.get("allOf", ()):
            yield from self._part(value, part, source, path, seen)
        for word in ("anyOf", "oneOf"):
            if word in node:
                yield from self._branches(value, source, word, path, seen)
        if "not" in node and self._fits(value, node["not"], source):
            yield Problem(value, path, "fits {!r:.80}, which `not` forbids", node["not"])
        if "if" in node:
            branch = "then" if self._fits(value, node["if"], source, seen) else "else"
            yield from self._part(value, node.get(branch, True), source, path, seen)

    def _branches(
        self, value: Any, source: Source, word: str, path: Path, seen: Seen
    ) -> Iterator[Problem]:
        """Yield the problem with `word`, `anyOf` or `oneOf`, if there is one."""
        fitting, about = list[str](), set[str | int]()
        for i, part in enumerate(source.node[word]):
            mine: Seen = None if seen is None else set()
            problems = [*self._part(value, part, source, path, mine)]
            about.update(*(problem.about for problem in problems))
            if not problems:
                fitting.append(f"{word}/{i}")
                if seen is not None and mine is not None:
                    seen |= mine
                elif word == "anyOf":
                    return
        if not fitting:
            yield Problem(value, path, "fits no schema of `{}`", word, frozenset(about))
        elif word == "oneOf" and len(fitting) > 1:
            reason = "fits {} at once, and `oneOf` takes values that fit exactly one of its schemas"
            yield Problem(value, path, reason, " and ".join(fitting[:_MOST_NAMED]))

    def _of_object(
        self, value: dict[str, Any], source: Source, path: Path, seen: Seen
    ) -> Iterator[Problem]:
        """Yield the problems with properties; `seen` has those evaluated by other schemas."""
        node = source.node
        for name in node.get("required", ()):
            if name not in value:
                yield Problem(value, path, "lacks {!r:.80}, a required property", name)
        for name, others in node.get("dependentRequired", {}).items():
            for other in others if name in value else ():
                if other not in value:
                    yield Problem(value, path, "lacks {!r:.80} (`dependentRequired`)", other)
        for name, part in node.get("dependentSchemas", {}).items():
            if name in value:
                yield from self._part(value, part, source, path, seen)
        named, patterns = node.get("properties", {}), node.get("patternProperties", {})
        for name, inner in value.items():
            if "propertyNames" in node:
                yield from self._part(name, node["propertyNames"], source, path)
            parts = [part for key, part in patterns.items() if self._matches(key, name)]
            parts += [named[name]] if name in named else []
            if not parts and "additionalProperties" in node:
                parts = [node["additionalProperties"]]
            elif not parts and "unevaluatedProperties" in node and name not in (seen or ()):
                parts = [node["unevaluatedProperties"]]
            for part in parts:
                yield from self._part(inner, part, source, (*path, name))
            if seen is not None and parts:
                seen.add(name)

    def _of_array(
        self, value: list[Any], source: Source, path: Path, seen: Seen
    ) -> Iterator[Problem]:
        """Yield the problems with items; `seen` has those evaluated by other schemas."""
        node = source.node
        if "contains" in node:
            fits = (self._fits(item, node["contains"], source) for item in value)
            fitting = [i for i, fit in enumerate(fits) if fit]
            low, high = node.get("minContains", 1), node.get("maxContains")
            if not low <= len(fitting) <= (len(value) if high is None else high):
                yield Problem(value, path, "has {} items that fit `contains`", len(fitting))
            if seen is not None and source.draft != 2019:
                seen.update(fitting)
        prefix = node.get("prefixItems", ())
        for i, item in enumerate(value):
            if i < len(prefix):
                part = prefix[i]
            elif "items" in node:
                part = node["items"]
            elif "unevaluatedItems" in node and i not in (seen or ()):
                part = node["unevaluatedItems"]
            else:
                continue
            yield from self._part(item, part, source, (*path, i))
            if seen is not None:
                seen.add(i)


def _repeats(items: list[Any]) -> bool:
    return len(set(map(constant, items))) < len(items)


def _has_format(text: str, name: Any) -> bool:
    if not isinstance(name, str):
        return True
    automaton, _, longest = format_texts(name) or (Automaton.ANY, 0, None)
    return automaton.accepts(text) and len(text) <= (longest or len(text))
