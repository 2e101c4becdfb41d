"""Work in worker processes: results, errors, limits, and the end of every process."""

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from threading import Event

import pytest
import tasks
from waiting import PATIENCE, wait_until

from dlm.grammar import (
    CrashError,
    InvalidGrammarError,
    InvalidValueError,
    LimitError,
    Task,
    Workers,
)
from dlm.grammar.canvas import workers as module

TESTS = str(Path(tasks.__file__).parent)


@pytest.fixture(scope="module")
def workers():
    made = Workers()
    yield made
    made.close()


def alive(process: int) -> bool:
    """Whether a process runs and is no zombie."""
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def wait_for_end_of(processes: list[int]) -> None:
    wait_until(lambda: not any(map(alive, processes)))


def processes_of(workers: Workers) -> list[int]:
    """The worker processes and their children."""
    lanes = workers._quick, workers._slow
    running = [lane._process._running for lane in lanes]
    leaders = [pair[0].pid for pair in running if pair is not None]
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(FileNotFoundError, ProcessLookupError):
            fields = path.read_text().rpartition(")")[2].split()
            if int(fields[2]) in leaders:  # the process group
                found.append(int(path.parent.name))
    return found


def test_garbage_is_collected_after_tasks_and_not_while_they_run(workers):
    for _ in range(2):
        task = workers.submit(tasks.circles, (5000,), seconds=5.0)
        assert task.result(PATIENCE) == (False, 0)


def test_a_task_returns_its_result_and_the_next_one_runs_in_the_same_process(workers):
    assert workers.submit(tasks.double, (21,), seconds=5.0).result(PATIENCE) == 42
    first, second = (workers.submit(tasks.process_id, (), seconds=5.0) for _ in range(2))
    assert first.result(PATIENCE) == second.result(PATIENCE) != os.getpid()


def test_the_callback_for_a_result_runs_in_this_process(workers):
    future = workers.submit(tasks.double, (21,), seconds=5.0, then=lambda n: (n, os.getpid()))
    assert future.result(PATIENCE) == (42, os.getpid())


@pytest.mark.parametrize(
    "error",
    [
        InvalidGrammarError("choice", "it is no good", "/options"),
        InvalidValueError("no value", ["a", 1]),
        LimitError("too many states"),
    ],
)
def test_an_error_about_a_grammar_keeps_its_type_and_attributes(workers, error):
    found = workers.submit(tasks.fail, (error,), seconds=5.0).exception(PATIENCE)
    assert type(found) is type(error)
    assert (str(found), vars(found)) == (str(error), vars(error))


@pytest.mark.parametrize(
    ("task", "error", "message"),
    [
        ((tasks.fail, OverflowError("too far")), CrashError, "OverflowError: too far"),
        ((tasks.fail_strangely,), CrashError, "cannot be read: .*missing"),
        ((tasks.fail, tasks.StrangeError(1, 2)), CrashError, "TypeError: .*missing"),
        ((tasks.leave, 3), CrashError, "ended with 3"),
        ((tasks.leave, 0), CrashError, "ended with 0"),
        ((tasks.crash,), CrashError, "ended with -11"),
        ((tasks.fill_memory,), LimitError, "takes over 1024 MiB of memory"),
        ((tasks.say_much,), LimitError, "comes to 6710.... bytes"),
        ((tasks.nest, 100_000), CrashError, "RecursionError"),
        ((tasks.spin,), LimitError, r"grammar: takes over 0\.5 s to compile"),
    ],
)
def test_a_task_that_fails_raises_its_reason_and_the_next_one_runs(workers, task, error, message):
    function, *args = task
    label, seconds = "grammar: {} to compile", 0.5 if function is tasks.spin else 5.0
    doomed = workers.submit(function, tuple(args), seconds=seconds, label=label)
    fine = workers.submit(tasks.double, (4,), seconds=5.0)
    with pytest.raises(error, match=message):
        doomed.result(PATIENCE)
    assert fine.result(PATIENCE) == 8


def test_a_task_that_no_other_process_can_import_runs_in_this_one(workers):
    def local():
        return os.getpid()

    assert workers.submit(local, (), seconds=5.0).result(PATIENCE) == os.getpid()


def test_running_in_this_process_without_limits_is_logged_once_for_each_kind_of_task(
    workers, caplog
):
    for label in ("choice: {} to compile", "choice: {} to compile", "the result {} to check"):
        workers.submit(lambda: 3, (), seconds=5.0, label=label).result(PATIENCE)
    workers.submit(tasks.double, (4,), seconds=5.0).result(PATIENCE)
    first, second = (record for record in caplog.records if record.name.startswith("dlm"))
    assert (first.levelname, second.levelname) == ("WARNING", "WARNING")
    assert first.getMessage().startswith("choice: ... to compile: it runs in this process")
    assert "without limits" in first.getMessage()
    assert "lambda" in first.getMessage()
    assert second.getMessage().startswith("the result ... to check")


def test_quick_tasks_do_not_wait_for_one_that_runs_in_this_process(workers):
    begun, end = Event(), Event()

    def local():
        begun.set()
        return end.wait(PATIENCE)

    here = workers.submit(local, (), seconds=5.0)
    assert begun.wait(PATIENCE)
    try:
        assert workers.submit(tasks.double, (4,), seconds=5.0).result(PATIENCE) == 8
    finally:
        end.set()
    assert here.result(PATIENCE)


