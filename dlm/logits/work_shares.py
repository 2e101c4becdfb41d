"""Shares of a step's work, for the constraints that are queried in it."""

from collections.abc import Callable, Sequence

from dlm.grammar import Guidance, Unfinished

_ROUNDS = 2  # of queries in a step: the second is for those that the first did not finish

Query = Callable[[int], tuple[Guidance | Exception, int]]
"""Query of a constraint within a share of work; returns its answer, and the units that it took."""


def answers_within(work: int, queries: Sequence[Query]) -> list[Guidance | Exception]:
    """Return the answers of queries that may do `work` units together.

    Each gets an equal share. What all have left goes in equal shares to those that need more, and
    at most doubles the share of each: one costly constraint does not take all of a step. The
    answer of a query that still needs more is `Unfinished`. The order of queries has no effect.
    """
    answers: list[Guidance | Exception] = [Unfinished()] * len(queries)
    waiting, share = list(range(len(queries))), max(1, work // max(1, len(queries)))
    for _ in range(_ROUNDS):
        for i in waiting:
            answers[i], spent = queries[i](share)
            work -= max(share, spent) if isinstance(answers[i], Unfinished) else spent
        waiting = [i for i in waiting if isinstance(answers[i], Unfinished)]
        share = min(share, work // max(1, len(waiting)))
        if share < 1:
            break
    return answers
