"""Listed values as rules, each in its one spelling."""

from dlm.grammar.rules.nodes import NOTHING, Node, alternation, concatenation
from dlm.grammar.schema.arrays import array
from dlm.grammar.schema.constant import Constant, spellings
from dlm.grammar.schema.dialect import Dialect, choice
from dlm.grammar.schema.work import Work


class Listing:
    """Writes values; what one array or object is written as, it keeps.

    `plain_integers`: an integer has no point and no exponent; to draft 4 it would be none.
    """

    def __init__(self, dialect: Dialect, work: Work, plain_integers: bool = False):
        self._dialect, self._work, self._plain_integers = dialect, work, plain_integers
        # By id: values that are equal may be spelled otherwise, and these are kept.
        self._structures: dict[int, tuple[Constant, Node]] = {}

    def one_of(self, values: list[Constant], integers: bool = False, within: bool = False) -> Node:
        """One of some values, each in its one spelling; `integers` are none with a point. `within`
        another value, what may have to be an integer is not known."""
        plain_integers = self._plain_integers and (integers or within)
        texts = [value.value for value in values if value.kind == "string"]
        plain = {"null": "null", True: "true", False: "false"}
        others: list[str] = []
        options: list[Node] = []
        for value in values:
            if value.kind == "number":
                others += spellings(value.value, plain_integers)[: 1 if integers else None]
            elif value.kind in ("null", "boolean"):
                others.append(plain["null" if value.value is None else value.value])
            elif value.kind != "string":
                options.append(self._structure(value))
        if texts:
            options.append(self._dialect.words(tuple(texts)))
        if others:
            options.append(choice(tuple(dict.fromkeys(others))))
        return either(options)

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
            return (
                array(concatenation(*parts), False, self._dialect)
                if parts
                else array(NOTHING, True, self._dialect)
            )
        if not parts:
            return self._dialect.mark("{}")
        return concatenation(self._dialect.mark("{"), *parts, self._dialect.mark("}"))


def either(options: list[Node]) -> Node:
    """One of some nodes, each once."""
    kept = [option for option in dict.fromkeys(options) if option != NOTHING]
    return alternation(*kept) if kept else NOTHING
