"""A failure in one request ends that request alone; the others lose no event."""

import gc
import traceback
import weakref
from collections import Counter
from dataclasses import replace
from functools import cache

import pytest
from doubles import Dreamer
from driven import ends_of, events_of
from specs import Broken, checked
from values import PROMPT, V

import dlm.loop.denoise
import dlm.loop.diffusion
from dlm import (
    Autoregressive,
    Choice,
    Committed,
    DlmError,
    Draft,
    Failed,
    Finished,
    Policy,
    Regex,
    Request,
)
from dlm.grammar import GrammarError, Guidance, Unfinished
from dlm.logits.distributions import TokenDistributions

FINE = Regex("[0-9]{3,9}")
DOOMED = Choice(["mage of the north", "mage of the south"])
NEVER = checked({"type": "array", "items": {"const": 7}, "minItems": 2, "uniqueItems": True})
LIMITS = {"compile_seconds": 0.5, "check_seconds": 0.5}
ERRORS = [
    OverflowError("too far"),
    RecursionError("deep"),
    MemoryError(),
    KeyError("x"),
    GrammarError("x"),
]


class Served(Policy):
    """A policy that serves every spec."""

    def check(self, spec) -> None:
        pass


@pytest.fixture
def engine(engine_of):
    return engine_of(Dreamer(V, 3, canvas_length=4), policy=Served(**LIMITS), slots=3)


def request(spec, seed=0, max_tokens=14):
    return Request(token_ids=PROMPT, constraint=spec, seed=seed, max_tokens=max_tokens)


class Faulty:
    """Wrapper of `inner` whose `method` raises an error from call number `at` on."""

    def __init__(self, inner, method, error, at=1):
        self._inner, self._method, self._error, self._left = inner, method, error, at

    def __getattr__(self, name):
        found = getattr(self._inner, name)
        if name != self._method:
            return found

        def called(*args, **more):
            self._left -= 1
            if self._left <= 0:
                raise self._error
            return found(*args, **more)

        return called


def run(engine, sabotage=lambda engine, doomed: None, spec=DOOMED):
    """Sabotage the second of three requests as soon as it runs; return the events of each."""
    for compiled in (FINE, DOOMED):
        engine._compiler.compile(compiled)  # so that all three run from the first pass on
    numbers = [
        engine.add(request(FINE, 1)),
        engine.add(request(spec, 2, max_tokens=24)),
        engine.add(request(None, 3)),
    ]
    events, done = [], False
    while engine.busy:
        events += engine.step()
        running = {s.number: s for s in engine._scheduler.running.values()}
        if numbers[1] in running and not done:
            done = True
            sabotage(engine, running[numbers[1]])
    return [[event for event in events if event.request == number] for number in numbers]


def contents(events):
    """Return events without their times."""
    return [
        (event.result.token_ids, event.result.text) if isinstance(event, Finished) else event
        for event in events
    ]


@cache
def events_alone(engine_of, spec, seed):
    """Return the events of a request that runs alone."""
    engine = engine_of(Dreamer(V, 3, canvas_length=4))
    engine.add(request(spec, seed))
    return events_of(engine)


def assert_ended_alone(engine, engine_of, events, message):
    """Check that the second request failed and that the others are as without it."""
    first, doomed, third = events
    ends = Counter(type(event) for event in doomed if isinstance(event, Finished | Failed))
    assert ends == {Failed: 1}
    assert isinstance(doomed[-1], Failed)
    assert isinstance(doomed[-1].error, DlmError)
    assert message in str(doomed[-1].error)
    for mine, spec, seed in ((first, FINE, 1), (third, None, 3)):
        alone = events_alone(engine_of, spec, seed)
        assert [type(event) for event in mine] == [type(event) for event in alone]
        assert contents(mine)[-1] == contents(alone)[-1]
        assert isinstance(mine[-1], Finished)
    assert sorted(engine._scheduler._free) == [0, 1, 2]
    assert engine._cache.tokens == [[], [], []]


@pytest.mark.parametrize(
    ("part", "method", "at", "error"),
    [
        *(("constraint", "guide", 1, error) for error in ERRORS),
        ("constraint", "guide", 3, ERRORS[0]),
        ("constraint", "commit", 1, ERRORS[1]),
        ("constraint", "commit", 2, ERRORS[4]),
        ("constraint", "rollback", 1, ERRORS[0]),
        ("stream", "emit", 1, ERRORS[2]),
        ("stream", "split", 1, ERRORS[3]),
        ("stream", "text", 1, ERRORS[0]),
    ],
)
def test_an_error_of_a_constraint_or_a_stream_ends_its_request_alone(
    engine, engine_of, part, method, at, error
):
    def sabotage(engine, doomed):
        setattr(doomed, part, Faulty(getattr(doomed, part), method, error, at))

    message = "x" if isinstance(error, GrammarError) else type(error).__name__
    events = run(engine, sabotage, NEVER if method == "rollback" else DOOMED)
    assert_ended_alone(engine, engine_of, events, message)


