"""Answers that walk through a grammar within a budget and take any token that is allowed.

The model of a walk has one of ten wishes, such as to open keys or never to stop. The answer must
end within the budget, and an independent reader judges it: `jsonschema`, or a matcher over single
bytes that has no budget.
"""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from random import Random
from typing import Any, Literal

import numpy as np
from jsonschema import validators
from measure.schemas import of_bytes
from random_grammars import WalkCase, case_of

from dlm.grammar import (
    BudgetError,
    Candidates,
    Compiled,
    Compiler,
    Fixed,
    Frontier,
    GrammarError,
    InvalidValueError,
    JsonSchema,
    LeftToRight,
    Matcher,
    Tools,
    Vocabulary,
)
from dlm.grammar.masks import tokens_in

Way = Literal["matcher", "left to right", "canvases"]
WAYS: tuple[Way, ...] = ("matcher", "left to right", "canvases")
SPARE = (0, 1, 7, 30)  # tokens beyond the shortest answer
WISHES = (
    *("random", "stop", "long", "short", "open a key", "repeat a key", "never stop", "nest"),
    *("space", "escape"),
)
_OBSTINATE = 0.85  # share of the tokens that follow the wish
_PER_CASE = 8  # walks of one case: a vocabulary and a grammar take longer than a walk
_LONGEST = 600  # tokens of a shortest answer that is walked


_BYTES = Compiler(of_bytes())


class WalkError(Exception):
    """A broken guarantee: a walk that has no next token, does not end, or is invalid."""


class WishedScores:
    """A model without weights, which scores tokens by a wish; also `Scores` of a canvas."""

    def __init__(self, kind: str, vocabulary: Vocabulary, rng: Random, L: int = 4):
        self._rng, self._vocabulary, self._text = rng, vocabulary, b""
        self._kind, self.size = kind, len(vocabulary)
        scores = {
            "stop": lambda p: 9 * (not p) - len(p),
            "long": len,
            "short": lambda p: -len(p),
            "open a key": lambda p: 4 * (p[-1:] not in b'":}]' and b'"' in p) + (b"," in p),
            "never stop": lambda p: -9 * (not p) - sum(p.count(end) for end in b'}]"'),
            "nest": lambda p: p.count(b"{") + p.count(b"[") + p.count(b"(") - p.count(b"}"),
            "space": lambda p: sum(p.count(blank) for blank in b" \n\t"),
            "escape": lambda p: p.count(b"\\") + p.count(b"\\u"),
        }
        self._scores: np.ndarray | None = None
        if (score := scores.get(kind)) is not None:
            self._scores = np.array([score(piece) for piece in vocabulary.pieces])
        self.draw(L)

    def draw(self, L: int, text: Sequence[int] = ()) -> None:
        """Draw the choices of a canvas: `text`, with changes in places, and chance after it."""
        size, rng = len(self._vocabulary), self._rng
        if self._scores is not None and self._kind != "short":
            favourites = np.flatnonzero(self._scores == self._scores.max()).tolist()
        else:
            favourites = [*range(size)]
        drawn = [
            rng.choice(favourites) if rng.random() < 0.5 else rng.randrange(size) for _ in range(L)
        ]
        kept = [token if rng.random() < 0.9 else drawn[i] for i, token in enumerate(text[:L])]
        self.argmax = kept + drawn[len(kept) :]

    def saw(self, token: int) -> None:
        """Extend the text whose keys may be repeated."""
        self._text += self._vocabulary.pieces[token]

    def choose(self, tokens: np.ndarray) -> int:
        """Return one of `tokens`."""
        rng = self._rng
        if self._kind == "repeat a key" and rng.random() < _OBSTINATE:
            pieces = self._vocabulary.pieces
            again = [t for t in tokens.tolist() if pieces[t] and pieces[t] in self._text]
            if again:
                return max(rng.sample(again, min(3, len(again))), key=lambda t: len(pieces[t]))
        if self._scores is None or rng.random() > _OBSTINATE:
            return int(rng.choice(tokens))
        scores = self._scores[tokens]
        return int(rng.choice(tokens[scores == scores.max()]))

    def best(self, position: int, allowed: np.ndarray) -> int:
        return self.candidates(position, allowed, 1).ranked[0][0]

    def candidates(self, position: int, allowed: np.ndarray, count: int) -> Candidates:
        tokens = tokens_in(allowed)
        if not len(tokens):
            return Candidates(ranked=[], mass=0.0)
        ranked = dict.fromkeys(self.choose(tokens) for _ in range(count))
        return Candidates(ranked=[(token, -1.0) for token in ranked], mass=0.5)


