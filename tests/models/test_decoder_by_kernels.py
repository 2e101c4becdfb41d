"""Plain decoders whose kernels compute all between products: the same results in few launches, in
passes that can be captured."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import block_models
import interpreter
import nemotron
import pytest
import torch
from exhaustive import by_default
from published_configs import PUBLISHED
from recorded import Operators, Recorder, launches
from torch import Tensor
from torch.utils._pytree import tree_leaves

from dlm.models import checkpoint, graphs
from dlm.models.backends import Dispatch
from dlm.models.cache import KVCache
from dlm.models.formats import MODELOPT
from dlm.models.graphs import PassGraphs, pass_graphs
from dlm.models.layouts import layout_of
from dlm.models.nemotron_diffusion.network import LowRank
from dlm.models.places import blank, give

CPU, GPU, META = (torch.device(name) for name in ("cpu", "cuda", "meta"))
E4M3, BF16 = torch.float8_e4m3fn, torch.bfloat16
SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "moe_intermediate_size": 64}
# Every token chooses all experts, as rounding could change a choice.
CONFIGS: dict[str, dict[str, Any]] = {
    "sdar": block_models.SDAR | SIZES,
    "sdar_moe": block_models.SDAR_MOE | SIZES | {"num_experts": 3, "num_experts_per_tok": 3},
    "llada2": block_models.LLADA2
    | SIZES
    | {"num_experts": 4, "num_experts_per_tok": 4, "n_group": 2, "topk_group": 2},
}
FAMILIES = ["llada2", "sdar", "sdar_moe", "nemotron"]
EXAMPLES = Path(__file__).parents[2] / "examples"
SETTINGS = PUBLISHED | {
    path.stem: json.loads(path.read_text()) for path in EXAMPLES.glob("nemotron*.json")
}


def loaded(family: str, directory: Path) -> Any:
    """Return a random model whose attention and layers are kernels, which are interpreted."""
    interpreter.install()
    if family == "nemotron":
        nemotron.write(directory)
    else:
        block_models.Oracle(CONFIGS[family]).write(directory)
    return checkpoint.load(directory, BF16, kernels="triton")


def drawn(rng: torch.Generator, count: int) -> list[int]:
    return torch.randint(61, (count,), generator=rng).tolist()


@pytest.mark.interpreted
@pytest.mark.parametrize("family", by_default(FAMILIES))
def test_a_pass_by_kernels_is_within_rounding_of_torch_s(family, tmp_path, rng):
    """Both have the error of bf16, where blocks are encoded, and where a canvas is denoised."""
    model, results = loaded(family, tmp_path), []
    L = model.canvas_length
    tokens, canvas = drawn(rng, L), torch.tensor([drawn(rng, L)])
    assert model.backends["layers"] == "triton"
    for layers in ("triton", "torch"):
        model.backends["layers"] = layers
        with Operators() as operators:
            logits = model.denoise(canvas, None, model.new_cache(1, E4M3), [0], {0: tokens})
        results.append(logits.float())
        own = [name for name in names_of(operators.calls) if name == "dlm::add_and_norm"]
        assert len(own) == (2 * len(model.layers) if layers == "triton" else 0)
    by_kernels, by_torch = results
    assert (by_kernels - by_torch).norm() < 0.02 * by_torch.norm()


@pytest.mark.exhaustive
@pytest.mark.interpreted
def test_an_adapter_changes_the_rows_of_drafts_alone(tmp_path, rng):
    model = loaded("nemotron", tmp_path)
    hidden, inner = 32, 64
    tokens, canvas = drawn(rng, 5), torch.tensor([drawn(rng, model.canvas_length)])

    def predicted() -> tuple[Tensor, Tensor]:
        return model.predict_and_denoise({0: tokens}, {0: 2}, canvas, None, model.new_cache(1))

    verified, drafts = predicted()
    low_rank = [
        LowRank(
            down=torch.randn(4, inner, generator=rng).to(BF16),
            up=torch.randn(hidden, 4, generator=rng).to(BF16),
        )
        for _ in model.layers
    ]
    model.adapt_drafts(low_rank)
    adapted = predicted()
    model.backends["layers"] = "torch"
    expected = predicted()

    assert torch.equal(adapted[0], verified)
    assert (adapted[1] - drafts).norm() > 0.2 * drafts.norm()
    assert (adapted[1] - expected[1]).norm() < 0.03 * expected[1].norm()


@pytest.mark.exhaustive
@pytest.mark.interpreted
@pytest.mark.parametrize("family", FAMILIES)
def test_a_captured_pass_is_replayed_over_other_canvases_and_other_pages(family, tmp_path, rng):
    """The recorder refuses reads from the device, as a GPU does, and poisons earlier results."""
    model = loaded(family, tmp_path)
    L, recorder = model.canvas_length, Recorder()
    caches = [model.new_cache(2, E4M3, capacity=64, segment=64) for _ in range(2)]
    model.graphs = PassGraphs(caches[0], recorder, between=0)
    for slot in range(2):
        tokens = drawn(rng, L)
        for cache in caches:
            model.encode([tokens], cache, [slot])
    for slot in (0, 0, 1):
        canvas = torch.tensor([drawn(rng, L)])
        replayed, eager = (model.denoise(canvas, None, cache, [slot]) for cache in caches)
        assert torch.equal(replayed, eager)
    assert model.graphs.status == "captured"
    assert (recorder.graphs, model.graphs.replays) == (1, 2)


@pytest.fixture
def gpu(monkeypatch):
    """Return a function that pretends there is a GPU of a compute capability."""
    monkeypatch.setattr(graphs, "CudaCapture", lambda _: Recorder())

    def pretend(*sm: int) -> None:
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: sm)

    return pretend


def published(name: str, weights: Any, **changes: Any) -> Any:
    """Return a published model of two layers without data, adapted to a GPU."""
    layout = layout_of(SETTINGS[name])
    config = layout.config(SETTINGS[name] | {"num_hidden_layers": 2} | changes)
    return layout.unfilled(config, weights, Dispatch(device=GPU, dtype=BF16))


def status_of(model: Any, capacity: int | None = 1024) -> str:
    """Return the status of a model's passes over a cache."""
    cache = KVCache(model.config, 1, E4M3, META, capacity, backend=model.backends["attention"])
    return pass_graphs(cache, "auto", model.backends, GPU).status