def test_long_tasks_do_not_hold_up_quick_ones():
    workers = Workers()
    long = [workers.submit(tasks.spin, (), seconds=1000.0) for _ in range(2)]
    quick = [workers.submit(tasks.double, (i,), seconds=5.0) for i in range(5)]
    assert [future.result(PATIENCE) for future in quick] == [0, 2, 4, 6, 8]
    assert not any(future.done() for future in long)
    workers.close()


def test_a_task_that_takes_its_time_finishes_in_the_slow_lane(workers):
    assert workers.submit(tasks.spin, (0.6,), seconds=30.0).result(PATIENCE) == "done"


def test_a_task_that_all_callers_left_before_its_turn_never_runs(workers):
    workers.submit(tasks.double, (1,), seconds=5.0).result(PATIENCE)
    running = workers.submit(tasks.spin, (0.25,), seconds=30.0)
    left, kept = (workers.submit(tasks.process_id, (), seconds=5.0) for _ in range(2))
    assert left.join()
    left.leave()
    assert not left.cancelled()
    left.leave()
    assert left.cancelled()
    assert not left.join()
    assert running.result(PATIENCE) == "done"
    assert kept.result(PATIENCE)
    kept.leave()
    assert kept.join()  # a finished task stays


def test_a_task_that_all_callers_left_does_not_run_in_the_slow_lane_either(workers):
    long = workers.submit(tasks.spin, (2.0,), seconds=30.0)
    left = workers.submit(tasks.spin, (1000.0,), seconds=1000.0)
    sooner = workers.submit(tasks.double, (4,), seconds=5.0)
    assert sooner.result(PATIENCE) == 8  # the others are in the slow lane now
    left.leave()
    assert long.result(PATIENCE) == "done"
    with pytest.raises(CrashError, match="no request waits"):
        left.result(PATIENCE)


def test_a_task_that_was_left_may_be_joined_again_until_its_turn():
    task = Task()
    task.set_running_or_notify_cancel()  # in the quick lane; its turn in the slow one comes
    task.leave()
    task.leave()
    assert task.join()
    assert not task.give_up()
    task.leave()
    assert task.give_up()
    assert not task.join()
    task.set_exception(CrashError("no request waits for it any more"))


@pytest.mark.parametrize(
    ("head_start", "order"),
    [(10.0, ["urgent", "first", "second"]), (0.0, ["first", "second", "urgent"])],
)
def test_an_urgent_task_overtakes_those_that_have_not_waited_long(
    workers, monkeypatch, head_start, order
):
    monkeypatch.setattr(module, "_HEAD_START", head_start)
    done, ends = [], []
    running = workers.submit(tasks.spin, (0.25,), seconds=30.0)
    for name, urgent in (("first", False), ("second", False), ("urgent", True)):
        more = {"seconds": 5.0, "urgent": urgent, "then": lambda _, name=name: done.append(name)}
        ends.append(workers.submit(tasks.double, (1,), **more))
    running.result(PATIENCE)
    for end in ends:
        end.result(PATIENCE)
    assert done == order


def test_a_task_that_sleeps_is_given_up_by_wall_clock_time(monkeypatch):
    monkeypatch.setattr(module, "_START", 1.0)
    workers = Workers()
    asleep = workers.submit(tasks.sleep, (), seconds=0.01)
    fine = workers.submit(tasks.double, (1,), seconds=5.0)
    with pytest.raises(LimitError, match=r"takes over 0\.01 s"):
        asleep.result(PATIENCE)
    monkeypatch.setattr(module, "_START", 30.0)
    assert fine.result(PATIENCE) == 2
    workers.close()


@pytest.mark.parametrize("task", [tasks.sleep, tasks.spin])
def test_closing_ends_everything_at_once(task):
    workers = Workers()
    assert workers.submit(tasks.double, (1,), seconds=5.0).result(PATIENCE) == 2
    futures = [workers.submit(task, (), seconds=1000.0) for _ in range(3)]
    found = processes_of(workers)
    assert len(found) >= 2
    workers.close()
    assert all(isinstance(future.exception(PATIENCE), CrashError) for future in futures)
    wait_for_end_of(found)
    workers.close()
    with pytest.raises(CrashError, match="closed"):
        workers.submit(tasks.double, (1,), seconds=5.0).result(PATIENCE)


def test_workers_without_references_are_ended():
    workers = Workers()
    assert workers.submit(tasks.double, (1,), seconds=5.0).result(PATIENCE) == 2
    found = processes_of(workers)
    del workers
    wait_for_end_of(found)


@pytest.mark.parametrize(
    ("end", "code"),
    [
        ("", 0),
        ("raise KeyboardInterrupt", -2),
        ("os._exit(5)", 5),
        ("os.kill(os.getpid(), 9)", -9),
    ],
)
def test_a_program_that_ends_leaves_no_process_running(end, code):
    """A program that a signal ends cannot stop its workers, so they notice its end themselves."""
    script = f"""if True:
        import os, sys
        sys.path.insert(0, {TESTS!r})
        import tasks
        from dlm.grammar.canvas.workers import Workers
        workers = Workers()
        print(workers.submit(tasks.process_id, (), seconds=5.0).result())
        print(workers._quick._process._running[0].pid, flush=True)
        busy = workers.submit(tasks.spin, (), seconds=2.0)
        {end}
    """
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == code, done.stderr
    found = [int(line) for line in done.stdout.split()]
    assert len(found) == 2
    wait_for_end_of(found)


def test_a_worker_imports_no_large_package():
    code = "import sys, dlm.grammar.canvas.workers; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "numpy", "transformers", "xgrammar"} & {*done.stdout.split()}
