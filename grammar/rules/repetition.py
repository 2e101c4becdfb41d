"""Rules that are nothing but a repetition of themselves: xgrammar 0.2.8 dies compiling them."""

import json

import xgrammar as xgr

from dlm.grammar.rules.expressions import REPEAT, RULE, bare, expressions


def endless_rule(grammar: xgr.Grammar) -> str | None:
    """The name of a rule that only repeats itself, perhaps by way of others, if there is one."""
    source = json.loads(grammar.serialize_json())
    known = expressions(source)

    def only(number: int) -> int | None:
        """The rule that an expression is nothing but."""
        kind, parts = bare(known, number)
        return parts[0] if kind in (RULE, REPEAT) else None

    names = [rule[0] for rule in source["rules"]]
    following = [only(rule[1]) for rule in source["rules"]]
    for begin, name in enumerate(names):
        at, steps = following[begin], 0
        while at is not None and at != begin and steps < len(names):
            at, steps = following[at], steps + 1
        if at == begin:
            return name
    return None
