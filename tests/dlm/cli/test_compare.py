"""Ways to decode, compared: measurements, records, reports, and the judging of answers."""

import csv
import json
import re
import sys
from dataclasses import replace
from functools import partial
from random import Random

import pytest
from driven import events_of
from exhaustive import by_default
from training.extraction import extract

import dlm
from dlm.batch.rows import LinesError
from dlm.cli import compare
from dlm.cli.compare import runs as runs_module
from dlm.cli.compare.judging import (
    MISSING,
    Prompt,
    PromptError,
    built_in,
    f1,
    found,
    is_exact,
    is_valid,
    judged,
    leaves,
    read,
    same,
    value_of,
)
from dlm.cli.compare.modes import AT_COMMIT, CONSTRAINED, FREE, STUDIES
from dlm.cli.compare.report import estimate, page, paired
from dlm.cli.compare.runs import Records, Run, engine_of, run_prompts

RUN = Run(
    mode="a",
    prompt_id=0,
    valid=True,
    complete=True,
    exact=True,
    f1=1.0,
    calls=2,
    tokens=6,
    tries=1,
    seconds=0.2,
    model_seconds=0.1,
    grammar_seconds=0.05,
    first_seconds=None,
    repairs=0,
    rollbacks=0,
    pins=0,
    drafted=0,
    drafts_kept=0,
    text="{}",
)


@pytest.fixture(autouse=True)
def without_warm_up(monkeypatch):
    """Run no prompts that are not counted."""
    monkeypatch.setattr(runs_module, "WARM", 0)


@pytest.fixture
def compared(run_command, tmp_path):
    """Run the command on one prompt; its results go to `tmp_path`."""
    flags = "--n", 1, "--max-tokens", 64, "--out", tmp_path
    return partial(run_command, compare, *flags)


def rows(out):
    lines = (out / "results.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("study", STUDIES)
def test_all_modes_of_a_study_can_be_chosen_by_their_names(study):
    modes = [*STUDIES[study]]
    assert compare.chosen(modes, ",".join(mode.name for mode in modes)) == modes


def test_every_mode_answers_every_prompt_and_is_in_the_reports(compared, tmp_path):
    names = [mode.name for mode in STUDIES["decodings"]]
    code, printed, err = compared()
    assert code == 0, err
    found = {row["mode"]: row for row in rows(tmp_path)}
    assert len(rows(tmp_path)) == len(names)
    assert found.keys() == {*names}
    assert all(row["prompt_id"] == 0 for row in found.values())
    assert all(r["valid"] and r["complete"] for name, r in found.items() if "constrained" in name)
    assert all(r["calls"] > 0 and r["seconds"] >= r["model_seconds"] > 0 for r in found.values())
    drafted, alone = found["left to right drafted"], found["left to right constrained"]
    assert drafted["text"] == alone["text"]
    assert drafted["calls"] < alone["calls"]
    report = (tmp_path / "report.html").read_text()
    assert all(name in report and name.split()[0] in printed for name in names)
    assert report.count("<svg") == 4
    own = r"http://(www\.w3\.org|purl\.org|creativecommons\.org)"  # names, which nothing fetches
    assert "http://" not in re.sub(own, "", report)
    assert (tmp_path / "quality.png").read_bytes()[:4] == b"\x89PNG"
    with (tmp_path / "results.csv").open(newline="") as table:
        assert len(list(csv.reader(table))) == 1 + len(found)


def test_a_stopped_comparison_continues_and_runs_nothing_twice(compared, tmp_path):
    some = "--modes", f"{CONSTRAINED.name},{FREE.name}"
    compared(*some)
    path = tmp_path / "results.jsonl"
    lines = path.read_text().splitlines()
    marked = json.loads(lines[0]) | {"text": "from before"}
    path.write_text("\n".join([json.dumps(marked), lines[1][:40]]))
    compared(*some)
    found = rows(tmp_path)
    assert len(found) == 2
    assert found[0]["text"] == "from before"


def test_runs_of_other_settings_are_not_mixed(compared, tmp_path):
    one = "--modes", FREE.name
    compared(*one)
    code, _, err = compared(*one, "--seed", 1)
    assert (code, "seed 0, not 1" in err) == (1, True), err
    before = json.loads((tmp_path / "results.jsonl.settings.json").read_text())
    with pytest.raises(LinesError, match="max_tokens 64, not 7"):
        Records(tmp_path, before | {"max_tokens": 7})


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("{", "line 2: no JSON"),
        ("[]", 'line 2: .* "prompt"'),
        ('{"prompt": "a"}', 'line 2: .* "schema"'),
        ('{"prompt": "a", "schema": {"type": 3}}', "line 2: the schema is none"),
        ('{"prompt": "a", "schema": {}, "answer": 1}', "line 2: 'answer' is none of"),
    ],
)
def test_an_error_in_a_file_of_prompts_names_its_line(tmp_path, line, wrong):
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "a", "schema": true, "expected": null}\n' + line)
    with pytest.raises(PromptError, match=wrong):
        read(path)


