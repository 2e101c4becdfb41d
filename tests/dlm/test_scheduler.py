"""Requests that wait for their grammars: nobody waits for anybody else's."""

from concurrent import futures
from types import SimpleNamespace

import pytest
import tasks
from doubles import Scripted
from values import PROMPT, V

from dlm import (
    Choice,
    DlmError,
    Failed,
    Finished,
    Grammar,
    InvalidGrammarError,
    JsonSchema,
    Policy,
    Regex,
    Request,
    RequestError,
)
from dlm.grammar import Compiler, CrashError, LimitError, Task, Workers
from dlm.scheduler import Scheduler

SLOW = Choice(["slow"])  # the spec that a test lets take its time
QUICK = JsonSchema({"type": "string"})


def test_nobody_is_waited_for_who_is_ready(monkeypatch):
    """Else a step that can do nothing would end at once, and the next one too."""
    scheduler = Scheduler(1, lambda *_: None, lambda _: True, lambda *_: None)
    compiled, checked, waited = Task(), Task(), []
    compiled.set_result(None)
    monkeypatch.setattr(futures, "wait", lambda these, *_: waited.append(list(these)))
    scheduler.add([SimpleNamespace(number=1, question=None)], compiled)
    scheduler.running[0] = SimpleNamespace(checking=checked)
    scheduler.nap()
    assert waited == [[checked]]


class Held:
    """A compiler that does `SLOW` when it is told to, and all else at once."""

    def __init__(self, compiler: Compiler):
        self.compiler, self.asked, self.held = compiler, [], Task()
        self.warm_up = compiler.warm_up

    def submit(self, spec):
        again = spec in self.asked
        self.asked.append(spec)
        if spec is SLOW:
            assert not again or self.held.join()
            return self.held
        ready = Task()
        ready.set_result(self.compiler.compile(spec))
        return ready

    def release(self):
        self.held.set_result(self.compiler.compile(SLOW))


@pytest.fixture
def serving(engine_of, tokens_of, monkeypatch):
    """An engine with so many slots, and its compiler."""

    def serving(slots=4, **limits):
        model = Scripted(V, len(PROMPT), tokens_of('"hi"<turn|>'))
        engine = engine_of(model, slots=slots, policy=Policy(**limits))
        compiler = Held(engine._compiler)
        monkeypatch.setattr(engine._admission, "_compiler", compiler)
        return engine, compiler

    return serving


def asks(spec=None):
    return Request(token_ids=PROMPT, constraint=spec, max_tokens=40)


def ends_of(engine, ends, passes=1000):
    """Collect the ends of requests, until none is left or it took so many passes."""
    for _ in range(passes):
        if not engine.busy:
            break
        for event in engine.step():
            if isinstance(event, Finished | Failed):
                ends[event.request] = event
    return ends


def test_a_grammar_that_compiles_slowly_holds_up_nobody_else(serving):
    engine, compiler = serving()
    slow, quick, free = (engine.add(asks(spec)) for spec in (SLOW, QUICK, None))
    ends = ends_of(engine, {}, passes=20)
    assert set(ends) == {quick, free}
    assert engine.busy
    compiler.release()
    ends_of(engine, ends)
    assert ends[slow].result.text == "slow"


def test_one_slot_is_not_kept_for_a_request_that_cannot_use_it_yet(serving):
    engine, compiler = serving(slots=1)
    slow, quick = (engine.add(asks(spec)) for spec in (SLOW, QUICK))
    assert list(ends_of(engine, {}, passes=20)) == [quick]
    compiler.release()
    assert list(ends_of(engine, {})) == [slow]


def test_a_request_that_joins_late_gives_what_it_gives_alone(serving):
    engine, compiler = serving()
    slow, other = engine.add(asks(SLOW)), engine.add(asks(QUICK))
    engine.step()
    compiler.release()
    ends = ends_of(engine, {})
    for number, spec in ((slow, SLOW), (other, QUICK)):
        alone, its = serving()
        its.release()
        result = alone.generate(asks(spec))
        assert ends[number].result.token_ids == result.token_ids
        assert ends[number].result.stats.denoiser_calls == result.stats.denoiser_calls


def ends_alone(engine, doomed, fine, reason):
    """One request is refused for a reason, and the other does not notice."""
    ends = ends_of(engine, {})
    assert isinstance(ends[doomed], Failed)
    assert isinstance(ends[doomed].error, RequestError)
    assert reason in str(ends[doomed].error)
    assert ends[fine].result.text == '"hi"'


def test_an_error_of_the_compiler_ends_its_request_alone(serving):
    engine, compiler = serving()
    doomed, fine = engine.add(asks(SLOW)), engine.add(asks(QUICK))
    engine.step()
    compiler.held.set_exception(InvalidGrammarError("choice", "it is no good"))
    ends_alone(engine, doomed, fine, "choice: it is no good")


@pytest.mark.parametrize("error", [OverflowError("too far"), MemoryError(), RecursionError("deep")])
def test_a_foreign_error_of_the_compiler_ends_its_request_alone_and_is_named(serving, error):
    engine, compiler = serving()
    doomed, fine = engine.add(asks(SLOW)), engine.add(asks(QUICK))
    compiler.held.set_exception(error)
    ends = ends_of(engine, {})
    assert type(error).__name__ in str(ends[doomed].error)
    assert type(ends[doomed].error) is DlmError
    assert ends[fine].result.text == '"hi"'


