"""Answers in several modes: measurements, records, reports and pairs."""

import csv
import json
import re
from dataclasses import replace
from functools import partial

import evaluate
import pytest
from driven import events_of
from evaluation import answers, tasks
from evaluation import runs as runs_module
from evaluation.modes import AT_COMMIT, CONSTRAINED, DRAFTED, FREE, STUDIES
from evaluation.report import estimate, figures, grouped, page, paired, pairs, text_of
from evaluation.runs import EvaluationSettings, Records, Run, engine_of, run_tasks
from evaluation.tasks import TaskError, exam_tasks, extractions, kind_tasks, read
from evaluation.values import is_valid
from exhaustive import by_default

import dlm
from dlm.batch.rows import LinesError

RUN = Run(
    mode="a",
    task_id=0,
    group="extractions",
    valid=True,
    complete=True,
    called=False,
    exact=True,
    right=2,
    wanted=2,
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
ONE = EvaluationSettings(model=None, kv="auto", slots=1, max_tokens=96)


@pytest.fixture(autouse=True)
def without_warm_up(monkeypatch):
    """Run no prompts that are not counted."""
    monkeypatch.setattr(runs_module, "WARM", 0)


@pytest.fixture
def compared(run_command, tmp_path):
    """Run the command on one prompt; its results go to `tmp_path`."""
    flags = "compare", "--prompts", 1, "--max-tokens", 64, "--out", tmp_path
    return partial(run_command, evaluate, *flags)


def rows(out):
    lines = (out / "results.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize("study", STUDIES)
def test_all_modes_of_a_study_can_be_chosen_by_their_names(study):
    modes = STUDIES[study]
    assert answers.chosen(modes, ",".join(mode.name for mode in modes)) == [*modes]


@pytest.mark.exhaustive
def test_every_mode_answers_every_prompt_and_is_in_the_reports(compared, tmp_path):
    names = [mode.name for mode in STUDIES["decodings"]]
    code, printed, err = compared()
    assert code == 0, err
    found = {row["mode"]: row for row in rows(tmp_path)}
    assert len(rows(tmp_path)) == len(names)
    assert found.keys() == {*names}
    assert all(row["task_id"] == 0 for row in found.values())
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
    some = "--modes", f"{CONSTRAINED.name},{FREE.name}", "--max-tokens", 16
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
    one = "--modes", FREE.name, "--max-tokens", 16
    compared(*one)
    code, _, err = compared(*one, "--seed", 1)
    assert (code, "seed 0, not 1" in err) == (2, True), err
    before = json.loads((tmp_path / "results.jsonl.settings.json").read_text())
    with pytest.raises(LinesError, match="max_tokens 16, not 7"):
        Records(tmp_path, before | {"max_tokens": 7})


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("{", "line 2: no JSON"),
        ("[]", 'line 2: .* "prompt"'),
        ('{"prompt": "a"}', 'line 2: "schema" must be a JSON Schema'),
        ('{"prompt": "a", "schema": {"type": 3}}', "line 2: the schema is none"),
        ('{"prompt": "a", "schema": {}, "answer": 1}', "line 2: 'answer' is none of"),
    ],
)
def test_an_error_in_a_file_of_prompts_names_its_line(tmp_path, line, wrong):
    path = tmp_path / "prompts.jsonl"
    path.write_text('{"prompt": "a", "schema": true, "expected": null}\n' + line)
    with pytest.raises(TaskError, match=wrong):
        read(path, None, 0)


def test_a_file_of_prompts_needs_no_answers(compared, tmp_path):
    path, schema = tmp_path / "prompts.jsonl", {"type": "object", "properties": {"a": {}}}
    path.write_text(json.dumps({"prompt": "Say a.", "schema": schema}))
    compared("--data", path, "--modes", CONSTRAINED.name)
    found = [(row["exact"], row["f1"], row["valid"]) for row in rows(tmp_path)]
    assert found == [(None, None, True)]
    assert not (tmp_path / "quality.png").exists()


def test_an_answer_that_the_schema_refuses_is_generated_again(tmp_path):
    retried = next(mode for mode in STUDIES["decodings"] if mode.tries > 1)
    (tmp_path / "a.jsonl").write_text('{"prompt": "Say a.", "schema": false}')
    impossible = read(tmp_path / "a.jsonl", None, 0)
    (run,) = run_tasks(retried, impossible, replace(ONE, max_tokens=4))
    assert (run.tries, run.valid, run.exact) == (retried.tries, False, None)


