"""Listed JSON values as texts."""

from dlm.grammar.regex.nodes import (
    NOTHING,
    Node,
    alternation,
    alternation_of,
    concatenation,
    is_nothing,
)
from dlm.grammar.schema.constants import Constant, spellings
from dlm.grammar.schema.dialects import Dialect, choice
from dlm.grammar.schema.documents import Work


def enclosed(brackets: str, content: Node, empty: bool, dialect: Dialect) -> Node:
    """Return `content` in `brackets`, `[]` or `{}`; `empty` allows the brackets alone as well."""
    if is_nothing(content):
        return dialect.mark(brackets) if empty else NOTHING
    whole = concatenation(dialect.mark(brackets[0]), content, dialect.mark(brackets[1]))
    return alternation(dialect.mark(brackets), whole) if empty else whole


class Listing:
    """Writer of listed values, which caches arrays and objects.

    `plain_integers`: integers have no point and no exponent, as draft 4 demands.
    """

    def __init__(self, dialect: Dialect, work: Work, plain_integers: bool = False):
        self._dialect, self._work, self._plain_integers = dialect, work, plain_integers
        # By id(), since equal values may be spelled differently. Values are kept alive here.
        self._structures: dict[int, tuple[Constant, Node]] = {}

    def one_of(self, values: list[Constant], integers: bool = False, within: bool = False) -> Node:
        """Return one of `values`, each in its own spelling.

        If `integers`, numbers have no point. `within`: the values are inside another value, so that
        it is unknown which of them have to be integers.
        """
        plain_integers = self._plain_integers and (integers or within)
        texts: list[str] = []
        others: list[str] = []
        options: list[Node] = []
        for value in values:
            match value.kind:
                case "string":
                    texts.append(value.value)
                case "number":
                    others += spellings(value.value, plain_integers)[: 1 if integers else None]
                case "null" | "boolean":
                    others.append({None: "null", True: "true", False: "false"}[value.value])
                case _:
                    options.append(self._structure(value))
        if texts:
            options.append(self._dialect.words(tuple(texts)))
        if others:
            options.append(choice(tuple(dict.fromkeys(others))))
        return alternation_of(options)

    def _structure(self, value: Constant) -> Node:
        if id(value) not in self._structures:
            self._work.count(1 + len(value.parts) // 4, "")
            self._structures[id(value)] = value, self._written_out(value)
        return self._structures[id(value)][1]

    def _written_out(self, value: Constant) -> Node:
        comma, parts = self._dialect.mark(","), []
        for key, part in zip(value.value, value.parts, strict=True):
            item = self.one_of([part], within=True)
            if value.kind == "object":
                item = concatenation(self._dialect.key(key), self._dialect.mark(":"), item)
            parts += [comma, item] if parts else [item]
        if value.kind == "array":
            content = concatenation(*parts) if parts else NOTHING
            return enclosed("[]", content, not parts, self._dialect)
        if not parts:
            return self._dialect.mark("{}")
        return concatenation(self._dialect.mark("{"), *parts, self._dialect.mark("}"))
