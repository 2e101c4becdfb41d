"""Closures of kernels: what an Earley parser predicts and completes with nothing read.

The extension does the same where it is built (`grammar/_closure.c`). A test holds both equal. The
module knows no text.
"""

from collections.abc import Sequence

from dlm.grammar.limits import LazyDict
from dlm.grammar.parse.predictions import Prediction, Predictions
from dlm.grammar.parse.states import Item, StackNode, Stacks, Thread

_made = tuple.__new__  # of a named tuple, in two thirds of the time

# Threads, and items at edges that read control tokens; whether the text may end; and the work.
Closure = tuple[list[Thread], list[Item], bool, int]


class Closures:
    """The closures of one grammar."""

    def __init__(self, predictions: Predictions, stacks: Stacks, starts: LazyDict[int]):
        """`starts` holds the scanners' first states, by terminal."""
        self._predictions, self._stacks, self._starts = predictions, stacks, starts

    def of(self, items: Sequence[Item], most: int) -> Closure | None:
        """Predict and complete `items` until nothing is new, and return what that leads to; None if
        it takes more than `most` work."""
        predictions, pending, seen = self._predictions, [*dict.fromkeys(items)], {*items}
        predicted: list[tuple[Prediction, StackNode | int]] = []  # with the stack, or the rule
        callers: dict[int, list[tuple[int, StackNode | int]]] = {}  # by rule
        may_end = False
        work = 0
        while pending:
            state, stack = pending.pop()
            prediction = predictions.of_state(state)
            predicted.append((prediction, stack))
            for rule, to in prediction.calls:
                callers.setdefault(rule, []).append((to, stack))
            reached = [_made(Item, (to, stack)) for to in prediction.onward]
            work += prediction.size
            if prediction.ends:
                may_end = may_end or stack.ends
                reached += stack.waiting
                work += len(stack.waiting)
            for item in reached:
                if item not in seen:
                    seen.add(item)
                    pending.append(item)
            if work > most:
                return None
        rules = [*callers]
        for rule in rules:  # the loop appends to it
            prediction = predictions.of_rule(rule)
            predicted.append((prediction, rule))
            for called, to in prediction.calls:
                if called not in callers:
                    callers[called] = []
                    rules.append(called)
                callers[called].append((to, rule))
            work += prediction.size
            if work > most:
                return None
        nodes = self._stacks.of_rules(callers) if callers else {}
        threads: list[Thread] = []
        at_tokens: list[Item] = []
        for prediction, owner in predicted:
            stack = nodes[owner] if isinstance(owner, int) else owner
            at_tokens += [_made(Item, (state, stack)) for state in prediction.tokens]
            for terminal, to, low, high in prediction.reads:
                onward = _made(Item, (to, stack))
                start = self._starts[terminal]
                threads.append(_made(Thread, (terminal, start, 0, low, high, onward)))
        return threads, at_tokens, may_end, work
