"""The grammar backend: constraints as SGLang hands them over, and the errors of clients."""

import json

import pytest
from conftest import TINY
from sglang.srt.constrained.base_grammar_backend import InvalidGrammarObject
from transformers import AutoTokenizer

from dlm.grammar import Vocabulary
from dlm.integrations.sglang import backend
from dlm.integrations.sglang.backend import BoundGrammar, DiffusionGrammarBackend


@pytest.fixture(scope="module")
def compiling():
    size = json.loads((TINY / "config.json").read_text())["text_config"]["vocab_size"]
    tokenizer = AutoTokenizer.from_pretrained(TINY)
    return DiffusionGrammarBackend(Vocabulary.from_tokenizer(tokenizer, size, [1], 0), None)


TAG = {"type": "structural_tag", "format": {"type": "const_string", "value": "x"}}
OLDER = {"structures": [{"begin": "<f>", "schema": {}, "end": "</f>"}], "triggers": ["<f>"]}


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        ("json", '{"type": "integer"}'),
        ("json", "$$ANY$$"),
        ("regex", "a+"),
        ("ebnf", 'root ::= "a"'),
        ("full_assistant_ebnf", 'root ::= "a"'),
        ("structural_tag", json.dumps(TAG)),
        ("structural_tag", json.dumps(OLDER)),
    ],
)
def test_each_kind_is_compiled_once_and_copied_for_each_request(compiling, kind, source):
    future, cached = compiling.get_cached_or_future_value((kind, source), False)
    assert not cached
    grammar = future.result()
    assert isinstance(grammar, BoundGrammar)
    compiling.set_cache((kind, source), grammar.copy())
    copies = [compiling.get_cached_or_future_value((kind, source), False) for _ in range(2)]
    assert [cached for _, cached in copies] == [True, True]
    assert copies[0][0] is not copies[1][0]
    assert not copies[0][0].bound


@pytest.mark.parametrize(
    ("kind", "source", "problem"),
    [
        ("json", "{", "JSON"),
        ("json", '{"$ref": "#/nowhere"}', "#/nowhere"),
        ("json", '{"type": "string", "pattern": "^(a|b)\\\\1$"}', "cannot"),
        ("json", '{"items":' * 80 + "{}" + "}" * 80, "64"),
        ("regex", "(", ""),
        ("ebnf", "root ::= missing", "missing"),
        ("structural_tag", '{"structures": [{}], "triggers": []}', ""),
        ("structural_tag", "7", ""),
    ],
)
def test_what_does_not_compile_is_the_client_s_error_and_is_not_kept(
    compiling, kind, source, problem
):
    future, _ = compiling.get_cached_or_future_value((kind, source), False)
    grammar = future.result()
    assert isinstance(grammar, InvalidGrammarObject)
    assert problem in grammar.error_message
    compiling.set_cache((kind, source), grammar)
    assert (kind, source) not in compiling.cache


def test_the_constraint_that_is_unused_for_longest_is_dropped(compiling, monkeypatch):
    monkeypatch.setattr(backend, "_KEPT", 2)
    compiling.reset()
    grammar = compiling.dispatch_regex("a")
    for key in ("first", "second"):
        compiling.set_cache(("regex", key), grammar)
    compiling.get_cached_or_future_value(("regex", "first"), False)
    compiling.set_cache(("regex", "third"), grammar)
    assert [key for _, key in compiling.cache] == ["first", "third"]
