"""Made-up tools and conversations of the training, and the halves that only exams draw from."""

import itertools
import json
from functools import cache
from random import Random

import jsonschema
import pytest
from evaluation.judging import wanted
from evaluation.tasks import spec_of
from training import batches, directory, toolbox
from training.conversations import after_result, made_up_call, short_answer
from training.extraction import bare, extract
from training.toolbox import is_held_out, native, usable
from training.words import Draw, phrases_of

from dlm.engine import BUILT_IN
from dlm.grammar import Compiler, Matcher, Vocabulary

MAKERS = (made_up_call, after_result, short_answer)
SPLITS = ("train", "heldout")


@cache
def drawn(make, split, count=150):
    return [make(Random(seed), split) for seed in range(count)]


@cache
def tokenizer():
    return batches.tokenizer_of(BUILT_IN)


@pytest.fixture(scope="module")
def compiler():
    return Compiler(Vocabulary.from_tokenizer(tokenizer(), 1536, directory.STOPS, 0))


def functions(split):
    tools = (t["function"] for make in MAKERS for item in drawn(make, split) for t in item.tools)
    return list(tools)


def keys_of(schema):
    """Return every key that a schema names, also in nested objects and in rows."""
    inner = schema.get("properties", {})
    found = set(inner)
    for part in inner.values():
        found |= keys_of(part) | keys_of(part.get("items", {}))
    return found


def spelled(names):
    """Return the words of names, equal for names that differ only in their style."""
    return {toolbox.words(name) for name in names}


def test_no_tool_or_parameter_of_an_exam_is_in_training():
    train, heldout = ({f["name"] for f in functions(split)} for split in SPLITS)
    assert min(len(train), len(heldout)) > 150
    assert not spelled(train) & spelled(heldout)
    train, heldout = (
        {key for f in functions(split) for key in keys_of(f["parameters"])} for split in SPLITS
    )
    assert min(len(train), len(heldout)) > 80
    assert not spelled(train) & spelled(heldout)


def test_no_parameter_of_an_exam_is_a_key_that_extraction_trains_on():
    heldout = {key for f in functions("heldout") for key in keys_of(f["parameters"])}
    trained = (keys_of(extract(Random(seed), "train").schema) for seed in range(600))
    assert not spelled(heldout) & spelled(set[str]().union(*trained))


@pytest.mark.parametrize("section", ["actions", "parameters", "options", "lists", "outcomes"])
def test_names_and_phrases_of_both_halves_are_the_whole_file(section):
    halves = [usable(section, Draw(Random(0), split)) for split in SPLITS]
    names, ways = (
        [{each for entry in half for each in getattr(entry, part)} for half in halves]
        for part in ("names", "ways")
    )
    assert not names[0] & names[1]
    assert not ways[0] & ways[1]
    assert min(map(len, names)) >= 3
    assert len(names[0]) > len(names[1])


def test_no_value_of_a_call_in_an_exam_is_in_training():
    def long_strings(value):
        parts = value.values() if isinstance(value, dict) else value
        if isinstance(value, dict | list):
            return {text for part in parts for text in long_strings(part)}
        return {value} if isinstance(value, str) and len(value) > 12 else set()

    train, heldout = (
        {
            text
            for item in drawn(made_up_call, split)
            for _, arguments in (item.value if isinstance(item.value, list) else [item.value])
            for text in long_strings(arguments)
        }
        for split in SPLITS
    )
    assert min(len(train), len(heldout)) > 20
    assert not train & heldout


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("split", SPLITS)
def test_every_answer_is_accepted_by_its_own_grammar_and_ends(make, split, compiler):
    for item in drawn(make, split)[:60]:
        prompt, answer, given = batches.encode(tokenizer(), item, Random(0))
        assert len(given) == len(answer)
        assert tokenizer().decode(answer[-1]) == (
            "<|tool_response>" if item.task == "tool" else "<turn|>"
        )
        assert len(prompt) > 4
        if not item.tools:
            continue
        tokens = tokenizer()(item.answer, add_special_tokens=False)["input_ids"]
        matcher = Matcher(compiler.compile(spec_of(item, {})))
        refused = [i for i, token in enumerate(tokens) if not matcher.accept(token)]
        assert not refused, (item.answer, tokenizer().decode(tokens[: refused[0]]))
        assert matcher.accept(answer[-1])
        assert matcher.ended


@pytest.mark.parametrize("split", SPLITS)
def test_calls_mean_their_values_and_obey_their_schemas(split, compiler):
    for item in drawn(made_up_call, split):
        tokens = tokenizer()(item.answer, add_special_tokens=False)["input_ids"]
        calls = spec_of(item, {}).read(tokens, compiler.vocabulary).tool_calls
        found = [{call.name: call.arguments} for call in calls]
        assert (found if len(found) > 1 else found[0]) == wanted(item)
        schemas = {t["function"]["name"]: t["function"]["parameters"] for t in item.tools}
        for call in calls:
            jsonschema.validate(call.arguments, schemas[call.name])


