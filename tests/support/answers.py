"""Answers that are generated under a grammar, by canvases or left to right."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from dlm.grammar import BudgetError, Compiled, Fixed, Frontier, Matcher, Unfinished
from dlm.grammar.masks import tokens_in
from dlm.logits.canvas_logits import CanvasLogits


def canvas_answer(frontier: Frontier, canvases: Iterable[CanvasLogits]) -> list[int]:
    """Commit the whole guess of each canvas, and return all tokens up to the stop."""
    tokens: list[int] = []
    for scores in canvases:
        guidance = frontier.guide(scores, Fixed(last=True))
        guess = guidance.guess[: guidance.stop + 1]
        frontier.commit(guess)
        tokens += guess
        if guidance.stop < len(guidance.guess):
            return tokens
    raise AssertionError("the answer does not end")


def matcher_answer(matcher: Matcher, budget: int, choose: Callable[[list[int]], int]) -> list[int]:
    """Return the tokens that `choose` takes of those allowed within `budget`, the stop included."""
    tokens: list[int] = []
    while not matcher.ended:
        token = choose(tokens_in(matcher.allowed(budget - len(tokens))).tolist())
        assert matcher.accept(token)
        tokens.append(token)
    assert len(tokens) <= budget
    return tokens


def needed_tokens(compiled: Compiled) -> int:
    """Return the least budget of a grammar, as a refusal of too small a budget states it."""
    with pytest.raises(BudgetError) as raised:
        Frontier(compiled, 1)
    return raised.value.needed


def resumed(compute: Callable[[], Any]) -> tuple[Any, int]:
    """Call `compute` until it is finished, and return its result and the number of calls."""
    for calls in range(1, 1000):
        try:
            return compute(), calls
        except Unfinished:
            continue
    raise AssertionError("the computation does not finish")
