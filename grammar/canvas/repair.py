"""Chooses what stands in for a token that the grammar refuses, where no choice is clear.

A best-first search over the grammar's own next tokens: what makes the model's later choices fit is
better than what is likely here alone. Positions behind a repair were predicted under a wrong left
context, so it looks only a few positions ahead.
"""

import heapq

from dlm.grammar.constraint import Candidates, Scores
from dlm.grammar.masks.table import Masks
from dlm.grammar.parse.matcher import Matcher

SURE = 0.5  # the share of the allowed mass with which a token needs no search
_REACH = 4  # positions that are looked at
_WIDTH = 3  # tokens that are tried at each of them
_LOOKS = 6  # masked rows that are read, at most


def best_repair(
    matcher: Matcher, masks: Masks, scores: Scores, position: int, first: Candidates
) -> int:
    """The first token of the likeliest path found; `matcher` is at `position`, and is left there.

    A path ends after a few positions, at a stop, or with the canvas.
    """
    end = min(position + _REACH, len(scores.argmax))
    heap: list[tuple[float, int, list[int]]] = []
    order = 0  # breaks ties: the earlier path is better

    def push(path: list[int], cost: float, candidates: Candidates) -> None:
        nonlocal order
        for token, logp in candidates.ranked[:_WIDTH]:
            order += 1
            heapq.heappush(heap, (cost - logp, order, [*path, token]))

    push([], 0.0, first)
    for _ in range(_LOOKS):
        cost, _, path = heapq.heappop(heap)
        at = position + len(path)
        read = matcher.accept_all(path)
        try:
            if read == len(path) and (at == end or matcher.ended):
                return path[0]
            if read == len(path):
                push(path, cost, scores.candidates(at, masks.words(matcher.mask()), _WIDTH))
        finally:
            matcher.rollback(read)
        if not heap:
            break
    return heap[0][2][0] if heap else first.ranked[0][0]
