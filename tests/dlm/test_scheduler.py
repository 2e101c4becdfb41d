"""Requests that wait for their own grammars while others run."""

import traceback
from concurrent import futures
from types import SimpleNamespace

import pytest
import tasks
from doubles import Ledger, Random
from driven import ends_of
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
from dlm.models import CacheFullError
from dlm.scheduler import Scheduler

SLOW = Choice(["slow"])  # compiled once the test releases it
QUICK = JsonSchema({"type": "string"})


def test_the_scheduler_does_not_wait_for_a_task_that_is_done(monkeypatch):
    """The wait would end at once, and steps that can do nothing would follow without pause."""
    scheduler = Scheduler(1, Ledger(1))
    compiled, checked, waited = Task(), Task(), []
    compiled.set_result(None)
    monkeypatch.setattr(futures, "wait", lambda these, *_: waited.append(list(these)))
    scheduler.add([SimpleNamespace(number=1, question=None)], compiled)
    scheduler.running[0] = SimpleNamespace(checking=checked)
    scheduler.nap()
    assert waited == [[checked]]


class Held:
    """A compiler that compiles `SLOW` once it is released, and every other spec at once."""

    def __init__(self, compiler: Compiler):
        self.compiler, self.submitted, self.held = compiler, [], Task()
        self.warm_up = compiler.warm_up

    def submit(self, spec):
        again = spec in self.submitted
        self.submitted.append(spec)
        if spec is SLOW:
            assert not again or self.held.join()
            return self.held
        ready = Task()
        ready.set_result(self.compiler.compile(spec))
        return ready

    def release(self):
        self.held.set_result(self.compiler.compile(SLOW))


@pytest.fixture
def serving(scripted, monkeypatch):
    """Build an engine with `slots` slots, and its compiler."""

    def serving(slots=4):
        engine = scripted('"hi"<turn|>', slots=slots, policy=Policy())
        compiler = Held(engine._compiler)
        monkeypatch.setattr(engine._admission, "_compiler", compiler)
        return engine, compiler

    return serving


def request(spec=None):
    return Request(token_ids=PROMPT, constraint=spec, max_tokens=40)


def ended_so_far(engine):
    """Step an engine 20 times and return the requests that end."""
    events = [event for _ in range(20) for event in engine.step()]
    return {event.request for event in events if isinstance(event, Finished | Failed)}


def test_a_grammar_that_compiles_slowly_delays_no_other_request(serving):
    engine, compiler = serving()
    slow, quick, free = (engine.add(request(spec)) for spec in (SLOW, QUICK, None))
    assert ended_so_far(engine) == {quick, free}
    assert engine.busy
    compiler.release()
    assert ends_of(engine)[slow].result.text == "slow"


def test_no_slot_is_kept_for_a_request_whose_grammar_is_not_compiled(serving):
    engine, compiler = serving(slots=1)
    slow, quick = (engine.add(request(spec)) for spec in (SLOW, QUICK))
    assert ended_so_far(engine) == {quick}
    compiler.release()
    assert list(ends_of(engine)) == [slow]


def test_a_request_whose_grammar_cannot_be_compiled_ends_without_a_slot(serving):
    engine, compiler = serving(slots=1)
    free, doomed = engine.add(request()), engine.add(request(SLOW))
    compiler.held.set_exception(InvalidGrammarError("choice", "it is no good"))
    assert list(ends_of(engine)) == [doomed, free]


def test_an_error_that_requests_share_does_not_keep_all_of_them(serving):
    engine, compiler = serving()
    error, lengths = InvalidGrammarError("choice", "it is no good"), list[int]()
    compiler.held.set_exception(error)
    for _ in range(3):
        failed = engine.add(request(SLOW))
        assert list(ends_of(engine)) == [failed]
        lengths.append(len([*traceback.walk_tb(error.__traceback__)]))
    assert len({*lengths}) == 1


def test_a_request_that_joins_late_has_the_result_that_it_has_alone(serving):
    engine, compiler = serving()
    slow, other = engine.add(request(SLOW)), engine.add(request(QUICK))
    engine.step()
    compiler.release()
    ends = ends_of(engine)
    for number, spec in ((slow, SLOW), (other, QUICK)):
        alone, its = serving()
        its.release()
        result = alone.generate(request(spec))
        assert ends[number].result.token_ids == result.token_ids
        assert ends[number].result.stats.denoiser_calls == result.stats.denoiser_calls


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (InvalidGrammarError("choice", "it is no good"), RequestError, "choice: it is no good"),
        (LimitError("takes over 10 s to compile"), RequestError, "takes over 10 s to compile"),
        (OverflowError("too far"), DlmError, "OverflowError"),
        (MemoryError(), DlmError, "MemoryError"),
        (RecursionError("deep"), DlmError, "RecursionError"),
    ],
)
@pytest.mark.parametrize("late", [False, True])
def test_an_error_of_the_compiler_ends_its_request_alone(serving, error, kind, message, late):
    engine, compiler = serving()
    doomed, fine = engine.add(request(SLOW)), engine.add(request(QUICK))
    if late:
        engine.step()
    compiler.held.set_exception(error)
    ends = ends_of(engine)
    assert type(ends[doomed].error) is kind
    assert message in str(ends[doomed].error)
    assert ends[fine].result.text == '"hi"'