def test_the_time_of_a_task_is_its_own_whatever_runs_beside_it():
    """The answers of tasks that run at once are those of tasks alone, and times add up."""
    some = extractions(2, 0)
    alone, beside = (
        {run.task_id: run for run in run_tasks(CONSTRAINED, some, replace(ONE, slots=slots))}
        for slots in (1, 2)
    )
    assert {id: run.text for id, run in alone.items()} == {
        id: run.text for id, run in beside.items()
    }
    assert all(run.seconds >= run.first_seconds for run in alone.values())
    assert sum(run.seconds for run in beside.values()) >= max(
        run.first_seconds for run in beside.values()
    )


def first_draft(engine):
    while True:
        for event in engine.step():
            if isinstance(event, dlm.Draft):
                return event


def test_a_grammar_that_masks_only_the_commit_leaves_the_loop_free():
    """Its first pass accepts what an unconstrained one does; its answer is valid all the same."""
    (task,) = extractions(1, 0)
    accepted = {}
    for mode in (FREE, AT_COMMIT, CONSTRAINED):
        engine = engine_of(mode, ONE)
        engine.add(task.request(task.spec({}) if mode.constrained else None, 96, 1))
        accepted[mode.name] = first_draft(engine).accepted
        if mode is AT_COMMIT:
            result = events_of(engine)[-1].result
        engine.close()
    assert accepted[AT_COMMIT.name] == accepted[FREE.name] != accepted[CONSTRAINED.name]
    assert is_valid(result.text, task.item.schema)


@pytest.mark.parametrize(
    "mode",
    by_default((m for m in STUDIES["policies"] if m.constrained), 3),
    ids=lambda mode: mode.name,
)
def test_answers_under_every_policy_are_valid(mode):
    found = list(run_tasks(mode, extractions(2, 0)[1:], ONE))
    assert all(run.valid and run.complete and run.error is None for run in found)


def test_intervals_and_pairs_are_those_of_the_textbook():
    many = [replace(RUN, task_id=i, exact=i % 4 > 0) for i in range(400)]
    found = estimate(many, lambda run: run.exact)
    assert found.mean == 0.75
    assert found.low == pytest.approx(0.7075, abs=0.01)  # 1.96 * sqrt(.75 * .25 / 400) = 0.0424
    assert found.high == pytest.approx(0.7925, abs=0.01)
    assert estimate([replace(RUN, exact=None)], lambda run: run.exact) is None
    others = [replace(run, mode="b", exact=i < 4 or i >= 12) for i, run in enumerate(many)]
    pair = paired("extractions", many, others)
    # From 0 to 11, "a" is wrong at 0, 4, 8 and "b" at 4..11; from 12 on "b" is always right.
    assert (pair.only_one, pair.only_other) == (6, 98)
    assert pair.p < 1e-6
    assert paired("all", many[:1], [replace(RUN, task_id=9)]) is None


def test_a_report_shows_what_has_no_answer():
    failed = replace(RUN, valid=False, complete=False, exact=False, error="<none>")
    settings = {"study": "decodings", "model": "m", "slots": 1}
    text = page({FREE.name: [failed], CONSTRAINED.name: [RUN]}, [FREE, CONSTRAINED], settings, "c")
    assert "task 0: &lt;none&gt;" in text


def test_results_are_not_written_into_a_file(refusal_of, tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    assert f"--out must be a folder, got the file {file}" in refusal_of(
        evaluate, "compare", "--out", file
    )


def test_the_constraint_makes_all_answers_valid_and_more_of_them_right():
    some = exam_tasks(8, 3, ["same"])
    free, bound = (
        figures(list(run_tasks(mode, some, replace(ONE, slots=8)))) for mode in (FREE, CONSTRAINED)
    )
    assert free["valid"] < 1
    assert (bound["valid"], bound["cut"]) == (1, 0)
    assert bound["exact"] > free["exact"]
    assert bound["fields"] > free["fields"]
    assert bound["passes"] < free["passes"]


def test_each_set_of_an_exam_is_answered_in_all_modes(run_command):
    code, out, err = run_command(evaluate, "exams", "--prompts", 1, "--only", "choices", "--json")
    assert code == 0, err
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["mode"] for row in rows] == [mode.name for mode in STUDIES["exams"]]
    assert {(row["group"], row["tasks"]) for row in rows} == {("choices", 1)}


def test_every_kind_of_constraint_is_obeyed_in_one_batch():
    some = kind_tasks(6, 0, [""])
    assert len({task.group for task in some}) == 6
    found = list(run_tasks(CONSTRAINED, some, replace(ONE, slots=6, max_tokens=160)))
    assert {run.group for run in found if run.valid and run.complete} == {t.group for t in some}
    assert {run.group for run in found if run.called} == {"tools"}


