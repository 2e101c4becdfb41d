"""Orders in which the properties of an object may be written."""

from dataclasses import replace

from dlm.grammar.schema.members import Members


def in_other_orders(members: Members, *orders: tuple[str, ...]) -> list[Members]:
    """Return the members in their order, and in others: with those first that an order has."""
    found = {members.named: members}
    for order in orders:
        places = {name: place for place, name in enumerate(order)}
        named = sorted(members.named, key=lambda m: places.get(m.name or "", len(places)))
        found[tuple(named)] = replace(members, named=tuple(named))
    return list(found.values())