def test_generate_raises_an_error_of_the_compiler_and_starts_no_request(serving):
    engine, compiler = serving()
    compiler.held.set_exception(LimitError("takes over 10 s to compile"))
    with pytest.raises(RequestError, match=r"request 1: takes over 10 s"):
        engine.generate([request(), request(SLOW)])
    assert not engine.busy


def test_a_waiting_request_that_is_cancelled_never_runs(serving):
    engine, compiler = serving()
    gone, kept = engine.add(request(SLOW)), engine.add(request(SLOW))
    engine.step()
    engine.cancel(gone)
    compiler.release()
    assert list(ends_of(engine)) == [kept]


def test_a_grammar_that_no_request_waits_for_any_more_is_not_compiled(serving):
    engine, compiler = serving()
    first, second = engine.add(request(SLOW)), engine.add(request(SLOW))
    engine.step()
    engine.cancel(first)
    engine.step()
    assert not compiler.held.cancelled()
    engine.cancel(second)
    engine.step()
    assert compiler.held.cancelled()
    assert not engine.busy


def test_too_few_max_tokens_are_an_error_once_the_grammar_is_compiled(serving):
    engine, compiler = serving()
    number = engine.add(Request(token_ids=PROMPT, constraint=SLOW, max_tokens=1))
    engine.step()
    compiler.release()
    error = ends_of(engine)[number].error
    assert isinstance(error, RequestError)
    assert "max_tokens is 1: the shortest answer takes" in str(error)


def test_requests_are_served_in_their_order(serving):
    engine, compiler = serving(slots=1)
    first, second, third = (engine.add(request(spec)) for spec in (QUICK, None, SLOW))
    fourth = engine.add(request(QUICK))
    compiler.release()
    assert list(ends_of(engine)) == [first, second, third, fourth]


def test_equal_specs_are_compiled_once(scripted, monkeypatch):
    engine = scripted("<turn|>")
    compiled = []
    submit = engine._compiler._workers.submit

    def counted(function, args, **more):
        compiled.append(args)
        return submit(function, args, **more)

    monkeypatch.setattr(engine._compiler._workers, "submit", counted)
    schema = {"type": "array", "items": {"type": "boolean"}, "maxItems": 2}
    same = [JsonSchema(schema), JsonSchema(dict(schema)), JsonSchema(str(schema).replace("'", '"'))]
    engine.generate([request(spec) for spec in same for _ in range(2)])
    assert len(compiled) == 1
    engine.generate(request(JsonSchema({**schema, "maxItems": 3})))
    assert len(compiled) == 2


def test_a_compiler_drops_the_grammar_that_was_not_used_for_longest(scripted):
    vocabulary = scripted("").vocabulary
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


def test_a_spec_whose_process_crashed_is_compiled_again(scripted, monkeypatch):
    """Another time there may be memory enough."""
    engine = scripted("", workers=Workers())
    submit = engine._compiler._workers.submit

    def crashing(function, args, **more):
        monkeypatch.undo()
        return submit(tasks.leave, (3,), seconds=5.0)

    monkeypatch.setattr(engine._compiler._workers, "submit", crashing)
    with pytest.raises(CrashError, match="ended with 3"):
        engine.compile(QUICK).result()
    assert engine.compile(QUICK).result() is engine.compile(QUICK).result()
    engine._compiler._workers.close()


def test_a_spec_that_cannot_be_compiled_is_compiled_once(scripted):
    engine = scripted("")
    wrong = Grammar("root ::= nowhere")
    submitted = {id(engine.compile(wrong)) for _ in range(3)}
    assert len(submitted) == 1
    with pytest.raises(InvalidGrammarError, match="nowhere"):
        engine.compile(wrong).result()


class Refusing(Ledger):
    """A cache that says that a long request fits, and has no memory for it."""

    def reserve(self, slot, tokens):
        if tokens > 100:
            raise CacheFullError("no page is left")


def test_a_request_that_its_cache_refuses_ends_alone_and_takes_no_slot(engine_of):
    engine = engine_of(Random(V, 1), slots=1, cache=Refusing(1))
    long = engine.add(Request(token_ids=PROMPT, max_tokens=200))
    short = engine.add(Request(token_ids=PROMPT, max_tokens=20))
    ends = ends_of(engine)
    assert "no page is left" in str(ends[long].error)
    assert len(ends[short].result.token_ids) <= 20