def test_groups_are_chosen_by_a_part_of_their_names():
    groups = {task.group for task in exam_tasks(1, 0, ["patterns"])}
    assert groups == {"same patterns", "held-out patterns"}
    assert [task.id for task in kind_tasks(12, 0, ["regex"])] == [4, 10]


def test_tasks_are_drawn_anew_for_each_seed():
    assert extractions(2, 0) == extractions(3, 0)[:2]
    assert extractions(2, 0)[0].item != extractions(2, 5)[0].item


def test_ratios_are_those_of_all_tasks_together():
    many = [replace(RUN, right=1, wanted=4, tokens=4), replace(RUN, right=2, wanted=2, tokens=8)]
    found = figures([*many, replace(RUN, right=None, wanted=None, exact=None, calls=4)])
    assert (found["fields"], found["exact"], found["tokens a pass"]) == (0.5, 1, 18 / 8)
    unknown = figures([replace(RUN, right=None, wanted=None, exact=None)])
    assert (unknown["fields"], unknown["exact"]) == (None, None)


def test_several_groups_are_added_up_too():
    runs = [RUN, replace(RUN, task_id=1, group="copies"), replace(RUN, task_id=2)]
    assert [*grouped(runs[:1])] == ["extractions"]
    groups = grouped(runs)
    assert {group: len(some) for group, some in groups.items()} == {
        "extractions": 2,
        "copies": 1,
        "all": 3,
    }


def test_figures_are_counts_or_have_three_decimals():
    assert [text_of(value) for value in (0, 12, 1.0, 0.6666, 470.6, None)] == [
        *("0", "12", "1.000", "0.667", "471", ""),
    ]


def test_pairs_are_those_with_the_first_mode_and_those_of_a_constraint():
    modes = [*STUDIES["exams"]]
    table = {mode.name: [replace(RUN, mode=mode.name)] for mode in modes}
    names = [mode.name for mode in modes]
    assert [(pair.one, pair.other) for pair in pairs(table, modes)] == [
        *((names[0], other) for other in names[1:]),
        (names[2], DRAFTED.name),
    ]


def test_calls_of_tools_are_judged_by_their_names_and_arguments():
    (task,) = kind_tasks(2, 0, ["tools"])
    (run,) = run_tasks(CONSTRAINED, [task], replace(ONE, max_tokens=160))
    assert (run.valid, run.called, run.exact) == (True, True, True)
    name, arguments = task.item.value
    others = replace(task, item=replace(task.item, value=(name, {**arguments, "none": 0})))
    (run,) = run_tasks(CONSTRAINED, [others], replace(ONE, max_tokens=160))
    assert (run.valid, run.exact, run.right) == (True, False, len(arguments))


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (["--prompts", "0"], "--prompts must be at least 1, got 0"),
        (["--only", "made-up", "x y"], "no set's name holds 'x y': there are same patterns, "),
        (["--modes", "none"], "no mode is named 'none': there are diffusion free, "),
    ],
)
def test_bad_usage_is_refused_before_prompts_are_drawn(monkeypatch, refusal_of, flags, problem):
    monkeypatch.setattr(tasks, "exams", lambda count, seed, exams=tasks.exams: exams(1, seed))
    assert problem in refusal_of(evaluate, "exams", *flags)


def test_a_missing_model_is_bad_usage(run_command):
    code, _, err = run_command(evaluate, "kinds", "--prompts", 1, "--model", "/nope")
    assert code == 2
    assert err.splitlines()[-1] == "evaluate.py kinds: no model directory at /nope"


def test_modes_whose_answers_are_not_those_they_must_equal_are_named():
    drafted = next(mode for mode in STUDIES["masked"] if mode.equals)
    plain = next(mode for mode in STUDIES["masked"] if mode.name == drafted.equals)
    runs = [replace(RUN, task_id=i, text=f"{i}") for i in range(3)]
    table = {plain.name: runs, drafted.name: [*runs[:2], replace(runs[2], text="{")]}
    unequal = answers.differing(table, [plain, drafted])
    assert unequal == [f"'{drafted.name}' in tasks 2"]
    assert answers.differing({**table, drafted.name: runs[1:]}, [plain, drafted]) == []
    assert answers.differing(table, [drafted]) == unequal
    assert answers.differing({drafted.name: runs}, [drafted]) == []  # there is nothing to equal


def test_the_study_of_masked_models_has_drafts_that_equal_what_they_draft_for():
    names = {mode.name: mode for mode in STUDIES["masked"]}
    equal = {mode.name: mode.equals for mode in names.values() if mode.equals}
    assert len(equal) == 4
    for name, other in equal.items():
        assert names[name].constrained == names[other].constrained