SMS = [(8, 0), (9, 0), (10, 0), (12, 0)]
PAIRS = [(name, weights) for weights in ("bf16", "nvfp4") for name in SETTINGS]


@pytest.mark.parametrize(
    ("name", "weights", "sm"),
    by_default([(*pair, SMS[at % 4]) for at, pair in enumerate(PAIRS)], len(SETTINGS)),
    ids=str,
)
def test_kernels_take_published_models_and_their_passes_are_captured(name, weights, sm, gpu):
    gpu(*sm)
    model = published(name, weights)
    assert {*model.backends.values()} == {"triton"}
    assert status_of(model) == "captured"
    assert status_of(model, None).startswith("eager: the cache grows")


@pytest.mark.parametrize("head_dim", [24, 80, 96])
def test_heads_without_a_kernel_are_computed_by_torch_in_passes_that_are_not_captured(
    head_dim, gpu
):
    gpu(9, 0)
    model = published("SDAR-4B", "bf16", head_dim=head_dim)
    assert model.backends["attention"] == "torch"
    assert model.backends["layers"] == "triton"
    assert status_of(model) == "eager: torch computes attention, not kernels"


def operators_of(model: Any) -> list[Any]:
    """Return the operators of a pass of two canvases without data."""
    L = model.canvas_length
    with META:
        cache = model.new_cache(2, E4M3, capacity=8 * L, segment=4 * L)
        model.encode([[5] * 2 * L], cache, [0])
        x = torch.zeros(2 * L, model.config.hidden_size, dtype=BF16)
    plan = cache.plan({}, [0, 1], L)
    with torch.inference_mode(), Operators() as operators:
        states = model._states(x, plan, cache)
    assert states.shape == x.shape
    return operators.calls


LAUNCHES_OF_A_LAYER = {  # the most; those with experts in NVFP4 too
    "nemotron-labs-diffusion-3b": 10,
    "LLaDA2.1-mini": 15,
    "SDAR-30B-A3B": 12,
    "SDAR-4B": 10,
}
TRACED = [(name, weights) for weights in ("bf16", "nvfp4") for name in LAUNCHES_OF_A_LAYER]
TRACED = [pair for pair in TRACED if pair[1] == "bf16" or LAUNCHES_OF_A_LAYER[pair[0]] > 10]


@pytest.mark.parametrize(("name", "weights"), by_default(TRACED, 3))
def test_a_pass_reads_no_number_and_no_tensor_of_the_host_and_has_few_launches(name, weights, gpu):
    """On a device without data, an operation that reads a number raises. A replay would read no
    tensor of the host again. Norms and sums around a module are one launch, and so is all between
    the products of attention. Products of dense matrices in NVFP4 cannot be traced."""
    gpu(9, 0)
    changes = {"num_experts": 16} if "num_experts" in SETTINGS[name] else {}
    model = published(name, weights, **changes)
    layout, form = layout_of(SETTINGS[name]), None if weights == "bf16" else MODELOPT
    meta = Dispatch(device=META, dtype=BF16)
    give(model, blank(model, layout.places(model, form), meta))

    calls = operators_of(model)

    leaves = tree_leaves([call[1:] for call in calls])
    assert {leaf.device.type for leaf in leaves if isinstance(leaf, Tensor)} == {"meta"}
    names = names_of(calls)
    ends = [at for at, each in enumerate(names) if each == "dlm::add_and_norm"]
    assert len(ends) == 2 * len(model.layers)
    for begin, end in pairwise(ends[1::2]):
        of_layer = launches(calls[begin + 1 : end + 1])
        assert len(of_layer) <= LAUNCHES_OF_A_LAYER[name], of_layer


def names_of(calls: list[Any]) -> list[str]:
    return [call[0]._schema.name for call in calls]
