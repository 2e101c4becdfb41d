"""Patterns that no automaton can express: refused with their place, or left to the check."""

import json
import logging
import re
import time
from typing import Any

import pytest
from readers import misread
from recogniser import Recogniser

from dlm.grammar import InvalidGrammarError, InvalidValueError, JsonSchema, Tools
from dlm.grammar.limits import Meter
from dlm.grammar.parse import Network, Parser, scanner_of
from dlm.grammar.regex import bounded
from dlm.grammar.specs import json_schema as spec_module

LAX: list[tuple[str, str, str, list[str], list[str]]] = [
    ("a reference", r"^(['\"]).*\1$", "a reference to a group", ["'a'", '"b"'], ["'a\"", "a"]),
    ("by name", r"^(?<q>[ab])c\k<q>$", "a reference to a group", ["aca", "bcb"], ["acb"]),
    ("another start", r"\A\d+\Z", r"`\\A` is not known in ECMAScript", ["12"], ["a1", "1a", "1\n"]),
    ("another end", r"^\d+\z", r"`\\z` is not known in ECMAScript", ["12"], ["12a"]),
    ("assertions", r"^(?=.*a.{14}$)\w+$", "too large", ["a" * 16], ["b" * 16]),
    ("possessive", "^a++b$", "possessive", ["aab"], ["ab\n", "b"]),
    ("atomic", "^(?>a|ab)c$", "an atomic group", ["ac"], ["abc"]),
    ("a condition", "^(a)?(?(1)b|c)$", "a condition", ["ab", "c"], ["ac", "b"]),
    ("a comment", "^a(?#first)b$", "a comment", ["ab"], ["a"]),
    ("a word's edge behind", r"(?<=a\b) b$", "within a lookbehind", ["a b"], ["ab b"[1:]]),
    ("classes of POSIX", "^[[:alpha:]]+$", "not known in ECMAScript", ["ab"], ["a1"]),
]


@pytest.mark.parametrize(("name", "pattern", "why", "good", "bad"), LAX)
def test_a_pattern_without_an_automaton_is_left_to_the_check(
    name: str, pattern: str, why: str, good: list[str], bad: list[str]
):
    schema = {"type": "object", "properties": {"v": {"type": "string", "pattern": pattern}}}
    spec = JsonSchema(schema, unenforced="check")
    assert spec.checked
    rules = spec.rules(None)
    assert [where for where, _ in rules.inexact] == ["/properties/v/pattern"]
    for text in good + bad:
        assert Recogniser(rules).accepts(json.dumps({"v": text}))
    for text in good:
        assert spec.value(json.dumps({"v": text})) == {"v": text}
    for text in bad:
        with pytest.raises(InvalidValueError, match="does not match"):
            spec.value(json.dumps({"v": text}))


@pytest.mark.parametrize(("name", "pattern", "why", "good", "bad"), LAX)
def test_a_refusal_names_the_place_the_keyword_the_reason_and_the_way_out(
    name: str, pattern: str, why: str, good: list[str], bad: list[str]
):
    with pytest.raises(InvalidGrammarError, match=why) as caught:
        JsonSchema({"items": {"properties": {"v": {"pattern": pattern}}}}).rules(None)
    assert caught.value.where == "/items/properties/v/pattern"
    assert re.search('leave it out, or .*unenforced="check"', str(caught.value))


URL = r"^https?://(www\.)?[-a-z0-9@:%._+~#=]{1,999}\.[a-z0-9()]{1,63}\b([-a-z0-9()@:%_+.~#?&/=]*)$"
PIECES: list[tuple[str, list[str], list[str]]] = [
    (r"^(\w{1,100}\s){1,100}$", ["a b ", "a" * 100 + " "], ["", "a b", "a" * 101 + " "]),
    ("(a|b)*a(a|b){13}c", ["a" * 14 + "c", "xb" + "ab" * 7 + "cx"], ["abc", "b" * 14 + "c"]),
    (URL, ["https://a.b", "http://www.a.b.c/d?e"], ["https://a", "https://.b", "ftp://a.b"]),
    (r"^[a.]{1,300}\.[a.]{1,300}$", ["a.a", "...", "a" * 300 + "." + "a" * 300], ["aa", "..a"[1:]]),
    (r"^.{2,300}:.{2,300}$", ["ab:cd", ":::::", 'é"\\:\t😀'], ["a:bc", "abc", "ab:c"]),
    (r"^[a.]{1,256}\.[a]{1,6}\b.*$", ["a.a", "a.a-b", "..a."], ["a.", "a.aaaaaaa", "a-.a"]),
    (r"^([^,]{1,200},){1,300}[^,]{1,200}$", ["a,b", "a b,c,d"], ["a", "a,", ",a"]),
]


