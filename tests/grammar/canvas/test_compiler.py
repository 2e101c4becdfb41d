"""From schemas to grammars, and what is refused on the way."""

import gc
import json
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel
from waiting import PATIENCE

from dlm.grammar import (
    Choice,
    Compiler,
    CrashError,
    Grammar,
    InvalidGrammarError,
    InvalidValueError,
    JsonSchema,
    LeftToRight,
    Matcher,
    Task,
)
from dlm.grammar.canvas import Warmup
from dlm.grammar.parse import Scanner, StackNode, State


class Person(BaseModel):
    name: str
    age: int


def accepts(compiler, spec, text):
    matcher = Matcher(compiler.compile(spec))
    tokens = [*compiler.vocabulary.encode(text), compiler.vocabulary.stops[0]]
    return matcher.accept_all(tokens) == len(tokens)


def test_who_stops_waiting_for_a_grammar_costs_nobody_else_theirs(vocabulary):
    class Slow:
        def submit(self, *_, **__):
            waiting.append(Task())
            return waiting[-1]

    waiting: list[Task] = []
    compiler = Compiler(vocabulary, workers=Slow())
    first, second = Choice(["a"]), Choice(["b"])
    compiler.submit(first).cancel()
    compiler.submit(second)
    assert not compiler.submit(first).cancelled()
    assert len(waiting) == 3


def test_a_grammar_that_is_given_up_as_it_is_asked_for_again_is_compiled_anew(vocabulary):
    class GivenUp(Task):
        def join(self) -> bool:
            joined = super().join()
            self.set_exception(CrashError("no request waits for it any more"))
            return joined and self.done()

    compiler, spec = Compiler(vocabulary), Choice(["given", "up"])
    compiler._known[spec.key] = GivenUp()
    assert compiler.submit(spec).result(PATIENCE).vocabulary is vocabulary
    compiler.close()


def test_a_grammar_that_somebody_left_is_compiled_here_and_now(vocabulary):
    compiler, spec = Compiler(vocabulary), Choice(["here", "now"])
    left = compiler._known[spec.key] = Task()
    left.leave()
    assert left.cancelled()
    assert compiler.compile(spec).vocabulary is vocabulary
    assert compiler.submit(spec).result(0) is compiler.compile(spec)
    compiler.close()


def test_a_grammar_that_was_left_is_compiled_when_it_is_asked_for_again(compiler):
    spec = Choice(["left", "asked for"])
    held = compiler.submit(JsonSchema({"enum": list(range(3000))}))  # in front of it
    once, twice = compiler.submit(spec), compiler.submit(spec)
    assert once is twice
    once.leave()
    twice.leave()
    assert compiler.submit(spec).result(PATIENCE).vocabulary is compiler.vocabulary
    held.result(PATIENCE)


def test_a_grammar_travels_to_another_process_as_bytes_and_equal_bytes_are_one(
    compiler, vocabulary
):
    packed = compiler.compile(Choice(["left", "right"])).packed
    other = Compiler(vocabulary)
    compiled = other.unpack(packed)
    assert other.unpack(bytes(packed)) is compiled
    for text, taken in (("left", True), ("lefty", False)):
        tokens = [*vocabulary.encode(text), vocabulary.stops[0]]
        assert (Matcher(compiled).accept_all(tokens) == len(tokens)) is taken


def test_grammars_that_are_dropped_are_not_kept_to_be_warmed_up(vocabulary):
    compiler = Compiler(vocabulary, max_bytes=1)
    found = [weakref.ref(compiler.compile(Choice([f"{i}a", f"{i}b"]))) for i in range(20)]
    gc.collect()
    assert sum(one() is not None for one in found) < 4
    assert compiler.cold
    compiler.warm_up(1000)


@pytest.mark.parametrize(
    "schema", [Person, Person.model_json_schema(), json.dumps(Person.model_json_schema())]
)
def test_a_schema_may_come_as_a_model_a_dict_or_text(compiler, schema):
    assert accepts(compiler, JsonSchema(schema), '{"name": "Ben", "age": 7}')
    assert not accepts(compiler, JsonSchema(schema), '{"name": "Ben", "age": "7"}')
    assert not accepts(compiler, JsonSchema(schema), '{"name": "Ben"}')


def test_whitespace_is_free_up_to_its_bound(compiler):
    spec = JsonSchema(Person, max_whitespace=4)
    assert accepts(compiler, spec, '{\n  "name": "Ben",\n  "age": 7\n}')
    assert accepts(compiler, spec, '{"name":"Ben","age":7}')
    assert not accepts(compiler, spec, '{     "name": "Ben", "age": 7}')


def test_properties_that_the_schema_does_not_name_are_not_made_up(compiler):
    assert not accepts(compiler, JsonSchema(Person), '{"name": "Ben", "age": 7, "x": 1}')


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string"},
        {"type": "string", "maxLength": 5},
        {"type": "string", "minLength": 1},
        {"type": "string", "minLength": 1, "maxLength": 9},
        {"type": "string", "pattern": "^a.b$"},
        {"type": "string", "pattern": "^[^x]+$"},
        {"type": "object", "propertyNames": {"maxLength": 3}},
        {"type": "array", "items": {"type": "string", "maxLength": 3}},
        {"type": "string", "format": "email"},
    ],
)
@given(character=st.integers(0, 31))
def test_a_string_holds_no_raw_control_character(compiler, schema, character):
    """RFC 8259: they are written as escapes; xgrammar lets them into strings with a length."""
    raw = f'"a{chr(character)}b"'
    for text in (raw, f"{{{raw}: 1}}", f"[{raw}]"):
        assert not accepts(compiler, JsonSchema(schema), text)


