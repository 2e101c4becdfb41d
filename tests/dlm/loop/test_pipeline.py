"""Canvases that are ready share a pass, and the result of each does not depend on the others."""

import pytest
from doubles import Dreamer
from driven import ends_of
from values import PROMPT, V

from dlm import Choice, Draft, Finished, Policy, Regex, Request
from dlm.grammar import Task

SPECS = [None, Regex("[0-9]{3,9}"), Choice(["north", "south"]), Regex("[a-f]{3,20}"), None]
SLOTS = 4


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
        engine.await_constraint(number)
    return numbers


def run(engine, numbers):
    """The ends of requests, by number."""
    ends = ends_of(engine)
    return [ends[number] for number in numbers]


@pytest.mark.parametrize("count", [3, 4, 9])
def test_a_request_gives_what_it_gives_alone_however_many_run(engine_of, count):
    engine = engine_of(dreamer(), slots=count)
    together = engine.generate(requests(count))
    for request, result in zip(requests(count), together, strict=True):
        alone = engine_of(dreamer(), slots=1).generate(request)
        assert result.token_ids == alone.token_ids
        assert result.stats.denoiser_calls == alone.stats.denoiser_calls


class Watched(Dreamer):
    """Notes which slots a pass reads."""

    def __init__(self):
        super().__init__(V, 3, canvas_length=4)
        self.passes = []

    def denoise(self, canvas, soft_embedding, cache, slots, encode):
        self.passes.append(list(slots))
        return super().denoise(canvas, soft_embedding, cache, slots, encode)


@pytest.mark.parametrize("count", [1, 4, 9])
def test_all_canvases_share_a_pass(engine_of, count):
    model = Watched()
    engine = engine_of(model, slots=count)
    ends = run(engine, admitted(engine, count))
    assert all(isinstance(end, Finished) for end in ends)
    assert sorted(model.passes[0]) == [*range(count)]
    assert len(model.passes) == max(end.result.stats.denoiser_calls for end in ends)


def test_what_joins_late_joins_the_pass(engine_of):
    engine = engine_of(dreamer(), slots=2 * SLOTS)
    numbers = admitted(engine, SLOTS)
    engine.step()
    engine.step()
    late = requests(2 * SLOTS)[SLOTS:]
    numbers += [engine.add(request) for request in late]
    assert all(isinstance(end, Finished) for end in run(engine, numbers))


def test_an_answer_that_is_being_checked_holds_up_nobody(engine_of):
    """Half of all slots wait for a check; the others go on."""
    engine = engine_of(dreamer(), slots=SLOTS)
    numbers = admitted(engine, SLOTS)
    engine.step()
    engine.step()
    running = list(engine._scheduler.running.values())
    for sequence in running[: SLOTS // 2]:
        sequence.checking = Task()  # which is not done
    rest = {sequence.number for sequence in running[SLOTS // 2 :]}
    ended = set()
    for _ in range(500):
        ended |= {e.request for e in engine.step() if isinstance(e, Finished)}
        if ended == rest:
            break
    assert ended == rest
    assert set(numbers) > rest
    for sequence in running[: SLOTS // 2]:
        engine.cancel(sequence.number)
        assert sequence.checking.cancelled()


def test_a_request_that_is_cancelled_leaves_no_trace(engine_of):
    engine = engine_of(dreamer(), slots=SLOTS)
    numbers = admitted(engine, SLOTS)
    engine.step()
    gone = numbers.pop(1)
    engine.cancel(gone)
    another = engine.add(requests(SLOTS + 1)[-1])
    ends = run(engine, [*numbers, another])
    for end, i in zip(ends, [0, 2, 3, SLOTS], strict=True):
        alone = engine_of(dreamer(), slots=1).generate(requests(SLOTS + 1)[i])
        assert end.result.token_ids == alone.token_ids


def test_an_error_of_the_model_loses_nothing(engine_of):
    model = dreamer()
    engine = engine_of(model, slots=SLOTS, policy=Policy())
    numbers = admitted(engine, SLOTS)
    engine.step()
    original = model.denoise

    def denoise(*args):
        raise MemoryError("the device is full")

    model.denoise = denoise
    with pytest.raises(MemoryError):
        engine.step()
    model.denoise = original
    assert {event.request for event in engine.step() if isinstance(event, Draft)} >= {0, 1}
    for end, request in zip(run(engine, numbers), requests(SLOTS), strict=True):
        assert end.result.token_ids == engine_of(dreamer()).generate(request).token_ids
