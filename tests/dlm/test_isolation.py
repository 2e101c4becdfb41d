"""What fails in one request ends that request: the others go on, and every event is told."""

import gc
import traceback
import weakref
from collections import Counter
from dataclasses import replace
from functools import cache

import pytest
from doubles import Dreamer, Scripted
from specs import Broken, checked
from values import PROMPT, V

import dlm.loop.denoise
import dlm.loop.diffusion
from dlm import Choice, Committed, DlmError, Draft, Failed, Finished, Policy, Regex, Request
from dlm.grammar import GrammarError, Guidance, Unfinished
from dlm.logits.distributions import TokenDistributions

FINE = Regex("[0-9]{3,9}")
DOOMED = Choice(["mage of the north", "mage of the south"])
LIMITS = {"compile_seconds": 0.5, "check_seconds": 0.5}
ERRORS = [
    OverflowError("too far"),
    RecursionError("deep"),
    MemoryError(),
    KeyError("x"),
    GrammarError("x"),
]


class Served(Policy):
    """Serves the specs of tests too."""

    def check(self, spec) -> None:
        pass


@pytest.fixture
def engine(engine_of):
    return engine_of(Dreamer(V, 3, canvas_length=4), policy=Served(**LIMITS), slots=3)


def asks(spec, seed=0, max_tokens=14):
    return Request(token_ids=PROMPT, constraint=spec, seed=seed, max_tokens=max_tokens)


class Faulty:
    """`inner`, whose `method` raises at the call number `at`."""

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
    """Three requests, of which one is sabotaged as soon as it runs: their events."""
    numbers = [
        engine.add(asks(FINE, 1)),
        engine.add(asks(spec, 2, max_tokens=24)),
        engine.add(asks(None, 3)),
    ]
    events, done = [], False
    while engine.busy:
        events += engine.step()
        running = {s.number: s for s in engine._scheduler.running.values()}
        if numbers[1] in running and not done:
            done = True
            sabotage(engine, running[numbers[1]])
    return [[event for event in events if event.request == number] for number in numbers]


def told(events):
    """What a reader is told, without the times of it."""
    return [
        (event.result.token_ids, event.result.text) if isinstance(event, Finished) else event
        for event in events
    ]


@cache
def alone_of(engine_of, spec, seed):
    """What is told of a request that nothing runs beside."""
    engine, events = engine_of(Dreamer(V, 3, canvas_length=4)), []
    engine.add(asks(spec, seed))
    while engine.busy:
        events += engine.step()
    return events


def ended_alone(engine, engine_of, events, said):
    """The second request has failed, and the others are as if it had never been there."""
    first, doomed, third = events
    ends = Counter(type(event) for event in doomed if isinstance(event, Finished | Failed))
    assert ends == {Failed: 1}
    assert isinstance(doomed[-1], Failed)
    assert isinstance(doomed[-1].error, DlmError)
    assert said in str(doomed[-1].error)
    for mine, spec, seed in ((first, FINE, 1), (third, None, 3)):
        alone = alone_of(engine_of, spec, seed)
        assert [type(event) for event in mine] == [type(event) for event in alone]
        assert told(mine)[-1] == told(alone)[-1]
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

    said = "x" if isinstance(error, GrammarError) else type(error).__name__
    ended_alone(engine, engine_of, run(engine, sabotage), said)


def test_a_failure_that_is_kept_keeps_no_logits(engine, monkeypatch):
    """Its trace leads through functions that have them at hand: 134 MB for each canvas."""
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


def test_an_error_of_a_rollback_ends_its_request_alone(engine, engine_of):
    never = checked({"type": "array", "items": {"const": 7}, "minItems": 2, "uniqueItems": True})

    def sabotage(engine, doomed):
        doomed.constraint = Faulty(doomed.constraint, "rollback", OverflowError("too far"))

    ended_alone(engine, engine_of, run(engine, sabotage, never), "OverflowError: too far")


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
    said = "x" if isinstance(error, GrammarError) else type(error).__name__
    ended_alone(engine, engine_of, events, said)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"rows": [9999] * 4}, "ValueError: rows are 0 to 2047, or ~token down to"),
        ({"guess": []}, "ValueError: a guess of 0 tokens for 4 positions"),
        ({"guess": None}, "Error"),
        ({"suspect": "x"}, "Error"),
    ],
)
def test_a_constraint_that_talks_nonsense_ends_its_request_alone(engine, engine_of, change, said):
    def sabotage(engine, doomed):
        guide = doomed.constraint.guide

        class Wrong(Faulty):
            def guide(self, scores, fixed):
                read = guide(scores, fixed)
                fields = {name: getattr(read, name) for name in Guidance.__dataclass_fields__}
                return Guidance(**fields | change)

        doomed.constraint = Wrong(doomed.constraint, "", None)

    ended_alone(engine, engine_of, run(engine, sabotage), said)


FAULTS = {
    "OverflowError": "OverflowError: too far",
    "MemoryError": "MemoryError",
    "RecursionError": "RecursionError",
    "InvalidGrammarError": "it is no good",
}
APART = {"spin": "takes over 0.5 s", "leave": "ended with 3", "MemoryError": "of memory"}