def shortest(compiled: Compiled) -> int:
    """Return the least budget. Raises `GrammarError` if there is none, or a very large one."""
    try:
        Matcher(compiled).check_budget(1)
    except BudgetError as error:
        if error.needed > _LONGEST:
            raise
        return error.needed
    return 1


def walk(
    case: WalkCase, compiled: Compiled, budget: int, way: Way, wish: str, rng: Random
) -> list[int]:
    """Return an answer's tokens. Raises `WalkError`."""
    steps = {"matcher": _by_matcher, "left to right": _from_left, "canvases": _by_canvases}[way]
    wishes, tokens = WishedScores(wish, case.vocabulary, rng), []
    try:
        for token in steps(compiled, budget, wishes, rng):
            tokens.append(token)
            if len(tokens) > budget:
                raise WalkError(f"it does not end within {budget} tokens")
        judge(case, tokens)
    except GrammarError as error:
        text = b"".join(case.vocabulary.pieces[token] for token in tokens)
        raise WalkError(f"{type(error).__name__}: {error}, after {tokens} {text!r}") from error
    return tokens


def _by_matcher(
    compiled: Compiled, budget: int, wishes: WishedScores, rng: Random
) -> Iterator[int]:
    matcher, left = Matcher(compiled), budget
    while not matcher.ended:
        token = wishes.choose(tokens_in(matcher.allowed(left)))
        if not matcher.accept(token):
            raise WalkError(f"token {token} is allowed and not accepted with {left} left")
        wishes.saw(token)
        left -= 1
        yield token


def _from_left(compiled: Compiled, budget: int, wishes: WishedScores, rng: Random) -> Iterator[int]:
    one, exact = LeftToRight(compiled, budget), rng.random() < 0.3
    always = exact
    while not one.ended:
        draft = wishes.argmax if rng.random() < 0.3 else ()
        look = one.look(draft, exact=exact)
        for token in (*look.forced, *look.draft):
            if one.fits([token]) != 1:
                raise WalkError(f"token {token} was returned and does not fit")
            one.commit([token])
            wishes.saw(token)
            yield token
        row = look.rows[-1]
        token = ~row if isinstance(row, int) else wishes.choose(_allowed(row, wishes))
        fits = one.fits([token]) == 1
        if not fits and exact and not look.draft:
            raise WalkError(f"token {token} is allowed exactly and does not fit")
        exact = always or not fits
        if fits:
            one.commit([token])
            wishes.saw(token)
            yield token


def _allowed(row: np.ndarray | None, wishes: WishedScores) -> np.ndarray:
    return np.arange(wishes.size) if row is None else tokens_in(row)


def _by_canvases(
    compiled: Compiled, budget: int, wishes: WishedScores, rng: Random
) -> Iterator[int]:
    frontier, L = Frontier(compiled, budget), rng.choice((1, 2, 5, 9))
    text, at = _free_text(compiled, budget, wishes, rng), 0
    while True:
        wishes.draw(L, text[at:])
        if rng.random() < 0.3:  # a pass that may be repeated comes first
            frontier.guide(wishes, Fixed())
            wishes.draw(L, text[at:])
        guidance = frontier.guide(wishes, Fixed(last=True))
        guess = guidance.guess[: guidance.stop + 1]
        frontier.commit(guess)
        for token in guess:
            wishes.saw(token)
        yield from guess
        at += len(guess)
        if guidance.stop < len(guidance.guess):
            return