def test_a_file_of_prompts_needs_no_answers(compared, tmp_path):
    path, schema = tmp_path / "prompts.jsonl", {"type": "object", "properties": {"a": {}}}
    path.write_text(json.dumps({"prompt": "Say a.", "schema": schema}))
    compared("--data", path, "--modes", CONSTRAINED.name)
    found = [(row["exact"], row["f1"], row["valid"]) for row in rows(tmp_path)]
    assert found == [(None, None, True)]
    assert not (tmp_path / "quality.png").exists()


def test_fields_are_compared_by_place_value_and_type():
    prompt = Prompt(id=0, prompt="?", schema=True, expected={"a": 19, "b": [True, "x"]}, known=True)
    answers = {
        '{"b": [true, "x"], "a": 19.0}': (True, 1.0),
        '```json\n{"a": 19, "b": [true, "x"]}\n```': (True, 1.0),
        '{"a": 19, "b": [1, "x"]}': (False, 2 / 3),
        '{"a": 19}': (False, 0.5),
        "no": (False, 0.0),
    }
    assert {text: judged(prompt, text) for text in answers} == answers


def test_an_answer_that_the_schema_refuses_is_generated_again():
    retried = next(mode for mode in STUDIES["decodings"] if mode.tries > 1)
    impossible = Prompt(id=0, prompt="Say a.", schema=False)
    (run,) = run_prompts(retried, [impossible], None, 16, 0)
    assert (run.tries, run.valid) == (retried.tries, False)


def test_a_grammar_that_masks_only_the_commit_leaves_the_loop_free():
    """Its first pass accepts what an unconstrained one does; its answer is valid all the same."""
    prompt = built_in(1, 0)[0]
    seen = {}
    for mode in (FREE, AT_COMMIT, CONSTRAINED):
        engine = engine_of(mode, None)
        spec = dlm.JsonSchema(prompt.schema) if mode.constrained else None
        engine.add(dlm.Request(prompt=prompt.prompt, constraint=spec, max_tokens=96, seed=1))
        events = events_of(engine)
        engine.close()
        first = next(e for e in events if isinstance(e, dlm.Draft))
        seen[mode.name] = first.accepted, events[-1].result
    assert seen[AT_COMMIT.name][0] == seen[FREE.name][0] != seen[CONSTRAINED.name][0]
    assert prompt.valid(seen[AT_COMMIT.name][1].text)


@pytest.mark.parametrize(
    "mode",
    by_default((m for m in STUDIES["policies"] if m.constrained), 3),
    ids=lambda mode: mode.name,
)
def test_answers_under_every_policy_are_valid(mode):
    found = list(run_prompts(mode, built_in(2, 0)[1:], None, 96, 0))
    assert all(run.valid and run.complete and run.error is None for run in found)


