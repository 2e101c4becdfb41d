"""Token automata against the matcher, and what is too large for one."""

import gc
import weakref

import numpy as np
import pytest
import torch
from masked import tokens_in

from dlm.class_table import ClassTable
from dlm.grammar import (
    Automata,
    Choice,
    Compiler,
    DeadEndError,
    Grammar,
    JsonObject,
    JsonSchema,
    LimitError,
    Matcher,
    Regex,
    Tools,
    Unfinished,
    Vocabulary,
)
from dlm.grammar.exact import construction
from dlm.grammar.exact.automaton import END, NOWHERE, REFUSED, START
from dlm.grammar.exact.construction import token_automaton
from dlm.link import Link

FLAT = {
    "type": "object",
    "properties": {
        "color": {"enum": ["red", "dark red", "blue"]},
        "zip": {"type": "string", "maxLength": 5},
        "paid": {"type": "boolean"},
        "note": {"type": "string"},
    },
    "required": ["color", "paid", "note"],
    "additionalProperties": False,
}
TOOL = {
    "type": "function",
    "function": {
        "name": "wake",
        "parameters": {
            "type": "object",
            "properties": {"who": {"enum": ["Ann", "Bo"]}},
            "required": ["who"],
            "additionalProperties": False,
        },
    },
}
SPECS = {
    "choice": Choice(["mage", "warrior", "heal", "healer", "a label of many words"]),
    "regex": Regex("[A-Z]{2}-[0-9]{1,3}|é+"),
    "schema": JsonSchema(FLAT),
    "date": JsonSchema({"type": "string", "format": "date"}),
    "grammar": Grammar('start: "a" ("b" | "c")* "!"?', "lark"),
}


@pytest.mark.parametrize("name", SPECS)
def test_it_takes_the_tokens_that_the_matcher_takes_wherever_a_text_leads(
    name, compiler, vocabulary
):
    compiled, rng = compiler.compile(SPECS[name]), np.random.default_rng(0)
    automaton = token_automaton(compiled)
    of, size, ended = automaton.classes.numpy(), len(vocabulary), 0
    for _ in range(30):
        matcher, state = Matcher(compiled), START
        for _ in range(50):
            allowed = np.flatnonzero(automaton.to[state, of] != NOWHERE)
            assert set(allowed.tolist()) == tokens_in(matcher.allowed(), size)
            completion = matcher.shortest_completion()
            assert automaton.distance[state] <= len(completion) + 1
            behind = automaton.distance[automaton.to[state, of[allowed]]]
            closer = allowed[behind < automaton.distance[state]]
            token = int(rng.choice(closer if rng.random() < 0.6 else allowed))
            assert matcher.accept(token)
            state = automaton.after(state, token)
            assert matcher.ended == (state == END)
            if matcher.ended:
                ended += 1
                break
    assert ended > 5
    assert (automaton.to[:, REFUSED] == NOWHERE).all()


def test_tokens_that_always_lead_to_the_same_state_are_one_class(compiler):
    automaton = token_automaton(compiler.compile(JsonSchema(FLAT)))
    columns = automaton.to[:, 1 : automaton.tail].T
    assert len(np.unique(columns, axis=0)) == len(columns)
    assert set(automaton.classes.tolist()) == set(range(automaton.tail))


def test_no_state_is_a_dead_end(compiler):
    for spec in SPECS.values():
        automaton = token_automaton(compiler.compile(spec))
        assert (automaton.distance >= 0).all()
        assert automaton.distance[END] == 0


def test_control_tokens_that_rules_name_are_tokens_of_it(compiler, vocabulary):
    spec = Tools([TOOL], choice="required", parallel=False)
    automaton = token_automaton(compiler.compile(spec))
    state = START
    open_, close, quote = (getattr(vocabulary.call, name) for name in ("open", "close", "quote"))
    text = [*vocabulary.encode("call:wake{who:"), quote, *vocabulary.encode("Bo"), quote]
    for token in [open_, *text, *vocabulary.encode("}"), close, vocabulary.stops[0]]:
        state = automaton.after(state, token)
    assert state == END
    assert automaton.after(START, close) == NOWHERE


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        (Grammar('start: "(" start ")" | "x"', "lark"), "over 100 states"),
        (JsonObject(), "keys that a schema does not name"),
        (JsonSchema({"type": "string", "maxLength": 32_767}), "over 100 states"),
    ],
)
def test_what_is_too_large_is_refused_with_the_reason(spec, reason, compiler):
    with pytest.raises(LimitError, match=reason):
        token_automaton(compiler.compile(spec), most_states=100)