def _free_text(compiled: Compiled, budget: int, wishes: WishedScores, rng: Random) -> list[int]:
    """Return tokens of the grammar that a model may wish, often too many for the budget."""
    matcher, tokens = Matcher(compiled), []
    for _ in range(rng.choice((0, budget, 2 * budget))):
        words = matcher.allowed()
        if matcher.ended or not words.any():
            break
        token = wishes.choose(tokens_in(words))
        if not matcher.accept(token):
            raise WalkError(f"token {token} is allowed and not accepted")
        tokens.append(token)
    return tokens


def judge(case: WalkCase, tokens: Sequence[int]) -> None:
    """Raises `WalkError` for an answer that is incomplete or invalid."""
    vocabulary, spec = case.vocabulary, case.spec
    if not tokens or tokens[-1] not in vocabulary.stops:
        raise WalkError(f"it has no stop: {vocabulary.text(tokens)!r}")
    text = vocabulary.text(tokens)
    if isinstance(spec, JsonSchema):
        _check(spec.parsed, text)
    elif isinstance(spec, Tools):
        try:
            calls = spec.read(tokens[:-1], vocabulary).tool_calls
        except InvalidValueError as error:
            if spec.checked:
                return
            raise WalkError(str(error)) from error
        for call in calls:
            _validate(spec.parameters["go"], call.arguments, text)
        if not calls:
            raise WalkError(f"{text!r} has no call")
    else:
        matcher = Matcher(_BYTES.compile(spec))
        raw = _BYTES.vocabulary.encode(text)
        if matcher.accept_all([*raw, *_BYTES.vocabulary.stops]) != len(raw) + 1:
            raise WalkError(f"the grammar refuses {text!r}")


def _check(schema: Any, text: str) -> None:
    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        twice = [key for key, count in Counter(key for key, _ in pairs).items() if count > 1]
        if twice:
            raise WalkError(f"the key {twice[0]!r} comes twice in {text!r}")
        return dict(pairs)

    _validate(schema, json.loads(text, object_pairs_hook=unique), text)


def _validate(schema: Any, value: Any, text: str) -> None:
    errors = [*validators.Draft202012Validator(schema).iter_errors(value)]
    if errors:
        raise WalkError(f"{text!r} is invalid: {errors[0].message}")


def walks_of(case: WalkCase, rng: Random, count: int) -> Iterator[tuple[Way, str, str | None]]:
    """Yield the way of each walk of a case, a line that repeats it, and its fault or None.

    Raises `GrammarError` if the case has no grammar or no short text.
    """
    compiled = Compiler(case.vocabulary).compile(case.spec)
    least = shortest(compiled)
    for _ in range(count):
        way, wish, spare = rng.choice(WAYS), rng.choice(WISHES), rng.choice(SPARE)
        seed, fault = rng.randrange(1 << 32), None
        try:
            walk(case, compiled, least + spare, way, wish, Random(seed))
        except WalkError as error:
            fault = str(error)
        yield way, f"{way}, wish {wish!r}, {least} + {spare} tokens, seed {seed}", fault


def walked(most: int, seed: int) -> tuple[Counter[tuple[str, Way]], list[str]]:
    """Return `most` walks by form and way, and their faults, each with what repeats it."""
    walks, faults, number = Counter[tuple[str, Way]](), list[str](), seed * most
    while (rest := most - walks.total()) > 0:
        rng = Random(number)
        with suppress(GrammarError):  # no value fits the schema, or only a very long one
            case = case_of(rng)
            for way, about, fault in walks_of(case, rng, min(rest, _PER_CASE)):
                walks[case.form, way] += 1
                if fault is not None:
                    faults.append(f"case {number}, {case.spec}: {about}: {fault}")
        number += 1
    return walks, faults
