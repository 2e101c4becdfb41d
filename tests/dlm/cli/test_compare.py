"""Ways to decode, compared: what is measured, kept, and told, and what counts as a valid answer."""

import csv
import json
import sys
from dataclasses import replace
from random import Random

import pytest
from commands import ended
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


def compared(monkeypatch, capsys, out, *more):
    """Run the command, without prompts that are not counted; return what it prints."""
    monkeypatch.setattr(runs_module, "WARM", 0)
    command = ["compare.py", "--n", "2", "--max-tokens", "96", "--out", str(out), *more]
    monkeypatch.setattr(sys, "argv", command)
    compare.main()
    return capsys.readouterr().out


def rows(out):
    lines = (out / "results.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("study", STUDIES)
def test_all_modes_of_a_study_can_be_asked_for_by_their_names(study):
    modes = [*STUDIES[study]]
    assert compare.chosen(modes, ",".join(mode.name for mode in modes)) == modes


def test_every_prompt_is_told_in_every_mode(monkeypatch, capsys, tmp_path):
    names = [mode.name for mode in STUDIES["decodings"]]
    printed = compared(monkeypatch, capsys, tmp_path, "--n", "1")
    found = rows(tmp_path)
    assert sorted((row["mode"], row["prompt_id"]) for row in found) == sorted(
        (name, i) for name in names for i in range(1)
    )
    assert all(row["valid"] and row["complete"] for row in found if "constrained" in row["mode"])
    assert all(row["calls"] > 0 and row["seconds"] >= row["model_seconds"] > 0 for row in found)
    drafted = {r["prompt_id"]: r for r in found if r["mode"] == "left to right drafted"}
    for row in found:
        if row["mode"] == "left to right constrained":
            assert row["text"] == drafted[row["prompt_id"]]["text"]
            assert row["calls"] > drafted[row["prompt_id"]]["calls"]
    report = (tmp_path / "report.html").read_text()
    assert all(name in report and name.split()[0] in printed for name in names)
    assert report.count("<svg") == 4
    assert "http://" not in report.replace("http://www.w3.org", "").replace(
        "http://purl.org", ""
    ).replace("http://creativecommons.org", "")
    assert (tmp_path / "quality.png").read_bytes()[:4] == b"\x89PNG"
    with (tmp_path / "results.csv").open(newline="") as table:
        assert len(list(csv.reader(table))) == 1 + len(found)


def test_what_was_stopped_goes_on_and_nothing_is_run_twice(monkeypatch, capsys, tmp_path):
    some = "--modes", f"{CONSTRAINED.name},{FREE.name}"
    compared(monkeypatch, capsys, tmp_path, *some, "--n", "1")
    path = tmp_path / "results.jsonl"
    lines = path.read_text().splitlines()
    marked = json.loads(lines[0]) | {"text": "from before"}
    path.write_text("\n".join([json.dumps(marked), lines[1][:40]]))
    compared(monkeypatch, capsys, tmp_path, *some, "--n", "1")
    found = rows(tmp_path)
    assert len(found) == 2
    assert found[0]["text"] == "from before"


def test_runs_of_other_settings_are_not_mixed(monkeypatch, capsys, tmp_path):
    one = "--modes", FREE.name
    compared(monkeypatch, capsys, tmp_path, *one)
    with pytest.raises(SystemExit) as end:
        compared(monkeypatch, capsys, tmp_path, *one, "--seed", "1")
    assert end.value.code == 1
    assert "seed 0, not 1" in capsys.readouterr().err
    before = json.loads((tmp_path / "results.jsonl.settings.json").read_text())
    with pytest.raises(LinesError, match="max_tokens 96, not 7"):
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
def test_a_file_of_prompts_that_is_wrong_is_told_by_line(tmp_path, line, wrong):
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "a", "schema": true, "expected": null}\n' + line)
    with pytest.raises(PromptError, match=wrong):
        read(path)


def test_a_file_of_prompts_needs_no_answers(monkeypatch, capsys, tmp_path):
    path, schema = tmp_path / "prompts.jsonl", {"type": "object", "properties": {"a": {}}}
    path.write_text(json.dumps({"prompt": "Say a.", "schema": schema}))
    out = tmp_path / "out"
    compared(monkeypatch, capsys, out, "--data", str(path), "--modes", CONSTRAINED.name)
    assert [(row["exact"], row["f1"], row["valid"]) for row in rows(out)] == [(None, None, True)]
    assert not (out / "quality.png").exists()


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