def test_a_limit_of_the_compiler_is_the_request_s_to_keep(serving):
    engine, compiler = serving()
    doomed, fine = engine.add(asks(SLOW)), engine.add(asks(QUICK))
    compiler.held.set_exception(LimitError("choice: takes over 10 s to compile"))
    ends_alone(engine, doomed, fine, "takes over 10 s to compile")


def test_generate_raises_what_a_compiler_raises_and_starts_nobody(serving):
    engine, compiler = serving()
    compiler.held.set_exception(LimitError("takes over 10 s to compile"))
    with pytest.raises(RequestError, match=r"request 1: takes over 10 s"):
        engine.generate([asks(), asks(SLOW)])
    assert not engine.busy


def test_a_waiting_request_that_is_cancelled_never_runs(serving):
    engine, compiler = serving()
    gone, kept = engine.add(asks(SLOW)), engine.add(asks(SLOW))
    engine.step()
    engine.cancel(gone)
    compiler.release()
    assert list(ends_of(engine, {})) == [kept]


def test_a_grammar_that_nobody_waits_for_any_more_is_not_compiled(serving):
    engine, compiler = serving()
    first, second = engine.add(asks(SLOW)), engine.add(asks(SLOW))
    engine.step()
    engine.cancel(first)
    engine.step()
    assert not compiler.held.cancelled()
    engine.cancel(second)
    engine.step()
    assert compiler.held.cancelled()
    assert not engine.busy


def test_a_budget_that_is_too_small_is_told_of_once_the_grammar_is_known(serving):
    engine, compiler = serving()
    number = engine.add(Request(token_ids=PROMPT, constraint=SLOW, max_tokens=1))
    engine.step()
    compiler.release()
    ends = ends_of(engine, {})
    assert isinstance(ends[number].error, RequestError)
    assert "max_tokens is 1: the shortest answer takes" in str(ends[number].error)


def test_who_comes_first_is_served_first(serving):
    engine, compiler = serving(slots=1)
    first, second, third = (engine.add(asks(spec)) for spec in (QUICK, None, SLOW))
    fourth = engine.add(asks(QUICK))
    compiler.release()
    assert list(ends_of(engine, {})) == [first, second, third, fourth]


def test_a_spec_is_compiled_once_however_it_is_written(engine_of, monkeypatch):
    engine = engine_of(Scripted(V, len(PROMPT), [106]))
    compiled = []
    submit = engine._compiler._workers.submit

    def counted(function, args, **more):
        compiled.append(args)
        return submit(function, args, **more)

    monkeypatch.setattr(engine._compiler._workers, "submit", counted)
    schema = {"type": "array", "items": {"type": "boolean"}, "maxItems": 2}
    same = [JsonSchema(schema), JsonSchema(dict(schema)), JsonSchema(str(schema).replace("'", '"'))]
    engine.generate([asks(spec) for spec in same for _ in range(2)])
    assert len(compiled) == 1
    engine.generate(asks(JsonSchema({**schema, "maxItems": 3})))
    assert len(compiled) == 2


def test_a_compiler_forgets_what_was_not_used_for_the_longest_time(engine_of):
    vocabulary = engine_of(Scripted(V, len(PROMPT), [106])).vocabulary
    specs = [Regex(f"[a-{last}]{{20}}") for last in "xyz"]
    large = Compiler(vocabulary)
    sizes = [large.compile(spec).nbytes for spec in specs]
    small = Compiler(vocabulary, max_bytes=sum(sizes) - 1)  # two of them fit
    first, second = (small.compile(spec) for spec in specs[:2])
    assert small.compile(specs[0]) is first
    third = small.compile(specs[2])
    assert small.compile(specs[2]) is third
    assert small.compile(specs[0]) is first
    assert small.compile(specs[1]) is not second
    assert all(large.compile(spec) is large.compile(spec) for spec in specs)


def test_a_crash_is_not_remembered(engine_of, monkeypatch):
    """It is the machine's, or the kernel's, for want of memory: the next time may do."""
    engine = engine_of(Scripted(V, len(PROMPT), [106]), workers=Workers())
    submit = engine._compiler._workers.submit

    def crashing(function, args, **more):
        monkeypatch.undo()
        return submit(tasks.leave, (3,), seconds=5.0)

    monkeypatch.setattr(engine._compiler._workers, "submit", crashing)
    with pytest.raises(CrashError, match="ended with 3"):
        engine.compile(QUICK).result()
    assert engine.compile(QUICK).result() is engine.compile(QUICK).result()
    engine._compiler._workers.close()


def test_a_failure_is_remembered_too(engine_of, monkeypatch):
    engine = engine_of(Scripted(V, len(PROMPT), [106]))
    wrong = Grammar("root ::= nowhere")
    futures = {id(engine.compile(wrong)) for _ in range(3)}
    assert len(futures) == 1
    with pytest.raises(InvalidGrammarError, match="nowhere"):
        engine.compile(wrong).result()