def test_intervals_and_pairs_are_those_of_the_textbook():
    many = [replace(RUN, prompt_id=i, exact=i % 4 > 0) for i in range(400)]
    found = estimate(many, lambda run: run.exact)
    assert found.mean == 0.75
    assert found.low == pytest.approx(0.7075, abs=0.01)  # 1.96 * sqrt(.75 * .25 / 400) = 0.0424
    assert found.high == pytest.approx(0.7925, abs=0.01)
    assert estimate([replace(RUN, exact=None)], lambda run: run.exact) is None
    others = [replace(run, mode="b", exact=i < 4 or i >= 12) for i, run in enumerate(many)]
    pair = paired(many, others)
    # From 0 to 11, "a" is wrong at 0, 4, 8 and "b" at 4..11; from 12 on "b" is always right.
    assert (pair.only_one, pair.only_other) == (6, 98)
    assert pair.p < 1e-6
    assert paired(many[:1], [replace(RUN, prompt_id=9)]) is None


def test_a_report_shows_what_has_no_answer():
    failed = replace(RUN, valid=False, complete=False, exact=False, error="<none>")
    settings = {"study": "decodings", "model": "m"}
    text = page({FREE.name: [failed], CONSTRAINED.name: [RUN]}, [FREE, CONSTRAINED], settings, "c")
    assert "prompt 0: &lt;none&gt;" in text


def test_without_matplotlib_the_error_names_the_package_to_install(
    monkeypatch, refusal_of, tmp_path
):
    monkeypatch.setitem(sys.modules, "dlm.cli.compare.report", None)
    assert refusal_of(compare, "--out", tmp_path).endswith(": pip install 'dlm[compare]'\n")


def test_results_are_not_written_into_a_file(refusal_of, tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    assert f"--out {file} is a file: it takes a folder" in refusal_of(compare, "--out", file)


def test_an_exact_answer_may_have_a_fence_and_nothing_else():
    item = extract(Random(0), "heldout")
    assert is_exact(item.answer, item.value)
    fenced = f"```json\n{json.dumps(item.value)}\n```"
    assert is_exact(fenced, item.value)
    assert not is_valid(fenced, item.schema)
    assert not is_exact("{}", item.value)
    assert not is_exact(f"Sure! {json.dumps(item.value)}", item.value)


@pytest.mark.parametrize(
    ("value", "other", "equal"),
    [
        (19, 19.0, True),
        (1, True, False),
        (0.0, False, False),
        ([1, {"a": True}], [1.0, {"a": True}], True),
        ([1, {"a": True}], [1.0, {"a": 1}], False),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),
        ([1, 2], [2, 1], False),
        ({"a": None}, {}, False),
        ("1", 1, False),
    ],
)
def test_values_are_compared_as_json_values(value, other, equal):
    assert same(value, other) is same(other, value) is equal


@pytest.mark.parametrize("text", ["no JSON", "", "[" * 100_000, "```\n{}\n```"])
def test_a_text_that_is_no_json_has_no_value(text):
    assert value_of(text) is MISSING
    assert not is_exact(text, None)
    assert not is_valid(text, True)


def test_fields_are_right_only_at_their_own_places():
    target = {"a": 19, "b": [True, "x"], "c": {}}
    assert [path for path, _ in leaves(target)] == [("a",), ("b", 0), ("b", 1), ("c",)]
    assert found(target, target) == (4, 4)
    assert found({"a": 19.0, "b": [1, "x", "y"], "d": {}}, target) == (2, 4)
    assert found({"a": {"b": 19}}, target) == found(MISSING, target) == (0, 4)


def test_the_f1_counts_surplus_and_missing_fields():
    assert f1({"a": 1, "b": 2}, {"a": 1, "b": 2}) == 1
    assert f1({"a": 1, "b": 2, "c": 3}, {"a": 1}) == 2 * 1 / (3 + 1)
    assert f1({"a": 1}, {"a": 1, "b": 2, "c": 3}) == 2 * 1 / (1 + 3)
    assert f1(MISSING, None) == 0
