"""Warm-up of an engine: later requests wait for no capture of a CUDA graph."""

import argparse
import sys
from dataclasses import replace

import pytest
import torch
from doubles import Scripted
from values import PROMPT

from dlm import ChoiceQuestion, DlmError, Engine, JsonObject, Label, Policy, Request, engine_loading
from dlm.cli import serve
from dlm.cli.options import add_engine_options, loading_of
from dlm.kernels.attention import Launch, key_counts
from dlm.kernels.paging import Segment
from dlm.loading import Loading
from dlm.models import cache as cache_module
from dlm.models.family import Loaded
from dlm.models.graphs import Captured, PassGraphs
from dlm.warm_up import warm_up_requests

SLOTS = 3


def launch(paging, window, *_):
    """Return a launch like a kernel's, with keys split by the longest context."""
    longest = max(one.position + one.tokens for one in paging.segments)
    splits = max(1, (min(longest, window or longest) // key_counts()[1]).bit_length())
    return Launch(len(paging.segments), splits, 0, ())


class Captures:
    """Captures whose replays compute the pass again from the captured memory; `count` of them."""

    def __init__(self):
        self.count = 0

    def __call__(self, run):
        self.count += 1
        inner, x, plan = run.args
        states = run()

        def replay():
            paging = {
                kind: one._replace(segments=tuple(Segment(*row) for row in one.numbers.T.tolist()))
                for kind, one in plan.paging.items()
            }
            run.func(inner, x, plan._replace(paging=paging))

        return Captured(replay, states)


@pytest.fixture
def captured(monkeypatch):
    """The built-in model, whose passes over canvases are captured, and the captures."""
    monkeypatch.setattr(cache_module, "launch_of", launch)
    engine, captures = (
        Engine.load(decoding="canvas", device="cpu", slots=SLOTS, cache_tokens=4096),
        Captures(),
    )
    engine.model.graphs = PassGraphs(engine._cache, captures)
    yield engine, captures
    engine.close()


def requests() -> list[Request]:
    """Requests of different lengths; the long one has another launch than the short ones."""
    long = list(range(300, 560)) * 2
    return [
        Request(prompt="Say something.", seed=1, max_tokens=32),
        Request(token_ids=long, seed=2, max_tokens=32),
        Request(prompt="Give a object.", constraint=JsonObject(), seed=3, max_tokens=24),
    ]


def test_after_a_warm_up_requests_capture_nothing_and_answers_are_the_same(captured):
    engine, captures = captured
    eager = Engine.load(decoding="canvas", device="cpu", slots=SLOTS)
    expected = [result.token_ids for result in eager.generate(requests())]
    eager.close()

    reports: list[tuple[int, int]] = []
    engine.warm_up(lambda *counts: reports.append(counts))

    before = captures.count
    assert before >= 2 * SLOTS, "short and long contexts of each number of slots"
    parts = len(reports) - 1
    assert reports == [(done, parts) for done in range(parts + 1)]
    assert parts > before
    together = engine.generate(requests())
    alone = [engine.generate(one) for one in requests()]
    assert captures.count == before
    for results in (together, alone):
        assert [result.token_ids for result in results] == expected
    assert [result.stats.cached for result in together] == [0, 0, 0], "of a warm-up"
    stats = alone[0].stats
    assert stats.graphed == stats.denoiser_calls - stats.canvases > 0, "also the first of its kind"
    assert engine.occupancy.running == engine.occupancy.waiting == engine.occupancy.cache == 0


def test_without_a_warm_up_requests_capture(captured):
    engine, captures = captured
    engine.generate(requests()[0])
    assert captures.count == 1


def test_a_warm_up_of_a_drafted_engine_captures_the_canvases_of_decisions(monkeypatch):
    monkeypatch.setattr(cache_module, "launch_of", launch)
    engine = Engine.load(device="cpu", slots=2, cache_tokens=4096, decoding="drafted")
    captures = Captures()
    engine.model.graphs = PassGraphs(engine._cache, captures)
    engine.warm_up()
    before = captures.count
    assert before > 0
    question = ChoiceQuestion(choices=[Label("nurse"), Label("driver")])
    engine.decide(Request(prompt="Ben Kim is a driver."), [question])
    assert captures.count == before
    engine.close()


def test_a_warm_up_left_to_right_captures_no_canvases(monkeypatch):
    monkeypatch.setattr(cache_module, "launch_of", launch)
    engine = Engine.load(device="cpu", slots=2, cache_tokens=4096, decoding="left-to-right")
    captures = Captures()
    engine.model.graphs = PassGraphs(engine._cache, captures)
    engine.warm_up()
    assert captures.count == 0
    engine.close()


@pytest.mark.parametrize("tokens", [4096, 24])
def test_a_warm_up_needs_no_launches_and_works_in_a_small_cache(tokens):
    engine = Engine.load(decoding="canvas", device="cpu", slots=2, cache_tokens=tokens)
    assert engine.model.backends["attention"] == "torch"
    engine.warm_up()
    engine.close()


def test_a_growing_cache_has_no_pages_for_a_warm_up():
    engine = Engine.load(decoding="canvas", device="cpu", slots=2)
    assert engine.model.warm_up(engine._cache, 2) == []
    engine.warm_up()
    engine.close()


def test_a_warm_up_is_refused_while_requests_run(captured):
    engine, _ = captured
    number = engine.add(requests()[0])
    with pytest.raises(DlmError, match="warm_up would take the slots of requests"):
        engine.warm_up()
    engine.cancel(number)


def test_a_model_without_warm_up_passes_runs_only_requests(scripted):
    engine = scripted("<eos>")
    reports: list[tuple[int, int]] = []
    engine.warm_up(lambda *counts: reports.append(counts))
    count = len(warm_up_requests(engine.policy))
    assert reports == [(done, count) for done in range(count + 1)]


def test_on_a_cpu_nothing_is_warmed_up():
    progress = lambda *_: pytest.fail("warmed up")  # noqa: E731
    Engine.load(decoding="canvas", device="cpu", progress=progress).close()
    Engine.loaded(Loading(policy=Policy(), device="cpu"), progress).close()


def load_on_gpu(stored, loading):
    """Return a model that seems to be on a GPU."""
    model = Scripted(1536, len(PROMPT), [1])  # the built-in tokenizer's size
    model.device = torch.device("cuda")
    return Loaded(model, model.new_cache(loading.slots))


@pytest.mark.parametrize("wanted", [True, False])
def test_on_a_gpu_an_engine_is_warmed_up_unless_this_is_off(wanted, monkeypatch):
    calls = []
    monkeypatch.setattr(engine_loading, "load_model", load_on_gpu)
    monkeypatch.setattr(Engine, "warm_up", lambda self, progress: calls.append(progress))
    Engine.loaded(Loading(policy=Policy(), warm_up=wanted), print).close()
    assert calls == [print] * wanted


def test_an_engine_that_cannot_be_warmed_up_is_closed(monkeypatch):
    closed, close = [], Engine.close

    def fail(self, progress):
        raise DlmError("no memory")

    monkeypatch.setattr(engine_loading, "load_model", load_on_gpu)
    monkeypatch.setattr(Engine, "warm_up", fail)
    monkeypatch.setattr(Engine, "close", lambda self: (closed.append(self), close(self)))
    with pytest.raises(DlmError, match="no memory"):
        Engine.loaded(Loading(policy=Policy()))
    assert len(closed) == 1


def test_a_warm_up_has_only_requests_that_the_policy_serves():
    constrained = [one.constraint is not None for one in warm_up_requests(Policy())]
    assert constrained == [False, False, True, True]
    nothing = warm_up_requests(Policy(kinds=frozenset()))
    assert [(one.constraint, one.top_k) for one in nothing] == [(None, 0), (None, 4)]
    assert replace(nothing[0], top_k=4) == nothing[1]


@pytest.mark.parametrize(("flags", "wanted"), [([], True), (["--no-warm-up"], False)])
def test_a_flag_turns_the_warm_up_off(flags, wanted):
    parser = argparse.ArgumentParser()
    add_engine_options(parser, "slots", "data")
    args = parser.parse_args([*flags, "--slots", "1"])
    args.device = None
    assert loading_of(args).warm_up is wanted


def test_a_server_starts_after_its_engine_was_warmed_up(monkeypatch):
    order = []

    def loaded(loading, progress):
        progress(0, 2)
        order.append("warmed up")
        return "engine"

    def app_of(made, settings, stored_files):
        order.append(made)
        raise KeyboardInterrupt

    monkeypatch.setattr(Engine, "loaded", loaded)
    monkeypatch.setattr("dlm.serving.service.app_of", app_of)
    monkeypatch.setattr(sys, "argv", ["serve.py", "--port", "0"])
    monkeypatch.setattr("signal.signal", lambda *_: None)
    with pytest.raises(SystemExit) as end:
        serve.main()
    assert end.value.code == 130
    assert order == ["warmed up", "engine"]
