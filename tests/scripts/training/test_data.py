"""The data that the built-in checkpoint is trained on, and the splits that it is measured on."""

import json
import re
from decimal import Decimal
from random import Random

import jsonschema
import pytest
from drawn_samples import strings_of, value_of
from evaluation.values import leaves
from exhaustive import share
from training import extraction
from training.extraction import extract
from training.kinds import SMALL, TITLES, draw
from training.patterns import domains, ruffled
from training.samples import dumps, plain
from training.words import Draw, accented, listed


@pytest.fixture(scope="module")
def samples():
    """Extractions of each split, drawn from the first seeds."""
    counts = {"train": share(6000), "heldout": share(2000), "unseen": 400}
    return {
        split: [extract(Random(seed), split) for seed in range(count)]
        for split, count in counts.items()
    }


def values_of(kind):
    """Return values of training and of exams."""
    return (
        {draw(kind, Draw(Random(seed), split)).text for seed in range(2000)}
        for split in ("train", "heldout")
    )


@pytest.mark.parametrize(
    "kind", ["person", "city", "company", "code", "title", "email", "team", "date", "time", "login"]
)
def test_no_held_out_value_is_ever_in_training(kind):
    train, heldout = values_of(kind)
    assert min(len(train), len(heldout)) > 60
    assert not train & heldout


def test_known_words_are_in_both_halves_and_made_up_words_in_one():
    train, heldout = values_of("color")
    known = set(listed("color"))
    assert known < train
    assert known < heldout
    assert train & heldout == known


def test_no_held_out_sentence_is_ever_in_training(samples):
    held_out = {s.text for d in domains(True) for s in d.sentences if s.held_out}
    starts = {text.partition("{")[0] for text in held_out}
    rare = {start for start in starts if len(start) > 11}  # no other sentence begins like these
    trained = [s.text for d in domains(True) for s in d.sentences if not s.held_out]
    heads = [(text, text.partition("{")[0]) for text in trained]
    rare -= {  # what others begin with, or could with a value: "The door of {room}"
        start
        for start in rare
        for text, head in heads
        if text.startswith(start) or (len(head) > 8 and start.startswith(head))
    }
    assert len(rare) > 20

    def seen(split):
        prompts = " ".join(sample.prompt for sample in samples[split])
        return {start for start in rare if start in prompts}

    assert not seen("train")
    assert len(seen("unseen")) > 10


def test_there_are_hundreds_of_sentences_in_dozens_of_domains():
    sentences = {s.text for d in domains(False) for s in d.sentences}
    assert len(sentences) >= 600
    assert len(domains(False)) >= 60
    held_out = sum(s.held_out for d in domains(False) for s in d.sentences)
    assert 0.07 < held_out / len(sentences) < 0.13


def test_training_has_all_sentences_of_exams_and_more():
    examined, all_of = (
        {s for d in each for s in d.sentences} for each in (domains(False), domains(True))
    )
    assert examined < all_of
    assert not any(s.held_out for s in all_of - examined)
    assert {d.title for d in domains(False)} < {d.title for d in domains(True)}


def test_labels_have_more_phrases_in_training_and_the_same_in_exams(monkeypatch):
    def drawn(split):
        return [extract(Random(seed), split) for seed in range(200)]

    training, exam = drawn("train"), drawn("heldout")
    monkeypatch.setattr(extraction, "TRAINED_WAYS", [])
    assert drawn("heldout") == exam
    assert drawn("train") != training


def test_a_value_never_runs_into_the_next_sentence():
    sentences = ["Best wishes, Omar", "We will see."]
    texts = {ruffled(sentences, Draw(Random(seed), "train")) for seed in range(400)}
    assert any("Omar. We" in text for text in texts)
    assert not any("Omar We" in text for text in texts)


def test_every_field_of_a_domain_is_in_some_sentence():
    for domain in domains(True):
        found = {name for s in domain.sentences for name in s.fields}
        assert found >= domain.fields.keys(), domain.title


