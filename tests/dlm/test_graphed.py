"""CUDA graphs of an engine: passes are counted by request; a reason is given if there are none."""

import pytest
import torch

from dlm import DlmError, Engine, Request
from dlm.models.graphs import PassGraphs


class Counted(PassGraphs):
    """Counts the passes of graphs and computes them eagerly; results are valid until the next."""

    last = torch.zeros(0)

    def states(self, run, x, plan):
        self.replays += 1
        self.last.fill_(torch.nan)
        self.last = run(x, plan)
        return self.last


def test_passes_that_encode_nothing_are_counted_as_graphs():
    engine = Engine.load(device="cpu", slots=4, cache_tokens=2048, decoding="canvas")
    requests = [Request(prompt=f"Say {i}.", seed=i, max_tokens=48) for i in range(3)]
    eager = engine.generate(requests)
    assert engine.backends["graphs"] == "eager: cpu is no CUDA device"
    assert {result.stats.graphed for result in eager} == {0}

    engine.model.graphs = Counted(engine._cache, capture=lambda _: pytest.fail("not captured"))
    assert engine.backends["graphs"] == "captured"
    one = engine.generate(requests[0])
    assert one.stats.graphed == one.stats.denoiser_calls - one.stats.canvases > 0
    assert one.token_ids == eager[0].token_ids
    together = engine.generate(requests)
    for result, other in zip(together, eager, strict=True):
        assert result.token_ids == other.token_ids
    assert sum(result.stats.graphed for result in together) > 0
    engine.close()


def test_graphs_can_be_off_and_an_unknown_setting_is_refused():
    engine = Engine.load(device="cpu", graphs="off")
    assert engine.backends["graphs"] == "eager: graphs are off"
    engine.close()
    with pytest.raises(DlmError, match=r"graphs must be one of .*, got 'on'"):
        Engine.load(device="cpu", graphs="on")


def test_a_model_that_has_no_graphs_reports_none(scripted):
    assert "graphs" not in scripted("").backends
