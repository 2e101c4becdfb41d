"""Two groups take turns: while the model reads one, the constraints of the other are asked."""

import sys
import threading

import pytest
from doubles import Dreamer
from values import PROMPT, V
from waiting import PATIENCE

from dlm import Choice, Draft, Failed, Finished, Policy, Regex, Request
from dlm.grammar.canvas.workers import Task
from dlm.pipeline import ALTERNATE

SPECS = [None, Regex("[0-9]{3,9}"), Choice(["north", "south"]), Regex("[a-f]{3,20}"), None]


def requests(count):
    return [
        Request(
            token_ids=[*PROMPT, *PROMPT[:1] * i],
            constraint=SPECS[i % len(SPECS)],
            seed=i,
            max_tokens=12 + i,
        )
        for i in range(count)
    ]


def dreamer(**more):
    return Dreamer(V, 3, canvas_length=4, **more)


def admitted(engine, count):
    """Requests whose grammars are compiled: the next step finds all of them ready."""
    numbers = [engine.add(request) for request in requests(count)]
    for number in numbers:
        engine._scheduler.prepare(number)
    return numbers


def run(engine, numbers):
    """The ends of requests, by number."""
    ends = {}
    while engine.busy:
        for event in engine.step():
            if isinstance(event, Finished | Failed):
                ends[event.request] = event
    return [ends[number] for number in numbers]


@pytest.mark.parametrize("count", [ALTERNATE - 1, ALTERNATE, 2 * ALTERNATE + 1])
def test_a_request_gives_what_it_gives_alone_however_many_run(engine_of, count):
    engine = engine_of(dreamer(), slots=count)
    together = engine.generate(requests(count))
    for request, result in zip(requests(count), together, strict=True):
        alone = engine_of(dreamer(), slots=1).generate(request)
        assert result.token_ids == alone.token_ids
        assert result.stats.denoiser_calls == alone.stats.denoiser_calls


class Watched(Dreamer):
    """Notes which slots a pass reads; one in a thread of its own waits for a constraint's turn."""

    def __init__(self):
        super().__init__(V, 3, canvas_length=4)
        self.passes, self.guided, self.overlaps = [], threading.Event(), 0
        self.intervals = set()  # for which a constraint that is asked keeps the interpreter

    def denoise(self, canvas, soft_embedding, cache, slots, encode):
        self.passes.append(list(slots))
        if threading.current_thread() is not threading.main_thread():
            assert self.guided.wait(PATIENCE)
            self.overlaps += 1
        return super().denoise(canvas, soft_embedding, cache, slots, encode)


def watched(engine_of, slots):
    """An engine with as many requests as slots, all of them running."""
    model = Watched()
    engine = engine_of(model, slots=slots)
    numbers = admitted(engine, slots)
    for one in engine._scheduler._waiting:
        (sequence,) = one.sequences
        ask = sequence.constraint.guide

        def guide(*args, ask=ask):
            model.intervals.add(sys.getswitchinterval())
            model.guided.set()
            return ask(*args)

        sequence.constraint.guide = guide
    return model, engine, numbers


def test_constraints_are_asked_while_the_model_reads_the_other_group(engine_of):
    model, engine, numbers = watched(engine_of, 2 * ALTERNATE)
    ends = run(engine, numbers)
    assert all(isinstance(end, Finished) for end in ends)
    assert model.overlaps > 1
    first, second = (set(slots) for slots in model.passes[:2])
    assert len(first) == len(second) == ALTERNATE
    assert not first & second


def test_a_pass_that_is_under_way_gets_the_interpreter_soon(engine_of):
    before = sys.getswitchinterval()
    model, engine, numbers = watched(engine_of, 2 * ALTERNATE)
    run(engine, numbers)
    assert min(model.intervals) <= before / 10
    assert sys.getswitchinterval() == before


def test_few_canvases_stay_together(engine_of):
    model, engine, numbers = watched(engine_of, ALTERNATE - 1)
    run(engine, numbers)
    assert model.overlaps == 0
    assert len(model.passes[0]) == ALTERNATE - 1


def test_what_joins_late_finds_a_group(engine_of):
    engine = engine_of(dreamer(), slots=2 * ALTERNATE)
    numbers = admitted(engine, ALTERNATE)
    engine.step()
    engine.step()
    late = requests(2 * ALTERNATE)[ALTERNATE:]
    numbers += [engine.add(request) for request in late]
    assert all(isinstance(end, Finished) for end in run(engine, numbers))


def test_an_answer_that_is_being_checked_holds_up_no_group(engine_of):
    """Half of all slots wait for a check: the others make a group, or go on together."""
    engine = engine_of(dreamer(), slots=ALTERNATE)
    numbers = admitted(engine, ALTERNATE)
    engine.step()
    engine.step()
    running = list(engine._scheduler.running.values())
    for sequence in running[: ALTERNATE // 2]:
        sequence.checking = Task()  # which is not done
    rest = {sequence.number for sequence in running[ALTERNATE // 2 :]}
    ended = set()
    for _ in range(500):
        ended |= {e.request for e in engine.step() if isinstance(e, Finished)}
        if ended == rest:
            break
    assert ended == rest
    assert set(numbers) > rest
    for sequence in running[: ALTERNATE // 2]:
        engine.cancel(sequence.number)
        assert sequence.checking.cancelled()


def test_a_request_that_is_cancelled_between_its_pass_and_its_turn_leaves_no_trace(engine_of):
    engine = engine_of(dreamer(), slots=ALTERNATE)
    numbers = admitted(engine, ALTERNATE)
    engine.step()
    gone = next(iter(engine._pipeline._reading.turn.canvases.values())).number
    engine.cancel(gone)
    another = engine.add(requests(ALTERNATE + 1)[-1])
    stay = [number for number in numbers if number != gone]
    ends = run(engine, [*stay, another])
    for end, i in zip(ends, [*stay, ALTERNATE], strict=True):
        alone = engine_of(dreamer(), slots=1).generate(requests(ALTERNATE + 1)[i])
        assert end.result.token_ids == alone.token_ids


def test_an_error_of_the_model_beside_a_group_s_turn_loses_nothing(engine_of):
    model = dreamer()
    engine = engine_of(model, slots=ALTERNATE, policy=Policy())
    numbers = admitted(engine, ALTERNATE)
    engine.step()
    original = model.denoise

    def denoise(*args):
        raise MemoryError("the device is full")

    model.denoise = denoise
    with pytest.raises(MemoryError):
        engine.step()
    model.denoise = original
    assert {event.request for event in engine.step() if isinstance(event, Draft)} >= {0, 1}
    for end, request in zip(run(engine, numbers), requests(ALTERNATE), strict=True):
        assert end.result.token_ids == engine_of(dreamer()).generate(request).token_ids
