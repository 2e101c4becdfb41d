"""Shares of a step's work, for the constraints that are queried in it."""

from collections.abc import Callable, Sequence

from dlm.grammar import Guidance, Unfinished

_ROUNDS = 2  # of queries in a step: the second is for those that the first did not finish

Query = Callable[[int], tuple[Guidance | Exception, int]]
"""Query of a constraint within a share of work; returns its answer, and the units that it took."""


def answers_within(work: int, queries: Sequence[Query]) -> list[Guidance | Exception]:
    """Return the answers of queries that may do `work` units together.

    Each gets an equal share of what those before it have left. What all have left goes to those
    that need more; the answer of one that still needs more is `Unfinished`.
    """
    answers: list[Guidance | Exception] = [Unfinished()] * len(queries)
    for again in range(_ROUNDS):
        waiting = [i for i, answer in enumerate(answers) if isinstance(answer, Unfinished)]
        if again and work < len(waiting):
            break
        for before, i in enumerate(waiting):
            share = max(1, work // (len(waiting) - before))
            answers[i], spent = queries[i](share)
            work -= share if isinstance(answers[i], Unfinished) else spent
    return answers