@pytest.mark.parametrize(("pattern", "good", "bad"), PIECES)
def test_a_pattern_whose_automaton_is_too_large_is_enforced_in_pieces(
    pattern: str, good: list[str], bad: list[str]
):
    with pytest.raises(InvalidGrammarError, match="too large"):
        bounded(pattern, whole=False)
    text = {"type": "string", "pattern": pattern}
    spec = JsonSchema({"type": "object", "properties": {"v": text}, "required": ["v"]})
    assert not spec.checked
    accepts = Recogniser(spec.rules(None)).accepts
    right, wrong = ([json.dumps({"v": each}) for each in some] for some in (good, bad))
    assert misread(accepts, right, wrong) == []
    assert accepts(json.dumps({"v": good[0]}).replace("a", r"\u0061"))
    for value in right:
        assert spec.value(value) == json.loads(value)
    for value in wrong:
        with pytest.raises(InvalidValueError, match="does not match"):
            spec.value(value)
    listed = Recogniser(JsonSchema(text | {"enum": [*good, *bad]}).rules(None)).accepts
    assert (
        misread(
            listed, *([json.dumps(v, ensure_ascii=False) for v in some] for some in (good, bad))
        )
        == []
    )
    in_a_call = {"name": "f", "parameters": {"type": "object", "properties": {"v": text}}}
    assert not Tools([{"type": "function", "function": in_a_call}]).checked


ROUNDS = r"^(\w{1,100}\s){1,100}$"


@pytest.mark.parametrize(
    ("more", "beside"),
    [
        ({"minLength": 500}, "minLength 500"),
        ({"minLength": 20, "maxLength": 300}, "minLength 20 and maxLength 300"),
        ({"not": {"const": "a "}}, "not"),
        ({"format": "uri", "allOf": [{"pattern": "b"}]}, "format and pattern"),
        ({"allOf": [{"pattern": r"^[a.]{1,300}\.[a.]{1,300}$"}]}, "pattern"),
    ],
)
def test_pieces_beside_conditions_that_take_too_many_are_left_to_the_check(more: Any, beside: str):
    schema = {"type": "string", "pattern": ROUNDS, **more}
    reason = f"too large: .* and it cannot be written in pieces beside {beside}\\."
    with pytest.raises(InvalidGrammarError, match=reason) as caught:
        JsonSchema(schema).rules(None)
    assert caught.value.where in ("/pattern", "/allOf/0/pattern")
    assert JsonSchema(schema, unenforced="check").rules(None).inexact


TWO = r"^[a.]{1,300}\.[a.]{1,300}$"
BESIDE: list[tuple[str, dict[str, Any], list[str], list[str]]] = [
    (TWO, {"minLength": 9}, ["a.aaaaaaa", "aaaaaaa.a", "........."], ["aaaa.aaa", "aaaaaaaaa"]),
    (
        TWO,
        {"minLength": 9, "maxLength": 400},
        ["a.aaaaaaa", "a" * 150 + "." + "a" * 150],
        ["aaaa.aaa", "a" * 200 + "." + "a" * 200],
    ),
    (TWO, {"not": {"const": "a.a"}}, ["a..", "a.aa", "aa.a"], ["a.a", "aa"]),
    (TWO, {"not": {"enum": ["a.a", "..."]}, "minLength": 4}, ["a.aa", "...."], ["a.a", "..."]),
    (TWO, {"allOf": [{"pattern": r"^a*\.a*$"}]}, ["aa.a", "a.aaa"], ["aa..", "..."]),
    (TWO, {"not": {"pattern": "aa"}}, ["a.a", "a..a.a"], ["aa.a", "a.aa"]),
    (URL, {"format": "uri"}, ["https://a.b", "http://www.a.b/c?d"], ["https://a#b#.c", "ftp://a"]),
    (URL, {"format": "uri", "maxLength": 40}, ["https://a.b"], ["https://a.b/" + "c" * 30]),
    (URL, {"minLength": 20}, ["https://a.b/" + "c" * 8], ["https://a.b/" + "c" * 7]),
    (ROUNDS, {"maxLength": 9, "not": {"const": "a "}}, ["ab ", "a b c "], ["a ", "abcdefghij "]),
]


@pytest.mark.parametrize(("pattern", "more", "good", "bad"), BESIDE)
def test_pieces_are_enforced_beside_other_conditions(
    pattern: str, more: Any, good: list[str], bad: list[str]
):
    spec = JsonSchema({"type": "string", "pattern": pattern, **more})
    assert not spec.checked
    accepts = Recogniser(spec.rules(None)).accepts
    assert misread(accepts, [json.dumps(v) for v in good], [json.dumps(v) for v in bad]) == []
    for text in good:
        assert spec.value(json.dumps(text)) == text
    for text in bad:
        with pytest.raises(InvalidValueError):
            spec.value(json.dumps(text))