def test_so_is_what_has_too_many_classes_or_takes_too_much_work(compiler, monkeypatch):
    compiled = compiler.compile(Regex("(?:ab|cd|ef){3,9}"))
    monkeypatch.setattr(construction, "_MOST_CELLS", 50)
    with pytest.raises(LimitError, match="classes of tokens"):
        token_automaton(compiled)
    monkeypatch.undo()
    monkeypatch.setattr(construction, "_MOST_WORK", 5)
    with pytest.raises(LimitError, match="over 5 units of work"):
        token_automaton(compiled)
    assert compiled.meter.spend(1 << 30) is None  # whoever looks next has no limit


def test_a_grammar_that_no_tokens_spell_is_a_dead_end():
    vocabulary = Vocabulary(
        [b"", b"", b"a"], control=(), stops=[1], pad=0, thought=None, encode=list
    )
    with pytest.raises(DeadEndError, match="written in this vocabulary"):
        token_automaton(Compiler(vocabulary).compile(Regex("ab")))


def test_an_automaton_is_made_or_refused_once_and_forgotten_with_its_grammar(
    vocabulary, monkeypatch
):
    automata, made = Automata(), []

    class Counted(construction._Builder):
        def __init__(self, *args):
            made.append(1)
            super().__init__(*args)

    monkeypatch.setattr(construction, "_Builder", Counted)
    compiler = Compiler(vocabulary)
    for spec, refused in ((Choice(["a", "b"]), False), (JsonObject(), True)):
        compiled = compiler.compile(spec)
        for _ in range(3):
            if refused:
                with pytest.raises(LimitError, match="does not name"):
                    automata.of(compiled)
            else:
                assert automata.of(compiled) is automata.of(compiled)
    assert len(made) == 2
    kept = weakref.ref(compiled)
    compiler.close()
    del compiler, compiled
    gc.collect()
    assert kept() is None


@pytest.mark.parametrize("name", ["schema", "date"])
def test_made_in_small_parts_it_is_what_it_is_made_at_once(name, vocabulary):
    whole = token_automaton(Compiler(vocabulary).compile(SPECS[name]))
    automata, compiled, parts = Automata(), Compiler(vocabulary).compile(SPECS[name]), 0
    while True:
        automata.begin(20)
        try:
            found = automata.of(compiled)
            break
        except Unfinished:
            parts += 1
            automata.begin(0)
            with pytest.raises(Unfinished):  # nothing is left: it does nothing
                automata.of(compiled)
    assert parts > 5
    assert torch.equal(found.classes, whole.classes)
    assert np.array_equal(found.to, whole.to)
    assert np.array_equal(found.distance, whole.distance)


def test_two_that_are_made_share_what_may_be_spent(vocabulary):
    """The one that is asked about first does not keep the other waiting until it is made."""
    automata, compiler = Automata(), Compiler(vocabulary)
    large, small = compiler.compile(SPECS["date"]), compiler.compile(Choice(["a", "b"]))
    for _ in range(20):
        automata.begin(100)
        with pytest.raises(Unfinished):
            automata.of(large)
        try:
            automata.of(small)
            break
        except Unfinished:
            pass
    else:
        raise AssertionError("the small one is never made")


def test_what_nobody_waits_for_any_more_is_forgotten(vocabulary):
    automata, compiler = Automata(), Compiler(vocabulary)
    compiled = compiler.compile(SPECS["date"])
    automata.begin(100)
    with pytest.raises(Unfinished):
        automata.of(compiled)
    kept = weakref.ref(compiled)
    compiler.close()
    del compiler, compiled
    gc.collect()
    assert kept() is None


@pytest.mark.parametrize("name", ["schema", "date"])
def test_it_takes_what_it_says(name, vocabulary):
    found = token_automaton(Compiler(vocabulary).compile(SPECS[name]))
    placed = ClassTable().place(found.classes, Link(torch.device("cpu")))
    held = [found.classes, found.to, found.distance, *vars(found.transitions).values()]
    held += [placed.of, *placed.members]
    assert sum(each.nbytes for each in held) <= found.nbytes <= 4 * sum(e.nbytes for e in held)


def test_automata_count_where_memory_is_bounded(vocabulary):
    automata, compiler = Automata(), Compiler(vocabulary)
    compiled = compiler.compile(SPECS["date"])
    before = compiled.nbytes
    automata.begin(100)
    with pytest.raises(Unfinished):
        automata.of(compiled)
    assert compiled.nbytes > before
    automata.begin()
    found = automata.of(compiled)
    assert compiled.nbytes >= before + found.nbytes
    small = Compiler(vocabulary, max_bytes=compiled.nbytes)  # grammars alone would fit
    first = small.compile(SPECS["date"])
    automata.of(first)
    for i in range(16):  # uses after which all are measured again
        small.compile(Choice([str(i), "b"]))
    assert small.compile(SPECS["date"]) is not first
