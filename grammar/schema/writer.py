"""A JSON schema written as grammar rules. Knows no draft and no keyword."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from typing import Literal as OneOf

from dlm.grammar.rules.nodes import Node
from dlm.grammar.rules.rules import Rules
from dlm.grammar.schema.dialect import Dialect


@dataclass(frozen=True)
class Written:
    """A schema as rules: its values are what `node` matches.

    `inexact` says where, by JSON pointer, and why the rules allow more than the schema does.
    """

    node: Node
    inexact: tuple[tuple[str, str], ...] = ()
    free_keys: bool = False  # an object may hold a key twice, which rules cannot see


def write(
    schema: Any,
    *,
    dialect: Dialect,
    rules: Rules,
    unenforced: OneOf["refuse", "check"] = "refuse",
    implied_types: bool = True,
    formats: bool | None = None,
    registry: Mapping[str, Any] | None = None,
    where: str = "",
) -> Written:
    """Adds the rules of `schema`, which is parsed JSON, to `rules`.

    `implied_types`: a keyword implies the type that it is about. `formats` are asserted, by
    default where types are implied. `registry` has other documents, by URI. `where` is the JSON
    pointer of the schema in what the user wrote. Raises `InvalidGrammarError`.
    """
    raise NotImplementedError