@pytest.mark.parametrize(
    "more", [{"format": "date"}, {"maxLength": 2}, {"allOf": [{"pattern": "b"}]}]
)
def test_pieces_that_nothing_fits_beside_another_condition_are_refused_with_both(more: Any):
    with pytest.raises(InvalidGrammarError, match="no finite value fits: no string fits all of"):
        JsonSchema({"type": "string", "pattern": TWO, **more}).rules(None)


@pytest.mark.parametrize("more", [{"minLength": 3}, {"maxLength": 601}, {"maxLength": 700}])
def test_pieces_that_have_the_right_lengths_anyway_are_enforced(more: Any):
    schema = {"type": "string", "pattern": r"^[a.]{1,300}\.[a.]{1,300}$", **more}
    accepts = Recogniser(JsonSchema(schema).rules(None)).accepts
    assert misread(accepts, ['"a.a"'], ['"aa"', '"a."']) == []


ADDRESS = r"^[a-z0-9._%+-]{1,64}@[a-z0-9.-]{1,253}\.[a-z]{2,63}$"
BOUNDED: list[tuple[str, dict[str, int], list[str], list[str]]] = [
    (
        r"^[a.]{1,300}\.[a.]{1,300}$",
        {"minLength": 3, "maxLength": 50},
        ["a.a", "." * 9, "a" * 24 + "." + "a" * 24],
        ["a" * 9, "a" * 25 + "." + "a" * 25, "a" * 49 + ".a"],
    ),
    (
        ADDRESS,
        {"maxLength": 254},
        ["a@b.de", "a" * 64 + "@" + "b" * 100 + ".com"],
        ["a@b.c", "a" * 65 + "@b.de", "a@" + "b" * 250 + ".de"],
    ),
    (r"^.{2,300}:.{2,300}$", {"maxLength": 7}, ["ab:cd", "abc:def"], ["a:bc", "abcd:efg"]),
    (r"(a|b)*a(a|b){13}c", {"maxLength": 20}, ["a" * 14 + "c"], ["a" * 14 + "c" + "x" * 9, "abc"]),
    (ROUNDS, {"maxLength": 50}, ["a " * 25, "a" * 49 + " "], ["a " * 26, "a" * 50 + " ", "a"]),
    (ROUNDS, {"maxLength": 500}, ["a " * 100, "ab cdef " * 30, "a" * 100 + " "],
     ["a " * 101, "abc def " * 63, "a" * 101 + " "]),
]  # fmt: skip


@pytest.mark.parametrize(("pattern", "bounds", "good", "bad"), BOUNDED)
def test_pieces_are_narrowed_to_the_lengths_of_a_schema(
    pattern: str, bounds: dict[str, int], good: list[str], bad: list[str]
):
    spec = JsonSchema({"type": "string", "pattern": pattern, **bounds})
    assert not spec.checked
    accepts = Recogniser(spec.rules(None)).accepts
    assert misread(accepts, [json.dumps(v) for v in good], [json.dumps(v) for v in bad]) == []


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "not": {"pattern": r"^[a.]{1,300}\.[a.]{1,300}$"}},
        {"propertyNames": {"pattern": r"^[a.]{1,300}\.[a.]{1,300}$"}},
        {"patternProperties": {r"^[a.]{1,300}\.[a.]{1,300}$": {"type": "null"}}},
    ],
)
def test_pieces_of_other_keywords_are_left_to_the_check(schema: Any):
    with pytest.raises(InvalidGrammarError):
        JsonSchema(schema).rules(None)
    assert JsonSchema(schema, unenforced="check").rules(None).inexact


@pytest.mark.parametrize("pattern", ["(", "[a", "a)", "a{3,2}", "*a", r"\p{Nothing}", "a\\"])
@pytest.mark.parametrize("unenforced", ["refuse", "check"])
def test_a_malformed_pattern_is_refused_whether_or_not_it_would_be_checked(
    pattern: str, unenforced: Any
):
    with pytest.raises(InvalidGrammarError) as caught:
        JsonSchema({"properties": {"v": {"pattern": pattern}}}, unenforced=unenforced)
    assert caught.value.where == "/properties/v/pattern"


