"""Translation of a JSON schema into grammar rules. Knows no draft and no keyword."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Any, cast
from typing import Literal as OneOf

from dlm.grammar.errors import InvalidGrammarError
from dlm.grammar.limits import RESULTS, size_of
from dlm.grammar.regex.automaton import Automaton, TooLargeError
from dlm.grammar.regex.nodes import (
    NOTHING,
    Literal,
    Node,
    Reference,
    Terminal,
    alternation_of,
    is_nothing,
)
from dlm.grammar.regex.patterns import BoundedTexts
from dlm.grammar.rules.properties import without_endless
from dlm.grammar.rules.rules import Rules
from dlm.grammar.schema.arrays import write_array
from dlm.grammar.schema.choices import ChoiceWriter
from dlm.grammar.schema.conditions import (
    KINDS,
    Alternative,
    Arrays,
    Clause,
    Numbers,
    Objects,
    Shapes,
    Strings,
)
from dlm.grammar.schema.contradictions import contradiction
from dlm.grammar.schema.dialects import Dialect
from dlm.grammar.schema.distinct_items import are_few, columns_of, most_items, write_distinct
from dlm.grammar.schema.documents import MOST_WORK, DocumentReader, Work
from dlm.grammar.schema.formulas import TRUE, Formula, Leaf, pointer_of
from dlm.grammar.schema.keywords import Keywords, whole
from dlm.grammar.schema.languages import TOO_LARGE, Languages, most_characters, with_bounds
from dlm.grammar.schema.members import members
from dlm.grammar.schema.normal import NormalForm
from dlm.grammar.schema.objects import ObjectWriter, PropertyOrder
from dlm.grammar.schema.structures import MOST_STATES, TooManyError, ValueWriter
from dlm.grammar.schema.values import Listing

_ANY_VALUE = "any"  # the rule of all values
_ANY_SHAPES = tuple(map(whole, KINDS))  # the alternatives of `TRUE`
_ANY_READ, _ANY_WRITTEN = 8, 3  # steps of work, besides those for all numbers
_STRUCTURED = (Arrays, Objects)
_SMALL = (Literal, Terminal, Reference)
_MOST_LISTED = 5  # parts of the schema that an error lists
_ADVICE = (
    "This cannot be enforced while the value is written: leave it out, or have the finished value "
    'checked (unenforced="check"; over HTTP, "strict": false)'
)
_CONDITIONS = "dependentRequired dependentSchemas if allOf anyOf oneOf not $ref".split()
_REASONS = {
    RecursionError: "nested too deeply",
    TooLargeError: TOO_LARGE,
    TooManyError: "it takes too many rules to count",
}


@dataclass(frozen=True)
class Written:
    """A schema as rules: `node` matches its values.

    `inexact` lists where the rules allow more than the schema: JSON pointer and reason.
    """

    node: Node
    inexact: tuple[tuple[str, str], ...] = ()
    free_keys: bool = False  # the rules allow an object to repeat a key
    few_keys: bool = False  # an object may run out of keys that are not used yet
    ambiguous: bool = False  # a text without quotes may be read as an array or an object


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
    closed: bool = True,
    property_order: PropertyOrder = "required",
    most_work: int = MOST_WORK,
    form: "FormWriter | None" = None,
    whole: bool = False,
) -> Written:
    """Add the rules of `schema`, which is parsed JSON, to `rules`.

    `implied_types`: a keyword implies the type that it is about, and an unknown `$schema` is the
    newest draft. `formats` are asserted, by default if types are implied. `registry` has other
    documents by URI. `where` is the JSON pointer of the schema in the user's input. `closed`:
    objects have only the properties that the schema names, unless it allows others.
    `property_order` is that of `ObjectWriter`. `form` writes
    the value instead of `dialect`. `whole`: the value is JSON and the whole text, so that the
    parser can rule out repeated keys and items. Raises `InvalidGrammarError`.
    """
    try:
        work = Work(most_work)
        reader = DocumentReader(schema, registry, where, work, strict=not implied_types)
        languages = Languages(implied_types if formats is None else formats, work)
        keywords = Keywords(reader, languages)
        normal = NormalForm(keywords, closed)
        listing = Listing(dialect, work, plain_integers=reader.root.draft == 4)
        writer = Writer(
            normal, keywords, dialect, rules, implied_types, closed, property_order, listing, whole
        )
        root = keywords.formula(schema, reader.root)
        node = writer.written(root, form)
        where_not, why = "", ""
        if is_nothing(node):
            where_not, why = contradiction(root, normal, keywords, writer.alternatives)
    except tuple(_REASONS) as error:
        raise InvalidGrammarError("JSON schema", _REASONS[type(error)], where or "/") from error
    inexact = tuple(sorted((normal.inexact | writer.inexact | languages.inexact).items()))
    if inexact and unenforced == "refuse":
        (location, reason), *others = inexact
        other_reasons = [f"{where or '/'}: {why}" for where, why in others[: _MOST_LISTED - 1]]
        other_reasons += ["..."] * (len(others) >= _MOST_LISTED)
        reasons = "; ".join([reason, *other_reasons])
        raise InvalidGrammarError("JSON schema", f"{reasons}. {_ADVICE}", location or "/")
    if is_nothing(node):
        reason = f"no finite value fits{': ' if why else ''}{why}"
        raise InvalidGrammarError("JSON schema", reason, where_not or where or "/")
    return Written(node, inexact, writer.free_keys, writer.few_keys, writer.ambiguous)


def _too_many_choices(formula: Formula) -> str:
    """Return the reason why the conditions of an object cannot be enforced."""
    node = formula.source.node if isinstance(formula, Leaf) else {}
    words = [word for word in _CONDITIONS if node.get(word)] or ["its conditions"]
    return (
        f"{' and '.join(words)} take over {MOST_STATES:,} rules together: the conditions are about "
        "required properties that are far apart, or counted. The properties of a condition have to "
        'be neighbours in `properties`, or to come in any order (property_order="any")'
    )


class Writer:
    """Writer of one rule for each condition on values.

    Conditions wait in a queue, so that deep schemas do not overflow the stack.
    """

    def __init__(
        self,
        normal: NormalForm,
        keywords: Keywords,
        dialect: Dialect,
        rules: Rules,
        implied_types: bool,
        closed: bool,
        order: PropertyOrder,
        listing: Listing,
        whole: bool,
    ):
        self.inexact: dict[str, str] = {}
        self.free_keys = self.few_keys = self.ambiguous = False
        self._normal, self._dialect, self._rules = normal, dialect, rules
        self._closed, self._whole = closed, whole
        self._order: PropertyOrder = order
        self._keywords = keywords
        self.alternatives = normal.narrowed if implied_types else normal.shapes
        self._nodes: dict[tuple[Formula, tuple[str, ...]], Node] = {}
        self._alike: dict[tuple[Alternative, ...], Node] = {}
        self._listing = listing
        self._formula: Formula = TRUE  # the one that is being written
        self._waiting: list[tuple[Reference, Shapes, Formula]] = []

    def written(self, root: Formula, form: "FormWriter | None") -> Node:
        """Return the node of the values that fit `root`, after adding all its rules."""
        before = added = len(self._rules.nodes)
        node = form(self, root) if form else self.value(root)
        while self._waiting:
            reference, shapes, formula = self._waiting.pop()
            if shapes is _ANY_SHAPES:
                written = self._any_value(reference)
            else:
                written = alternation_of([self._shape(shape, formula) for shape in shapes])
            self._rules.define(reference, written)
            self._normal.work.count(len(self._rules.nodes) - added, pointer_of(formula))
            added = len(self._rules.nodes)
        return without_endless(self._rules, node, before)

    def value(self, formula: Formula, kinds: Sequence[str] = KINDS) -> Node:
        """Return the node of the values of the types `kinds` that fit `formula`."""
        key = formula, tuple(kinds)
        node = self._nodes.get(key)
        if node is None:
            shapes = self.shapes(formula, kinds)
            node = self._alike.get(shapes)
            if node is None:
                node = self._alike[shapes] = self._new(shapes, formula)
            self._nodes[key] = node
        return node

    def shapes(self, formula: Formula, kinds: Sequence[str]) -> Shapes:
        """Return the alternatives for the types `kinds`, without those that no value fits."""
        if formula is TRUE and kinds is KINDS:
            self._normal.work.count(_ANY_READ, "")
            return _ANY_SHAPES
        fitting = self._keywords.kinds(formula)
        if kinds is not KINDS:
            fitting = [kind for kind in kinds if kind in fitting]
        alternatives = (s for kind in fitting for s in self.alternatives(formula, kind))
        bare = [s.bare() for s in alternatives if self._normal.fits_some(s)]
        return tuple(bare if len(bare) < 2 else dict.fromkeys(bare))

    def _new(self, shapes: Shapes, formula: Formula) -> Node:
        if any(isinstance(shape.facets, _STRUCTURED) for shape in shapes):
            is_first = shapes is _ANY_SHAPES and _ANY_VALUE not in self._rules.nodes
            reference = Reference(_ANY_VALUE) if is_first else self._rules.new("value")
            self._waiting.append((reference, shapes, formula))
            return reference
        node = alternation_of([self._shape(shape, formula) for shape in shapes])
        small = isinstance(node, _SMALL) or is_nothing(node)
        return node if small else self._rules.add(node, "value")

    def _any_value(self, reference: Reference) -> Node:
        """Return the node of all values, to be the rule of `reference`. Schemas share it."""
        self.free_keys = True
        self._normal.work.count(_ANY_WRITTEN, "")
        self._normal.languages.numbers(Numbers())  # counts its work
        key = _ANY_VALUE, reference, self._dialect, self._closed, self._order, self._whole
        node = RESULTS.get(key)
        if node is None:
            node = alternation_of([self._shape(shape, TRUE) for shape in _ANY_SHAPES])
            RESULTS.keep(key, node, size_of(node))
        return node

    def _shape(self, shape: Alternative, formula: Formula) -> Node:
        facets, self._formula = shape.facets, formula
        if shape.values is not None:
            return self._listing.one_of(
                [v for v in shape.values if self._normal.admits_facets(facets, v)],
                isinstance(facets, Numbers) and facets.integer,
            )
        try:
            match facets:
                case Strings():
                    if (pieces := self._normal.languages.pieces(facets, self._part)) is not None:
                        return self._dialect.string_of(pieces)
                    texts = self._normal.languages.texts(facets)
                    return self._dialect.string(*texts) if texts else NOTHING
                case Numbers():
                    return self._number(facets)
                case Arrays():
                    return self._array(facets, formula)
                case Objects():
                    return self.members(facets, self.value, self._dialect)
        except (TooLargeError, TooManyError) as error:
            self.inexact[pointer_of(formula)] = _REASONS[type(error)]
        return self._wider(facets)

    def _part(self, content: Node) -> Node:
        """Return a rule for a part of a string."""
        return self._rules.add(self._dialect.characters(content), "text")

    def _number(self, numbers: Numbers) -> Node:
        return Terminal(self._normal.languages.numbers(numbers), 0, most_characters(numbers))

    def _wider(self, facets: Any) -> Node:
        """Return a simpler node that allows more than `facets`."""
        match facets:
            case Strings(low, high):
                return self._dialect.string(Automaton.ANY, low, high)
            case Numbers(integer=integer):
                return self._number(Numbers(integer=integer))
            case Arrays(prefix, further):
                low = max([facets.low, *(condition.low for condition in facets.contains)])
                return write_array(
                    Arrays(prefix, further, low), self.value, self._dialect, self._rules
                )
        self.free_keys = True
        written = members(Objects(), self._normal, self._keys)[0]
        return ObjectWriter(
            written, facets.low, None, self.value, self._dialect, self._rules, self._order
        ).write()

    def _array(self, arrays: Arrays, formula: Formula) -> Node:
        if arrays.repeats:
            self.inexact[f"{pointer_of(formula)}/uniqueItems"] = (
                "uniqueItems: that two items are equal cannot be enforced"
            )
        if not arrays.unique or (arrays.high is not None and arrays.high < 2):
            return write_array(arrays, self.value, self._dialect, self._rules)
        columns = None
        if not (arrays.contains or arrays.repeats):
            columns = columns_of(arrays, self._normal, self._keywords)
        if columns is not None:
            arrays = arrays._replace(high=most_items(arrays, columns))
            if arrays.high is not None and arrays.high < arrays.low:
                return NOTHING
        means = self.value, self._dialect, self._rules
        if columns is None or not are_few(columns, arrays.high):
            node = write_array(arrays, *means)
        else:
            one_of = self._listing.one_of
            node = write_distinct(columns, arrays.low, arrays.high, one_of, *means)
            if all(column.is_listed for column in columns):
                return node
        if not self._whole:
            self.inexact[f"{pointer_of(formula)}/uniqueItems"] = (
                "uniqueItems cannot be enforced within other text: its items may repeat"
            )
            return node
        rule = self._rules.add(node, "distinct")  # the parser rules out repeated items
        self._rules.distinct.add(rule.name)
        return rule

    def texts(self, shape: Alternative) -> BoundedTexts | None:
        """Return the strings that fit `shape`; None if none does."""
        if shape.values is None:
            return self._normal.languages.texts(cast("Strings", shape.facets))
        fitting = [v.value for v in shape.values if self._normal.admits_shape(shape, v)]
        return Automaton.words(fitting), 0, None

    def members(self, objects: Objects, value: ValueWriter, dialect: Dialect) -> Node:
        """Return the node of objects, written with `value` for property values and `dialect`."""
        if not self._closed:
            objects = objects._replace(opened=True)
        if objects.choices:
            return self._chosen(objects, value, dialect)
        limits = objects.low, objects.high
        options = []
        for properties in members(objects, self._normal, self._keys):
            writer = ObjectWriter(
                properties,
                *limits,
                value,
                dialect,
                self._rules,
                self._order,
                distinct=not self._whole,
            )
            self.free_keys |= writer.repeats
            self.few_keys |= writer.few_keys
            options.append(writer.write())
        return alternation_of(options)

    def _chosen(self, objects: Objects, value: ValueWriter, dialect: Dialect) -> Node:
        """Return the node of objects with choices."""
        names = (*(objects.order or objects.all_names()), *objects.chosen_names())
        named = Clause(tuple((name, TRUE) for name in dict.fromkeys(names)))
        wider = objects._replace(clauses=(named, *objects.clauses), choices=())
        closed = objects.closes_names
        options: list[Node] = []
        count = partial(self._normal.work.count, where=pointer_of(self._formula))
        for properties in members(wider, self._normal, self._keys):
            self.free_keys |= bool(properties.free)
            self.few_keys |= not all(member.keys.is_roomy for member in properties.free)
            try:
                writer = ChoiceWriter(
                    properties, objects, self._order, closed, self._normal.possible, count
                )
            except TooManyError:
                self.inexact[pointer_of(self._formula)] = _too_many_choices(self._formula)
                return self.members(wider, value, dialect)
            options.append(writer.write(value, dialect, self._rules))
        return alternation_of(options)

    def _keys(self, formula: Formula) -> Automaton:
        """Return the automaton of the strings that fit `formula`."""
        languages = (self.texts(shape) for shape in self._normal.shapes(formula, "string"))
        return reduce(Automaton.union, map(with_bounds, languages), Automaton.NONE)


FormWriter = Callable[[Writer, Formula], Node]  # writes the whole value in a form of its own


def as_object(writer: Writer, formula: Formula) -> Node:
    """Return the node of the objects that fit `formula`."""
    return writer.value(formula, ("object",))
