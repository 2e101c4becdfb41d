"""Compiled grammars: shared tasks, memory, and specs of every size."""

import gc
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st
from waiting import PATIENCE

from dlm.grammar import (
    Choice,
    Compiler,
    CrashError,
    Grammar,
    InvalidGrammarError,
    JsonSchema,
    LeftToRight,
    Matcher,
    Task,
)
from dlm.grammar.canvas import Warmup
from dlm.grammar.parse import Scanner, StackNode, State


def accepts(compiler, spec, text):
    matcher = Matcher(compiler.compile(spec))
    tokens = [*compiler.vocabulary.encode(text), compiler.vocabulary.stops[0]]
    return matcher.accept_all(tokens) == len(tokens)


class StubWorkers:
    """Workers that return the given tasks, and then tasks that never end."""

    def __init__(self, *tasks):
        self.prepared, self.submitted = [*tasks], []

    def submit(self, *_, **__):
        self.submitted.append(self.prepared.pop(0) if self.prepared else Task())
        return self.submitted[-1]


def test_a_caller_that_stops_waiting_for_a_grammar_cancels_no_other_grammar(vocabulary):
    workers = StubWorkers()
    compiler = Compiler(vocabulary, workers=workers)
    first, second = Choice(["a"]), Choice(["b"])
    compiler.submit(first).cancel()
    compiler.submit(second)
    assert not compiler.submit(first).cancelled()
    assert len(workers.submitted) == 3


def test_a_task_that_is_given_up_while_a_caller_joins_it_is_submitted_anew(vocabulary):
    class GivenUp(Task):
        def join(self) -> bool:
            joined = super().join()
            self.set_exception(CrashError("no request waits for it any more"))
            return joined and self.done()

    workers = StubWorkers(GivenUp())
    compiler, spec = Compiler(vocabulary, workers=workers), Choice(["given", "up"])
    first = compiler.submit(spec)
    assert compiler.submit(spec) is not first
    assert len(workers.submitted) == 2


def test_a_grammar_whose_task_was_left_can_be_compiled_in_this_thread(vocabulary):
    compiler, spec = Compiler(vocabulary, workers=StubWorkers()), Choice(["here", "now"])
    task = compiler.submit(spec)
    task.leave()
    assert task.cancelled()
    assert compiler.compile(spec).vocabulary is vocabulary
    assert compiler.submit(spec).result(0) is compiler.compile(spec)


def test_a_grammar_whose_task_was_left_is_compiled_when_it_is_submitted_again(compiler):
    spec = Choice(["left", "submitted"])
    held = compiler.submit(JsonSchema({"enum": list(range(3000))}))  # it is compiled first
    once, twice = compiler.submit(spec), compiler.submit(spec)
    assert once is twice
    once.leave()
    twice.leave()
    assert compiler.submit(spec).result(PATIENCE).vocabulary is compiler.vocabulary
    held.result(PATIENCE)


def test_a_grammar_can_be_sent_to_another_process_and_equal_bytes_share_one(compiler, vocabulary):
    packed = compiler.compile(Choice(["left", "right"])).packed
    other = Compiler(vocabulary)
    compiled = other.unpack(packed)
    assert other.unpack(bytes(packed)) is compiled
    for text, taken in (("left", True), ("lefty", False)):
        tokens = [*vocabulary.encode(text), vocabulary.stops[0]]
        assert (Matcher(compiled).accept_all(tokens) == len(tokens)) is taken


def test_dropped_grammars_are_freed_before_their_warm_up(vocabulary):
    compiler = Compiler(vocabulary, max_bytes=1)
    found = [weakref.ref(compiler.compile(Choice([f"{i}a", f"{i}b"]))) for i in range(20)]
    gc.collect()
    assert sum(one() is not None for one in found) < 4
    assert compiler.cold
    compiler.warm_up(1000)


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
def test_a_string_contains_no_raw_control_character(compiler, schema, character):
    """RFC 8259 requires escapes for them."""
    raw = f'"a{chr(character)}b"'
    for text in (raw, f"{{{raw}: 1}}", f"[{raw}]"):
        assert not accepts(compiler, JsonSchema(schema), text)


@pytest.mark.parametrize("text", ['"aé€😀x"', '"12345"', '""'])
def test_a_string_with_a_length_counts_characters(compiler, text):
    spec = JsonSchema({"type": "string", "maxLength": 5})
    assert accepts(compiler, spec, text)
    assert not accepts(compiler, spec, '"123456"')


def test_compiling_a_schema_that_no_value_fits_raises_the_reason(compiler):
    with pytest.raises(InvalidGrammarError, match="no finite value fits"):
        compiler.compile(JsonSchema(False))


def test_rules_of_thousands_of_optional_parts_compile(compiler):
    spec = Grammar("root ::= " + "x? " * 3000 + '\nx ::= "(" x? ")" | "[" x x "]"')
    assert accepts(compiler, spec, "()[()(())]")
    assert not accepts(compiler, spec, "([()])")


def test_a_length_may_exceed_a_machine_integer(compiler):
    spec = JsonSchema({"anyOf": [{"type": "string", "minLength": 10**20}, {"type": "integer"}]})
    assert LeftToRight(compiler.compile(spec), 30).look(exact=True) is not None
    assert accepts(compiler, spec, "12")


def test_a_stop_may_follow_a_number_but_not_its_decimal_point(compiler, vocabulary):
    matcher = Matcher(compiler.compile(JsonSchema({"type": "number"})))
    for text, ends in (("1", True), (".", False), ("5", True)):
        assert matcher.accept_all(vocabulary.encode(text)) == 1
        words = matcher.allowed()
        assert {bool(words[s // 32] >> (s % 32) & 1) for s in vocabulary.stops} == {ends}


@pytest.mark.parametrize(
    "spec",
    [
        JsonSchema({"type": "object", "properties": {"a": {"type": "string"}}}),
        Grammar('root ::= root "a" | "c" root? "d"?'),
    ],
    ids=["a schema", "left recursion"],
)
def test_a_grammar_is_freed_with_its_last_user(vocabulary, spec):
    """Its states refer to each other in no cycles that only the garbage collector could free."""
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
