"""Plain decoders on a GPU, at the widths of published models: kernels against torch, and captured
passes against eager ones."""

from typing import Any

import pytest
import torch
from published_configs import PUBLISHED
from torch import Tensor

from dlm.models.backends import Dispatch
from dlm.models.formats import MODELOPT
from dlm.models.layouts import layout_of
from dlm.models.places import blank, give

pytestmark = pytest.mark.gpu
E4M3, BF16 = torch.float8_e4m3fn, torch.bfloat16
# Every token chooses all experts, as rounding could change a choice.
CHANGES: dict[str, dict[str, Any]] = {
    "SDAR-4B": {},
    "SDAR-30B-A3B": {"num_experts": 8, "num_experts_per_tok": 8},
    "LLaDA2.1-mini": {"num_experts": 8, "num_experts_per_tok": 8, "n_group": 2, "topk_group": 2},
}
ROOT_MEAN_SQUARE = 2.9  # of the sixteen numbers of four bits


@pytest.fixture(params=[(name, weights) for name in CHANGES for weights in ("bf16", "nvfp4")])
def model(request) -> Any:
    """A random model of two layers, of a published model's widths."""
    name, weights = request.param
    settings = PUBLISHED[name] | {"num_hidden_layers": 2, "vocab_size": 4096} | CHANGES[name]
    layout = layout_of(settings)
    dispatch = Dispatch(device=torch.device("cuda"), dtype=BF16)
    made = layout.unfilled(layout.config(settings), weights, dispatch)
    assert {*made.backends.values()} == {"triton"}
    form = MODELOPT if weights == "nvfp4" else None
    tensors = blank(made, layout.places(made, form), dispatch)
    rng = torch.Generator("cuda").manual_seed(0)
    for path, tensor in tensors.items():
        fill(path, tensor, rng)
    return give(made, tensors)


def fill(path: str, tensor: Tensor, rng: torch.Generator) -> None:
    if path.endswith(".packed"):
        tensor.random_(0, 256, generator=rng)
    elif path.endswith(".scale_2"):
        tensor.fill_(0.02 / ROOT_MEAN_SQUARE)
    elif tensor.dim() > 1 and tensor.dtype != E4M3:
        tensor.normal_(std=0.02, generator=rng)
    else:
        tensor.fill_(1)


def drawn(rng: torch.Generator, count: int) -> list[int]:
    return torch.randint(4096, (count,), generator=rng).tolist()


def test_a_pass_by_kernels_is_within_rounding_of_torch_s(model, rng):
    """Blocks are encoded, then a canvas is denoised."""
    L, results = model.canvas_length, []
    tokens, canvas = drawn(rng, 5 * L), torch.tensor([drawn(rng, L)], device="cuda")
    for layers in ("triton", "torch"):
        model.backends["layers"] = layers
        cache = model.new_cache(1, BF16)
        model.encode([tokens], cache, [0])
        results.append(model.denoise(canvas, None, cache, [0]).float())
    by_kernels, by_torch = results
    assert (by_kernels - by_torch).norm() < 0.02 * by_torch.norm()


def test_a_captured_pass_is_replayed_over_other_canvases_and_other_pages(model, rng):
    L = model.canvas_length
    caches = [model.new_cache(2, E4M3, capacity=8 * L, segment=8 * L) for _ in range(2)]
    model.use_graphs(caches[0])
    for slot in range(2):
        tokens = drawn(rng, 2 * L)
        for cache in caches:
            model.encode([tokens], cache, [slot])
    for slot in (0, 0, 1, 0):
        canvas = torch.tensor([drawn(rng, L)], device="cuda")
        replayed, eager = (model.denoise(canvas, None, cache, [slot]) for cache in caches)
        assert torch.equal(replayed, eager)
    assert model.graphs.status == "captured"
    assert model.graphs.replays >= 2