def test_what_the_schema_refuses_is_asked_for_again(monkeypatch):
    monkeypatch.setattr(runs_module, "WARM", 0)
    retried = next(mode for mode in STUDIES["decodings"] if mode.tries > 1)
    impossible = Prompt(id=0, prompt="Say a.", schema=False)
    (run,) = run_prompts(retried, [impossible], None, 16, 0)
    assert (run.tries, run.valid) == (retried.tries, False)


def test_a_grammar_that_only_sees_the_end_leaves_the_loop_free():
    """Its first pass accepts what a free one does; what it commits is valid all the same."""
    prompt = built_in(1, 0)[0]
    told = {}
    for mode in (FREE, AT_COMMIT, CONSTRAINED):
        engine = engine_of(mode, None)
        spec = dlm.JsonSchema(prompt.schema) if mode.constrained else None
        engine.add(dlm.Request(prompt=prompt.prompt, constraint=spec, max_tokens=96, seed=1))
        events = events_of(engine)
        engine.close()
        first = next(e for e in events if isinstance(e, dlm.Draft))
        told[mode.name] = first.accepted, events[-1].result
    assert told[AT_COMMIT.name][0] == told[FREE.name][0] != told[CONSTRAINED.name][0]
    assert prompt.valid(told[AT_COMMIT.name][1].text)


@pytest.mark.parametrize(
    "mode",
    by_default((m for m in STUDIES["policies"] if m.constrained), 3),
    ids=lambda mode: mode.name,
)
def test_whatever_the_policy_answers_are_valid(mode, monkeypatch):
    monkeypatch.setattr(runs_module, "WARM", 0)
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
    # Of 0..11, "a" is wrong at 0, 4, 8 and "b" at 4..11; behind them "b" is always right.
    assert (pair.only_one, pair.only_other) == (6, 98)
    assert pair.p < 1e-6
    assert paired(many[:1], [replace(RUN, prompt_id=9)]) is None


def test_a_report_shows_what_has_no_answer():
    failed = replace(RUN, valid=False, complete=False, exact=False, error="<none>")
    settings = {"study": "decodings", "model": "m"}
    text = page({FREE.name: [failed], CONSTRAINED.name: [RUN]}, [FREE, CONSTRAINED], settings, "c")
    assert "prompt 0: &lt;none&gt;" in text


def test_without_matplotlib_it_says_what_to_install(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "dlm.cli.compare.report", None)
    assert ended(monkeypatch, compare, "--out", tmp_path) == 2
    assert capsys.readouterr().err.endswith(": pip install 'dlm[compare]'\n")


def test_results_are_not_written_where_a_file_is(monkeypatch, capsys, tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    assert ended(monkeypatch, compare, "--n", 1, "--out", file) == 2
    assert f"--out {file} is a file: it takes a folder" in capsys.readouterr().err


def test_exact_forgives_a_fence_and_nothing_else():
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
def test_what_is_no_json_is_the_same_as_no_value(text):
    assert value_of(text) is MISSING
    assert not is_exact(text, None)
    assert not is_valid(text, True)


def test_fields_are_right_where_they_belong():
    target = {"a": 19, "b": [True, "x"], "c": {}}
    assert [path for path, _ in leaves(target)] == [("a",), ("b", 0), ("b", 1), ("c",)]
    assert found(target, target) == (4, 4)
    assert found({"a": 19.0, "b": [1, "x", "y"], "d": {}}, target) == (2, 4)
    assert found({"a": {"b": 19}}, target) == found(MISSING, target) == (0, 4)


def test_the_f1_counts_what_is_too_much_and_what_is_missing():
    assert f1({"a": 1, "b": 2}, {"a": 1, "b": 2}) == 1
    assert f1({"a": 1, "b": 2, "c": 3}, {"a": 1}) == 2 * 1 / (3 + 1)
    assert f1({"a": 1}, {"a": 1, "b": 2, "c": 3}) == 2 * 1 / (1 + 3)
    assert f1(MISSING, None) == 0