@pytest.mark.parametrize("split", ["train", "heldout", "unseen"])
def test_answers_fit_their_schemas_and_mean_their_values(split, samples):
    fenced = 0
    for item in samples[split][:400]:
        fenced += item.answer.startswith("```json\n")
        value = value_of(item.answer)
        assert value == item.value
        jsonschema.validate(value, item.schema)
    assert 0.18 < fenced / 400 < 0.32  # the habit: a quarter


def test_every_text_that_is_wanted_is_in_the_prompt(samples):
    """Exceptions: dates that the key or the schema wants in ISO form, and options of an enum."""
    for item in samples["heldout"]:
        closed = re.findall(r'"enum": \[[^]]*\]', json.dumps(item.schema))
        for string in strings_of(item.value):
            iso = re.fullmatch(r"\d{4}-\d\d-\d\d", string)
            assert string in item.prompt or iso or string in "".join(closed), (string, item.prompt)


def test_every_number_that_is_wanted_is_in_the_prompt_in_digits_or_as_a_word(samples):
    numbers = 0
    for item in samples["heldout"]:
        given = {*map(float, re.findall(r"\d+(?:\.\d+)?", item.prompt.replace(",", "")))}
        given |= {
            i for i, word in enumerate(SMALL) if re.search(rf"\b{word}\b", item.prompt.lower())
        }
        wanted = {abs(leaf) for _, leaf in leaves(item.value) if type(leaf) in (int, float)}
        assert wanted <= given, (wanted - given, item.prompt)
        numbers += len(wanted)
    assert numbers > 200


def test_a_missing_value_is_null_or_left_out_as_the_schema_demands(samples):
    nulls = left_out = 0
    for item in samples["train"]:
        if "missing" not in item.traits:
            continue
        absent = item.schema["properties"].keys() - item.value.keys()
        left_out += bool(absent)
        assert not absent & set(item.schema["required"])
        nulls += "null" in item.answer
        assert absent or "null" in item.answer
    assert min(nulls, left_out) > 3


def test_some_prompts_leave_keys_to_the_schema(samples):
    left = [item for item in samples["train"] if item.unasked]
    assert 0.3 < len(left) / len(samples["train"]) < 0.45
    for item in left:
        groups = [part for part in item.value.values() if isinstance(part, dict)]
        assert item.unasked <= {
            key for keys in (item.schema["properties"], *groups) for key in keys
        }
        jsonschema.validate(item.value, item.schema)
    assert not any(item.unasked for item in samples["heldout"])


def test_texts_have_articles_and_titles_belong_to_names():
    rooms = [draw("room", Draw(Random(seed), "train")) for seed in range(20)]
    assert all(room.text == f"the {room.value}" for room in rooms)
    people = [draw("person", Draw(Random(seed), "train")) for seed in range(500)]
    assert all(person.text == person.value for person in people)
    assert any(person.value.split()[0] in TITLES for person in people)


def test_some_words_have_accents():
    words = [Draw(Random(seed), "train").word(["Emma", "Oslo"]) for seed in range(500)]
    assert 0.02 < sum(not word.isascii() for word in words) / len(words) < 0.08
    assert accented("EMMA", Random(1)).isupper()
    assert accented("Xyz", Random(2)) != "Xyz"
    assert accented("B-12", Random(3)) == "B-12"


def test_samples_have_lists_tables_and_objects_in_objects(samples):
    traits = [trait for item in samples["train"] for trait in item.traits]
    for trait in ("list", "rows", "nested", "distractor", "missing", "described", "labelled"):
        assert traits.count(trait) > 15, trait


def test_numbers_are_answered_with_the_digits_of_the_text():
    value = {"a": [Decimal("19.50"), 3], "b": {}, "c": "é"}
    for indent in (None, 2):
        text = dumps(value, indent)
        assert "19.50" in text
        assert json.loads(text) == plain(value) == {"a": [19.5, 3], "b": {}, "c": "é"}
    assert dumps(plain(value), 2) == json.dumps(plain(value), indent=2, ensure_ascii=False)
