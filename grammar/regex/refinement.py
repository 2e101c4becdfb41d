"""States of a deterministic automaton: which of them are alive, and which are equivalent."""

from collections.abc import Hashable, Iterable


def alive_states(inverse: list[list[tuple[int, int]]], final: Iterable[int]) -> set[int]:
    """Return the states from which a final state can be reached."""
    alive, work = set(final), list(final)
    while work:
        for _, state in inverse[work.pop()]:
            if state not in alive:
                alive.add(state)
                work.append(state)
    return alive


def equivalent_blocks(
    rows: list[dict[int, int]],
    inverse: list[list[tuple[int, int]]],
    alive: set[int],
    final: set[int],
) -> list[int]:
    """Return the block of equivalent states (Hopcroft) of each state; -1 if it is not alive."""
    block_of = [-1] * len(rows)
    kinds: dict[Hashable, set[int]] = {}
    for state in alive:
        kinds.setdefault((state in final, frozenset(rows[state])), set()).add(state)
    blocks = list(kinds.values())
    for number, block in enumerate(blocks):
        for state in block:
            block_of[state] = number
    work = list(range(len(blocks)))
    while work:
        sources: dict[int, list[int]] = {}
        for to in blocks[work.pop()]:
            for letter, state in inverse[to]:
                sources.setdefault(letter, []).append(state)
        for states in sources.values():
            touched: dict[int, list[int]] = {}
            for state in states:
                touched.setdefault(block_of[state], []).append(state)
            for number, part in touched.items():
                if number < 0 or len(part) == len(block := blocks[number]):
                    continue
                # The smaller part gets a new number, and only that one is processed again.
                if 2 * len(part) <= len(block):
                    new = set(part)
                    block -= new
                else:
                    new = block.difference(part)
                    blocks[number] = set(part)
                for state in new:
                    block_of[state] = len(blocks)
                work.append(len(blocks))
                blocks.append(new)
    return block_of