@pytest.mark.parametrize("fault", [*FAULTS, "spin", "leave"])
def test_an_error_of_a_compile_ends_its_request_alone(engine, engine_of, fault):
    events = run(engine, spec=Broken("rules", fault))
    ended_alone(engine, engine_of, events, (FAULTS | APART)[fault])


@pytest.mark.parametrize("fault", [*FAULTS, "spin", "leave"])
def test_an_error_of_a_check_ends_its_request_alone(engine, engine_of, fault):
    events = run(engine, spec=Broken("value", fault, only_at_the_end=True))
    ended_alone(engine, engine_of, events, (FAULTS | APART)[fault])
    assert not any(isinstance(event, Committed) for event in events[1])


@pytest.mark.parametrize("fault", FAULTS)
def test_an_error_of_what_reads_a_value_ends_its_request_alone(engine, engine_of, fault):
    events = run(engine, spec=Broken("value", fault))
    ended_alone(engine, engine_of, events, FAULTS[fault])


@pytest.mark.parametrize("part", ["key", "calls"])
def test_a_spec_that_cannot_even_be_asked_is_refused_when_it_is_added(engine, part):
    fine = engine.add(asks(FINE))
    with pytest.raises(DlmError, match="OverflowError: too far"):
        engine.add(asks(Broken(part)))
    ends = [event for _ in range(99) for event in engine.step() if isinstance(event, Finished)]
    assert [end.request for end in ends] == [fine]


def test_an_error_of_the_model_loses_no_event(engine_of):
    """It is everybody's: the step raises, and the next one tells what it has not told."""
    engine = engine_of(Scripted(V, len(PROMPT), [106]), policy=Served(**LIMITS))
    doomed = engine.add(asks(Broken("rules")))
    while not engine._scheduler._waiting[0].compiling.done():
        pass
    engine.add(asks(None))
    denoise, engine.model.denoise = engine.model.denoise, None
    with pytest.raises(TypeError):
        engine.step()
    engine.model.denoise = denoise
    assert [event.request for event in engine.step() if isinstance(event, Failed)] == [doomed]


class Hesitant:
    """A constraint that needs several looks for each step."""

    def __init__(self, inner, looks):
        self._inner, self._looks, self.raised, self.works = inner, looks, 0, []

    def __getattr__(self, name):
        return getattr(self._inner, name)

    def guide(self, scores, fixed):
        self.works.append(self.work)
        self.raised += 1
        if self.raised % (self._looks + 1):
            raise Unfinished("more work")
        return self._inner.guide(scores, fixed)


@pytest.mark.parametrize("looks", [1, 5])
def test_a_look_that_takes_several_steps_changes_nothing_but_the_time(engine_of, looks):
    """Neither for the request nor for those beside it: same drafts, same texts, same counts, but
    for the passes that are made again, which count."""

    def outcome(looks):
        engine, found = engine_of(Dreamer(V, 3, canvas_length=4), slots=3), []

        def sabotage(engine, doomed):
            found.append(Hesitant(doomed.constraint, looks))
            doomed.constraint = found[0]

        events = run(engine, sabotage)
        stats = [e.result.stats for each in events for e in each if isinstance(e, Finished)]
        counts = [(s.canvases, s.repairs, s.pins, s.rollbacks) for s in stats]
        assert found[0].raised > looks
        texts = [
            [replace(one, passes=0) if isinstance(one, Draft) else one for one in told(each)]
            for each in events
        ]
        again = found[0].raised // (looks + 1) * looks
        return (texts, counts), [s.denoiser_calls for s in stats], again

    slow, passes, again = outcome(looks)
    quick, once, _ = outcome(0)
    assert slow == quick
    assert len(once) == 3
    assert again > 0
    assert sum(passes) == sum(once) + again


def test_the_work_of_a_step_is_shared_by_those_who_run(engine_of):
    engine, found = (
        engine_of(Dreamer(V, 3, canvas_length=4), policy=Policy(step_work=900), slots=3),
        [],
    )

    def sabotage(engine, doomed):
        found.append(Hesitant(doomed.constraint, 0))
        doomed.constraint = found[0]

    run(engine, sabotage)
    assert set(found[0].works) <= {300, 450, 900}
    assert found[0].works[0] == 300


@pytest.mark.parametrize("beside", [0, 2])
def test_a_look_that_never_ends_is_given_up_after_so_much_work(engine_of, beside):
    """However much of that each step gave it: the limit does not depend on who runs beside it."""
    engine = engine_of(
        Dreamer(V, 3, canvas_length=4),
        policy=Policy(step_work=900, max_unfinished_steps=10),
        slots=3,
    )
    doomed = engine.add(asks(DOOMED))
    for seed in range(beside):
        engine.add(asks(None, seed, max_tokens=400))
    while not engine._scheduler.running or len(engine._scheduler.running) < beside + 1:
        engine.step()
    sequence = next(s for s in engine._scheduler.running.values() if s.number == doomed)
    sequence.constraint = hesitant = Hesitant(sequence.constraint, 1 << 40)
    sequence.canvas.work = 0  # its own look may not have been finished either
    end = None
    while end is None:
        end = next((e for e in engine.step() if isinstance(e, Failed)), None)
    assert end.request == doomed
    assert "takes over 9000 units of work to match a canvas" in str(end.error)
    assert 9000 < sum(hesitant.works) <= 9900