def test_the_traceback_of_a_failure_holds_no_logits(engine, monkeypatch):
    """Logits of a canvas take 134 MB, and functions in the traceback have them as variables."""
    alive: list[weakref.ref] = []

    class Watched(TokenDistributions):
        def __init__(self, *args):
            super().__init__(*args)
            alive.append(weakref.ref(self))

    def sabotage(engine, doomed):
        doomed.constraint = Faulty(doomed.constraint, "guide", KeyError("x"), 1)

    monkeypatch.setattr(dlm.loop.denoise, "TokenDistributions", Watched)
    kept = run(engine, sabotage)[1][-1]
    gc.collect()
    assert len(alive) > 2
    assert [ref for ref in alive if ref() is not None] == []
    assert "in _guide" in "".join(traceback.format_exception(kept.error))


@pytest.mark.parametrize("error", ERRORS[-2:], ids=lambda error: type(error).__name__)
def test_an_error_while_a_constraint_is_made_ends_its_request_alone(
    engine, engine_of, monkeypatch, error
):
    original = dlm.loop.diffusion.Frontier

    def made(compiled, budget, *args, **more):
        if budget == 24:
            raise error
        return original(compiled, budget, *args, **more)

    monkeypatch.setattr(dlm.loop.diffusion, "Frontier", made)
    events = run(engine)
    monkeypatch.undo()
    message = "x" if isinstance(error, GrammarError) else type(error).__name__
    assert_ended_alone(engine, engine_of, events, message)


def test_an_error_while_a_request_begins_ends_it_alone(engine, engine_of, monkeypatch):
    start = engine._decoder._start

    def failing(sequence):
        if sequence.request.max_tokens == 24:
            raise OSError("no canvas")
        start(sequence)

    monkeypatch.setattr(engine._decoder, "_start", failing)
    events = run(engine)
    assert [type(event) for event in events[1]] == [Failed]
    assert_ended_alone(engine, engine_of, events, "OSError: no canvas")


def test_events_from_before_an_error_of_the_same_pass_are_returned(engine):
    def sabotage(engine, doomed):
        doomed.constraint = Faulty(doomed.constraint, "commit", KeyError("x"))

    doomed = run(engine, sabotage)[1]
    assert [type(event) for event in doomed[-2:]] == [Draft, Failed]
    assert doomed[-2].step == sum(isinstance(event, Draft) for event in doomed)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": [9999] * 4}, "ValueError: rows are 0 to 2047, or ~token down to"),
        ({"guess": []}, "ValueError: a guess of 0 tokens for 4 positions"),
        ({"guess": None}, "Error"),
        ({"suspect": "x"}, "Error"),
    ],
)
def test_impossible_guidance_of_a_constraint_ends_its_request_alone(
    engine, engine_of, change, message
):
    def sabotage(engine, doomed):
        guide = doomed.constraint.guide

        class Wrong(Faulty):
            def guide(self, scores, fixed):
                read = guide(scores, fixed)
                fields = {name: getattr(read, name) for name in Guidance.__dataclass_fields__}
                return Guidance(**fields | change)

        doomed.constraint = Wrong(doomed.constraint, "", None)

    assert_ended_alone(engine, engine_of, run(engine, sabotage), message)


FAULTS = {
    "OverflowError": "OverflowError: too far",
    "MemoryError": "MemoryError",
    "RecursionError": "RecursionError",
    "InvalidGrammarError": "it is no good",
}
IN_A_PROCESS = {"spin": "takes over 0.5 s", "leave": "ended with 3", "MemoryError": "of memory"}


@pytest.mark.parametrize("fault", [*FAULTS, "spin", "leave"])
@pytest.mark.parametrize("part", ["rules", "value"])
def test_an_error_of_a_compile_or_a_check_ends_its_request_alone(engine, engine_of, part, fault):
    events = run(engine, spec=Broken(part, fault, only_at_the_end=part == "value"))
    assert_ended_alone(engine, engine_of, events, (FAULTS | IN_A_PROCESS)[fault])
    assert not any(isinstance(event, Committed) for event in events[1])


@pytest.mark.parametrize("fault", FAULTS)
def test_an_error_while_a_value_is_read_ends_its_request_alone(engine, engine_of, fault):
    events = run(engine, spec=Broken("value", fault))
    assert_ended_alone(engine, engine_of, events, FAULTS[fault])


@pytest.mark.parametrize("part", ["key", "calls"])
def test_a_spec_whose_properties_raise_is_refused_when_it_is_added(engine, part):
    fine = engine.add(request(FINE))
    with pytest.raises(DlmError, match="OverflowError: too far"):
        engine.add(request(Broken(part)))
    assert list(ends_of(engine)) == [fine]


def test_an_error_of_the_model_loses_no_event(scripted):
    """The step raises, and the next step returns the events that are left."""
    engine = scripted("<turn|>", policy=Served(**LIMITS))
    doomed = engine.add(request(Broken("rules")))
    while not engine._scheduler._waiting[0].compiling.done():
        pass
    engine.add(request(None))
    denoise, engine.model.denoise = engine.model.denoise, None
    with pytest.raises(TypeError):
        engine.step()
    engine.model.denoise = denoise
    assert [event.request for event in engine.step() if isinstance(event, Failed)] == [doomed]


