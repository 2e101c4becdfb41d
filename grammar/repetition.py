"""Rules that are nothing but a repetition of themselves: xgrammar 0.2.8 dies compiling them."""

import json

import xgrammar as xgr

_RULE, _SEQUENCE, _CHOICES, _REPEAT = 4, 5, 6, 8  # kinds of xgrammar's expressions


def endless_rule(grammar: xgr.Grammar) -> str | None:
    """The name of a rule that only repeats itself, perhaps by way of others, if there is one."""
    source = json.loads(grammar.serialize_json())
    data, starts = source["grammar_expr_data"], source["grammar_expr_indptr"]

    def only(number: int) -> int | None:
        """The rule that an expression is nothing but."""
        kind, size, first = data[starts[number] : starts[number] + 3]
        if kind in (_SEQUENCE, _CHOICES) and size == 1:
            return only(first)
        return first if kind in (_RULE, _REPEAT) else None

    names = [rule[0] for rule in source["rules"]]
    following = [only(rule[1]) for rule in source["rules"]]
    for begin, name in enumerate(names):
        at, steps = following[begin], 0
        while at is not None and at != begin and steps < len(names):
            at, steps = following[at], steps + 1
        if at == begin:
            return name
    return None
