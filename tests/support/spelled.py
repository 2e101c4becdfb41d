"""A JSON value as the texts that a grammar may accept for it."""

import json
from collections.abc import Iterator
from itertools import islice, permutations, product
from typing import Any

_MOST = 24  # orders of the keys of one value


def text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def orders(value: Any) -> Iterator[Any]:
    """The value with the keys of its objects in other orders."""
    if isinstance(value, list):
        parts = [list(islice(orders(part), _MOST)) for part in value]
        yield from map(list, islice(product(*parts), _MOST))
    elif isinstance(value, dict):
        inner = {key: list(islice(orders(part), _MOST)) for key, part in value.items()}
        for keys in islice(permutations(value), _MOST):
            for chosen in islice(product(*(inner[key] for key in keys)), _MOST):
                yield dict(zip(keys, chosen, strict=True))
    else:
        yield value