@pytest.mark.parametrize("text", ['"aé€😀x"', '"12345"', '""'])
def test_a_string_with_a_length_counts_characters(compiler, text):
    spec = JsonSchema({"type": "string", "maxLength": 5})
    assert accepts(compiler, spec, text)
    assert not accepts(compiler, spec, '"123456"')


def test_a_literal_that_looks_like_a_rule_stays_a_literal(compiler):
    odd = 'x ::= (([^\\"\\\\\\r\\n]))'
    spec = JsonSchema(
        {
            "type": "array",
            "prefixItems": [{"const": odd}, {"type": "string", "maxLength": 2}],
            "items": False,
            "minItems": 2,
        }
    )
    assert accepts(compiler, spec, json.dumps([odd, "ab"]))
    assert not accepts(compiler, spec, json.dumps(["x", "ab"]))


@pytest.mark.parametrize(
    ("schema", "problem"),
    [
        ("not json", "JSON schema at line 1 column 1: not JSON"),
        ('{"type": "string"', "JSON schema at line 1 column 18: not JSON"),
        ("[1, 2]", "a schema is an object, not"),
        ("7", "a schema is an object, not 7"),
        ({"type": "objectt"}, "JSON schema at /type: 'objectt' is no type"),
        (
            {"properties": {"a": {"minimum": "x"}}},
            "at /properties/a/minimum: must be a number",
        ),
        ({"type": "object", "required": "a"}, "at /required"),
        ({"type": "string", "pattern": "(a"}, "at /pattern: this group does not end"),
        ({"a": object()}, "not JSON data"),
    ],
)
def test_what_is_no_schema_says_where_and_why(schema, problem):
    with pytest.raises(InvalidGrammarError, match=problem):
        JsonSchema(schema)


def test_what_cannot_be_compiled_says_why_without_a_stack_of_files(compiler):
    with pytest.raises(InvalidGrammarError, match="no finite value fits") as raised:
        compiler.compile(JsonSchema(False))
    assert ".cc" not in str(raised.value)


def test_rules_of_thousands_of_optional_parts_compile(compiler):
    spec = Grammar("root ::= " + "x? " * 3000 + '\nx ::= "(" x? ")" | "[" x x "]"')
    assert accepts(compiler, spec, "()[()(())]")
    assert not accepts(compiler, spec, "([()])")


def test_what_no_integer_of_the_machine_holds_is_a_length_like_any_other(compiler):
    spec = JsonSchema({"anyOf": [{"type": "string", "minLength": 10**20}, {"type": "integer"}]})
    look = LeftToRight(compiler.compile(spec), 30).look(exact=True)
    assert accepts(compiler, spec, "12")
    assert look is not None


def test_whitespace_has_to_be_possible():
    with pytest.raises(InvalidGrammarError, match="max_whitespace is 0"):
        JsonSchema(True, max_whitespace=0)


def test_a_number_ends_where_a_stop_may_follow(compiler, vocabulary):
    matcher = Matcher(compiler.compile(JsonSchema({"type": "number"})))
    for text, ends in (("1", True), (".", False), ("5", True)):
        assert matcher.accept_all(vocabulary.encode(text)) == 1
        words = matcher.allowed()
        assert {bool(words[s // 32] >> (s % 32) & 1) for s in vocabulary.stops} == {ends}


def test_long_repetitions_in_a_pattern_compile(compiler):
    """With xgrammar's own cache this one fails on an internal check."""
    spec = JsonSchema({"type": "string", "pattern": "^[0-9a-z]{1,255}$"})
    assert accepts(compiler, spec, '"a1"')
    assert not accepts(compiler, spec, '"A"')
    assert not accepts(compiler, spec, f'"{"a" * 256}"')


@pytest.mark.parametrize(
    ("schema", "text", "problem"),
    [
        ({"type": "integer", "multipleOf": 12}, "7", r"does not fit .* at /: 7 is not a multiple"),
        ({"properties": {"a": {"type": "string"}}}, '{"a": 1}', r"at /a: 1 is not of type"),
        ({}, "{", "the text is not JSON"),
    ],
)
def test_a_text_that_is_no_value_of_the_schema_says_why(schema, text, problem):
    with pytest.raises(InvalidValueError, match=problem):
        JsonSchema(schema).value(text)


def test_a_value_that_python_cannot_hold_is_none():
    assert JsonSchema(True).value("9" * 5000) is None
    assert JsonSchema(True).value("[" * 5000 + "]" * 5000) is None
    assert JsonSchema(True).value("[1]") == [1]


@pytest.mark.parametrize(
    "spec",
    [
        JsonSchema({"type": "object", "properties": {"a": {"type": "string"}}}),
        Grammar('root ::= root "a" | "c" root? "d"?'),
    ],
    ids=["a schema", "left recursion"],
)
def test_a_grammar_is_freed_with_its_last_user(vocabulary, spec):
    """At once: no collector has to look for its states, which lead to each other in circles."""
    terminals = []

    def used() -> None:
        compiler = Compiler(vocabulary)
        compiled = compiler.compile(spec)
        Warmup(compiled).go_on(5000)
        terminals.append(compiler._terminals)
        assert kept() > before

    def kept() -> int:
        return sum(type(each) in (State, StackNode, Scanner) for each in gc.get_objects())

    gc.collect()
    gc.disable()
    try:
        before = kept()
        used()
        shared = 2  # the scanners of any text and of lines, which stay with the terminals
        assert kept() == before + shared
        assert len(terminals[0]._tokens) == shared
    finally:
        gc.enable()
