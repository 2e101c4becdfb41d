"""A serialised grammar of xgrammar, as far as it is read here: its expressions, by number."""

from typing import Any

# Their kinds.
STRING, CLASS, STAR, EMPTY, RULE, SEQUENCE, CHOICES = range(7)
REPEAT, TOKENS, OTHER_TOKENS = 8, 9, 10

Expression = tuple[int, list[int]]  # a kind, and its parts


def expressions(source: dict[str, Any]) -> list[Expression]:
    data, starts = source["grammar_expr_data"], source["grammar_expr_indptr"]
    return [(data[s], data[s + 2 : s + 2 + data[s + 1]]) for s in starts]


def bare(known: list[Expression], number: int) -> Expression:
    """An expression, without the sequences and choices of one part around it."""
    kind, parts = known[number]
    while kind in (SEQUENCE, CHOICES) and len(parts) == 1:
        kind, parts = known[parts[0]]
    return kind, parts


def options(known: list[Expression], number: int) -> list[list[int]]:
    """What an expression chooses from: of each option, the numbers of its parts."""
    kind, parts = known[number]
    if kind == CHOICES:
        return [option for part in parts for option in options(known, part)]
    if kind == SEQUENCE and len(parts) == 1:
        return options(known, parts[0])
    return [parts if kind == SEQUENCE else [number]]