@pytest.mark.parametrize("split", SPLITS)
def test_extractions_are_accepted_by_their_own_grammar(split, compiler):
    for item in drawn(extract, split, 60):
        text = item.answer.removeprefix("```json\n").removesuffix("\n```")
        matcher = Matcher(compiler.compile(spec_of(item, {})))
        tokens = tokenizer()(text, add_special_tokens=False)["input_ids"]
        assert all(map(matcher.accept, tokens)), (item.schema, text)


def test_calls_have_parameters_of_all_types_and_up_to_five_of_them():
    declared = functions("train")
    properties = [p for f in declared for p in f["parameters"]["properties"].values()]
    kinds = {p["type"] for p in properties}
    assert kinds >= {"string", "integer", "number", "boolean", "array", "object"}
    assert any("enum" in p for p in properties)
    counts = {len(f["parameters"]["properties"]) for f in declared}
    assert counts >= {1, 2, 3, 4, 5}
    described = sum("description" in f for f in declared) / len(declared)
    assert 0.2 < described < 0.6


def test_conversations_have_choices_calls_at_once_system_messages_and_history():
    items = drawn(made_up_call, "train")
    assert sum(len(item.tools) > 1 for item in items) > 40
    parallel = [item for item in items if "parallel" in item.traits]
    assert len(parallel) > 5
    assert all(item.answer.count("<|tool_call>") == 2 for item in parallel)
    roles = [[message["role"] for message in item.messages] for item in items]
    assert sum(each[0] == "system" for each in roles) > 20
    assert sum("tool" in each[:-1] for each in roles) > 3
    assert all(each[-1] == "user" for each in roles)


def test_answers_after_results_have_the_numbers_of_the_result():
    for item in drawn(after_result, "train"):
        *_, user, called, result = item.messages
        assert user == {"role": "user", "content": item.prompt}
        assert called["tool_calls"][0]["function"]["name"] == result["name"]
        assert result["role"] == "tool"
        numbers = {word.strip(".,:") for word in item.answer.split() if any(map(str.isdigit, word))}
        assert all(word in result["content"] for word in numbers), (item.answer, result)


def test_keys_in_objects_of_calls_are_given_and_others_are_not():
    nested = [item for item in drawn(made_up_call, "train") if item.unasked]
    assert len(nested) > 3
    for item in nested:
        _, answer, given = batches.encode(tokenizer(), item, Random(0))
        runs = ["".join(text) for text in _given(answer, given)]
        assert {*runs} == set(item.unasked)


def _given(answer, given):
    texts = tokenizer().convert_ids_to_tokens(answer)
    pairs = itertools.groupby(zip(given, texts, strict=True), key=lambda pair: pair[0])
    return [[text for _, text in run] for known, run in pairs if known]


def test_a_third_of_the_extractions_leave_all_keys_to_the_schema():
    items = drawn(extract, "train", 600)
    alone = [item for item in items if item.unasked >= item.value.keys() and item.unasked]
    assert 0.27 < len(alone) / len(items) < 0.4
    texts = [item for item in alone if "JSON" not in item.prompt]
    assert len(texts) > len(alone) / 3
    styles = ["_", lambda key: key != key.lower()]
    keys = {key for item in alone for key in item.unasked}
    assert any(styles[0] in key for key in keys)
    assert any(styles[1](key) for key in keys)


def test_a_bare_text_names_no_key_and_all_are_given():
    for item in drawn(bare, "unseen", 80):
        assert item.unasked >= item.value.keys()
        assert item.thought is None
        assert not item.before
        jsonschema.validate(item.value, item.schema)


def test_native_values_are_gemma_s_own():
    value = {"a": ["x", 1], "b": {"c": True}, "d": 2.5}
    assert native(value) == '{a:[<|"|>x<|"|>,1],b:{c:true},d:2.5}'


def test_topics_of_conversations_are_split_too():
    train, heldout = ({item.prompt for item in drawn(short_answer, split)} for split in SPLITS)
    lines = {line.partition(" = ")[0] for line in phrases_of("toolbox.txt", "talk")}
    assert len(train & lines) > 10
    assert len(heldout & lines) > 10
    assert not train & heldout & lines


def test_names_of_other_training_data_belong_to_training():
    assert not any(map(is_held_out, toolbox.trained_names()))
    assert json.dumps(sorted(toolbox.tools()))[:2] == '["'
