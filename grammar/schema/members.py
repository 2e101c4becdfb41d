"""Properties that an object may have: those that its schema names, and sets of keys for others."""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from dlm.grammar.errors import InvalidGrammarError
from dlm.grammar.regex.automaton import Automaton
from dlm.grammar.regex.nodes import Node
from dlm.grammar.schema.conditions import Objects
from dlm.grammar.schema.dialects import Dialect
from dlm.grammar.schema.formulas import FALSE, Formula, every, pointer_of
from dlm.grammar.schema.normal import NormalForm
from dlm.grammar.schema.structures import TooManyError

_MOST_KEYS = 16  # a pattern with no more texts than these is treated as named properties
_MOST_CLASSES = 64  # sets of keys that share a schema


class Member(NamedTuple):
    """A property, or, without a name, any property whose key is one of `keys`."""

    value: Formula
    name: str | None = None
    required: bool = False
    ordered: bool = False  # it is required for all values, not by a dependency
    keys: Automaton = Automaton.NONE


class Members(NamedTuple):
    """Properties of an object: `named` in order, then any of `free` and one of each `needed`."""

    named: tuple[Member, ...]
    free: tuple[Member, ...]
    needed: tuple[tuple[Member, ...], ...] = ()


def members(
    objects: Objects, normal: NormalForm, keys_of: Callable[[Formula], Automaton]
) -> list[Members]:
    """Return the alternatives for the properties of an object.

    `keys_of` returns the strings that fit a condition. Raises `TooManyError`, and `TooLargeError`
    for a set of keys.
    """
    named = {name: normal.value_of(objects, name) for name in objects.all_names()}
    required, in_order = set(objects.required), objects.in_order()
    present = [name for name, value in named.items() if normal.possible(value)]
    patterns = any(clause.patterns for clause in objects.clauses)
    names_some = objects.named or bool(present or patterns)
    closed = names_some and not objects.opened and objects.low <= len(present)
    free: list[Member] = []
    number = len(named)
    for member in _classes(objects, list(named), normal, keys_of, closed):
        words = member.keys.words_up_to(_MOST_KEYS)
        if words is None:
            free.append(member)
        else:
            order = {name: index for index, name in enumerate(_listed(objects, normal))}
            words.sort(key=lambda word: order.get(word, len(order)))
            named |= dict.fromkeys(words, member.value)
    if len(named) > number:
        present = [name for name, value in named.items() if normal.possible(value)]
    possible = tuple(Member(named[n], n, n in required, n in in_order) for n in present)
    alternatives = [Members(possible, tuple(free))]
    for keys, value in objects.some:
        language = keys_of(keys) if isinstance(keys, Formula) else keys
        other_keys = _classes(objects, list(named), normal, keys_of, False) if closed else free
        alternatives = [
            new for old in alternatives for new in _with(old, language, value, other_keys)
        ]
        if len(alternatives) > _MOST_CLASSES:
            raise TooManyError
    return alternatives


def _listed(objects: Objects, normal: NormalForm) -> Iterator[str]:
    """Yield the keys that `propertyNames` lists, in its order."""
    for names in objects.names:
        for shape in normal.shapes(names, "string"):
            yield from (value.value for value in shape.values or ())


def _with(old: Members, keys: Automaton, value: Formula, free: list[Member]) -> Iterator[Members]:
    """Yield `old` with a property required that fits `keys` and `value`, named or new."""
    for i, member in enumerate(old.named):
        if keys.accepts(member.name or ""):
            both = every(member.value, value)
            if both is not FALSE:
                required = member._replace(value=both, required=True)
                yield old._replace(named=(*old.named[:i], required, *old.named[i + 1 :]))
    for i, needed in enumerate(old.needed):
        if options := _among(needed, keys, value):
            yield old._replace(needed=(*old.needed[:i], options, *old.needed[i + 1 :]))
    if options := _among(free, keys, value):
        yield old._replace(needed=(*old.needed, options))


def _among(some: Iterable[Member], keys: Automaton, value: Formula) -> tuple[Member, ...]:
    """Return `some` restricted to `keys` and `value`, without those that become impossible."""
    both = (Member(every(m.value, value), keys=m.keys.intersection(keys)) for m in some)
    return tuple(
        member for member in both if member.value is not FALSE and not member.keys.is_empty
    )


def _classes(
    objects: Objects,
    named: list[str],
    normal: NormalForm,
    keys_of: Callable[[Formula], Automaton],
    closed: bool,
) -> list[Member]:
    """Return the keys that the schema does not name, grouped by the condition on their values."""
    rests = every(*(clause.rest for clause in objects.clauses if not clause.patterns))
    if rests is FALSE or (closed and not any(clause.patterns for clause in objects.clauses)):
        return []
    normal.work.count(sum(map(len, named)) // 8, "")
    keys = Automaton.other_words(named)
    for names in objects.names:
        keys = keys.intersection(keys_of(names))
    classes: list[tuple[Automaton, tuple[Formula, ...], bool]] = [(keys, (), False)]
    for clause in objects.clauses:
        if not clause.patterns:
            classes = [
                (k, (*values, clause.rest), hit)
                for k, values, hit in classes
                if clause.rest is not FALSE
            ]
            continue
        split = [(k, values, hit, False) for k, values, hit in classes]
        for pattern, value in clause.patterns:
            normal.work.count(20 * len(split), "")
            matching = normal.languages.of("pattern", pattern)
            others = normal.languages.of("pattern", pattern, False)
            split = [
                part  # keys for which regex engines disagree are in neither part
                for k, values, hit, matched in split
                for part in (
                    (k.intersection(matching), (*values, value), True, True),
                    (k.intersection(others), values, hit, matched),
                )
                if not part[0].is_empty and FALSE not in part[1]
            ]
            if len(split) > _MOST_CLASSES:
                raise TooManyError
        classes = [
            (k, values if matched else (*values, clause.rest), hit)
            for k, values, hit, matched in split
        ]
    joined: dict[Formula, Automaton] = {}
    for k, values, hit in classes:
        value = every(*values)
        if not k.is_empty and (hit or not closed) and normal.possible(value):
            joined[value] = joined[value].union(k) if value in joined else k
    return [Member(value, keys=k) for value, k in joined.items()]


def key_of(member: Member, dialect: Dialect) -> Node:
    """Return the key of a property. Raises `InvalidGrammarError` for a name without a spelling."""
    if member.name is None:
        return dialect.free_key(member.keys)
    try:
        return dialect.key(member.name)
    except InvalidGrammarError as error:
        where = pointer_of(member.value)
        raise InvalidGrammarError("JSON schema", error.reason, where) from error