class Hesitant:
    """Constraint of a sequence whose guidance is finished only after calls in `unfinished` other
    passes."""

    def __init__(self, sequence, unfinished):
        self._inner, self._stats, self._unfinished = sequence.constraint, sequence.stats, unfinished
        self.works, self.passes = [], set()

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def guide(self, scores, fixed):
        self.works.append(self.work)
        self.passes.add(self._stats.denoiser_calls)
        if len(self.passes) % (self._unfinished + 1):
            raise Unfinished("more work")
        return self._inner.guide(scores, fixed)


@pytest.mark.parametrize("unfinished", [1, 5])
def test_guidance_that_takes_several_steps_changes_only_the_number_of_passes(engine_of, unfinished):
    """Drafts, texts and counts are the same, for the request and for those beside it. Only the
    passes that are repeated count in addition."""

    def outcome(unfinished):
        engine, found = engine_of(Dreamer(V, 3, canvas_length=4), slots=3), []

        def sabotage(engine, doomed):
            found.append(Hesitant(doomed, unfinished))
            doomed.constraint = found[0]

        events = run(engine, sabotage)
        stats = [e.result.stats for each in events for e in each if isinstance(e, Finished)]
        counts = [(s.canvases, s.repairs, s.pins, s.rollbacks) for s in stats]
        assert len(found[0].passes) > unfinished
        texts = [
            [replace(one, passes=0) if isinstance(one, Draft) else one for one in contents(each)]
            for each in events
        ]
        again = len(found[0].passes) // (unfinished + 1) * unfinished
        return (texts, counts), [s.denoiser_calls for s in stats], again

    slow, passes, again = outcome(unfinished)
    quick, once, _ = outcome(0)
    assert slow == quick
    assert len(once) == 3
    assert again > 0
    assert sum(passes) == sum(once) + again


def test_running_requests_share_the_work_of_a_step(engine_of):
    engine = engine_of(Dreamer(V, 3, canvas_length=4), policy=Policy(step_work=900), slots=3)
    found = []

    def sabotage(engine, doomed):
        found.append(Hesitant(doomed, 0))
        doomed.constraint = found[0]

    run(engine, sabotage)
    assert set(found[0].works) <= {300, 450, 900}
    assert found[0].works[0] == 300


def test_a_grammar_that_needs_more_than_its_share_gets_in_the_same_pass_what_others_leave(
    engine_of,
):
    """Drafts, which count passes, are those of a grammar that does not need more."""

    class Greedy(Hesitant):
        def guide(self, scores, fixed):
            if self._stats.denoiser_calls not in self.passes:
                self.passes.add(self._stats.denoiser_calls)
                raise Unfinished("more work")
            return super().guide(scores, fixed)

    def events(kind):
        engine, found = engine_of(Dreamer(V, 3, canvas_length=4), slots=3), []

        def sabotage(engine, doomed):
            found.append(kind(doomed, 0))
            doomed.constraint = found[0]

        return [contents(each) for each in run(engine, sabotage)], found[0].works

    greedy, works = events(Greedy)
    plain, _ = events(Hesitant)
    assert greedy == plain
    assert min(works) > 1


@pytest.mark.parametrize("drafted", [False, True])
def test_a_grammar_that_takes_too_much_work_in_all_fails_its_request_alone(engine_of, drafted):
    """Each of its queries is within the limits, and together they are not."""
    more = {"decoding": Autoregressive()} if drafted else {}
    policy = Policy(request_work=20, token_work=1)
    engine = engine_of(Dreamer(V, 3, canvas_length=4), policy=policy, slots=2, **more)
    doomed, other = engine.add(request(Regex("([a-z]{3,9} )+"), max_tokens=40)), request(None)
    other = engine.add(other)
    ends = ends_of(engine)
    message = r"over 60 units of work for one answer.*Policy\.request_work.*for each of 40 tokens"
    with pytest.raises(DlmError, match=message):
        raise ends[doomed].error
    assert isinstance(ends[other], Finished)


@pytest.mark.parametrize("beside", [0, 2])
def test_guidance_that_never_finishes_fails_after_a_limit_of_work(engine_of, beside):
    """The limit does not depend on the requests beside it, which share the work of each step."""
    engine = engine_of(
        Dreamer(V, 3, canvas_length=4),
        policy=Policy(step_work=900, max_unfinished_steps=10),
        slots=3,
    )
    doomed = engine.add(request(DOOMED))
    for seed in range(beside):
        engine.add(request(None, seed, max_tokens=400))
    while not engine._scheduler.running or len(engine._scheduler.running) < beside + 1:
        engine.step()
    sequence = next(s for s in engine._scheduler.running.values() if s.number == doomed)
    sequence.constraint = hesitant = Hesitant(sequence, 1 << 40)
    sequence.canvas.work = 0  # its own guidance may have been unfinished
    end = None
    while end is None:
        end = next((e for e in engine.step() if isinstance(e, Failed)), None)
    assert end.request == doomed
    assert "takes over 9000 units of work to match a canvas" in str(end.error)
    assert 9000 < sum(hesitant.works) <= 9900