def test_a_key_of_a_pattern_without_an_automaton_may_have_any_value_until_the_check():
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer"}},
        "patternProperties": {r"^(.)\1$": {"type": "null"}, "^c": {"type": "boolean"}},
        "additionalProperties": False,
    }
    with pytest.raises(InvalidGrammarError) as caught:
        JsonSchema(schema)
    assert caught.value.where == r"/patternProperties/^(.)\1$"
    spec = JsonSchema(schema, unenforced="check")
    good = ['{"n": 1, "c": true, "aa": null}', '{"aa": null}']
    bad = ['{"aa": 1}', '{"ab": null}']
    accepts = Recogniser(spec.rules(None)).accepts
    assert misread(accepts, good + bad, ['{"c": 1}', '{"n": null}']) == []
    for text in good:
        assert spec.value(text) == json.loads(text)
    for text in bad:
        with pytest.raises(InvalidValueError):
            spec.value(text)


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"type": "string", "not": {"pattern": r"^(.)\1$"}}, "ab", "aa"),
        ({"not": {"patternProperties": {r"^(.)\1$": {"type": "null"}}}}, {"aa": 1}, {"ab": 1}),
        ({"propertyNames": {"pattern": r"^(.)\1$"}}, {"aa": 1}, {"ab": 1}),
        ({"oneOf": [{"type": "string", "pattern": r"^(.)\1$"}, {"type": "string"}]}, "ab", "aa"),
        ({"patternProperties": {r"^(.)\1$": {"type": "null"}}, "unevaluatedProperties": False},
         {"aa": None}, {"ab": None}),
    ],
)  # fmt: skip
def test_a_pattern_without_an_automaton_may_occur_in_any_keyword(schema: Any, good: Any, bad: Any):
    spec = JsonSchema(schema, unenforced="check")
    recogniser = Recogniser(spec.rules(None))
    for value in (good, bad):
        assert recogniser.accepts(json.dumps(value))
    assert spec.value(json.dumps(good)) == good
    with pytest.raises(InvalidValueError):
        spec.value(json.dumps(bad))


def test_a_check_that_takes_too_long_accepts_the_value_and_is_logged(caplog: Any):
    spec = JsonSchema({"items": {"pattern": r"^(a|aa)+\1$"}}, unenforced="check")
    text = json.dumps(["a" * 60 + "b"] * 50)
    begin = time.process_time()
    with caplog.at_level(logging.WARNING):
        assert spec.value(text) == json.loads(text)
    assert time.process_time() - begin < 5
    assert "takes too long" in caplog.text


def test_a_bug_of_the_check_is_logged(caplog: Any, monkeypatch: pytest.MonkeyPatch):
    from dlm.grammar.schema import evaluate as module

    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("ours")

    spec = JsonSchema({"type": "integer"})
    monkeypatch.setattr(module, "Backtracking", broken)
    with caplog.at_level(logging.ERROR):
        assert spec.value("1") == 1  # its rules are exact
    assert "ZeroDivisionError: ours" in caplog.text


def test_the_rules_of_a_schema_are_written_once(monkeypatch: pytest.MonkeyPatch):
    calls, write = [], spec_module.write
    monkeypatch.setattr(spec_module, "write", lambda *a, **k: calls.append(1) or write(*a, **k))
    for unenforced in ("refuse", "check"):
        calls.clear()
        spec = JsonSchema({"properties": {"a": {"pattern": "^x"}}}, unenforced=unenforced)
        rules = spec.rules(None)
        assert not spec.checked
        assert len(calls) == 1
        again = spec.rules(None)  # the caller may have changed the first ones
        assert again is not rules
        assert again.nodes.keys() == rules.nodes.keys()


@pytest.mark.parametrize(("count", "written"), [(100, [1, 1]), (400, [0, 1])])
def test_the_rules_of_a_large_schema_are_left_to_the_call_of_rules(
    monkeypatch: pytest.MonkeyPatch, count: int, written: list[int]
):
    calls, write = [], spec_module.write
    monkeypatch.setattr(spec_module, "write", lambda *a, **k: calls.append(1) or write(*a, **k))
    spec = JsonSchema({"enum": [*range(count)]})
    before = len(calls)
    spec.rules(None)
    assert [before, len(calls)] == written


@pytest.mark.parametrize(("pattern", "most"), [(r"^.{2,300}:.{2,300}$", 12), (URL, 12)])
def test_a_count_over_what_follows_takes_few_threads_of_the_parser(pattern: str, most: int):
    rules = JsonSchema({"type": "string", "pattern": pattern}).rules(None)
    parser = Parser(Network(rules), scanner_of, Meter())
    state: Any = parser.start
    for byte in b'"https://' + b"a.b:" * 50:
        state = parser.after_byte(state, byte)
        assert len(state.threads) <= most
