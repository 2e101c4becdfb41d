"""Layers whose kernels compute all between products: the same results in few launches."""

from itertools import pairwise

import interpreter
import pytest
import torch
from recorded import Operators, Recorder, launches
from torch import Tensor

from dlm.models import DiffusionGemma, checkpoint
from dlm.models.backends import Dispatch
from dlm.models.diffusion_gemma.layers import Layer, rotary_angles
from dlm.models.diffusion_gemma.layout import LAYOUT
from dlm.models.formats import MODELOPT
from dlm.models.json_files import read_json
from dlm.models.modules import adjacent, products
from dlm.models.places import blank, give, side_by_side

E4M3 = torch.float8_e4m3fn
NARROW = {"hidden_size": 64, "moe_intermediate_size": 64, "intermediate_size": 96}


def loaded(reference, directory, layers: str = "triton", **text) -> DiffusionGemma:
    reference.make(directory, **NARROW, **text)
    model = checkpoint.load(directory, torch.bfloat16, kernels="triton")
    model.backends["layers"] = layers
    return model


def inputs(model: DiffusionGemma, at: int, rows: int, rng) -> tuple[Layer, tuple[Tensor, ...]]:
    """Return a layer, and random states of `rows` tokens, angles and a scalar for it."""
    layer, c = model.layers[at], model.config.layers[at]
    assert isinstance(layer, Layer)
    positions = torch.arange(3, 3 + rows, device=model.device)
    x = torch.randn(rows, 64, generator=rng).bfloat16().to(model.device)
    scalar = (torch.rand(rows, 1, generator=rng) + 0.5).bfloat16().to(model.device)
    return layer, (x, *rotary_angles(model.config.rotary[c.kind], c.head_dim, positions), scalar)


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Return attention in fp32 in which every token sees all."""
    group = q.shape[1] // k.shape[1]
    k, v = (x.float().repeat_interleave(group, 1) for x in (k, v))
    p = torch.einsum("nhd,mhd->hnm", q.float(), k).softmax(-1)
    return torch.einsum("hnm,mhd->nhd", p, v).to(q.dtype)


@pytest.mark.interpreted
@pytest.mark.parametrize("at", [0, 1], ids=["sliding", "full"])
def test_a_layer_by_kernels_is_within_rounding_of_torch_s(at, reference, tmp_path, rng):
    """Every token chooses all experts, as rounding could change a choice. Experts are the same
    kernel in both, and the rest is rounded at the same points."""
    interpreter.install()
    model = loaded(reference, tmp_path, top_k_experts=4)
    layer, (x, *angles, scalar) = inputs(model, at, 21, rng)

    expected = layer(x, *angles, attend, scalar)
    found = layer.by_kernels(
        x, layer.input_layernorm(x), *angles, attend, scalar, following=model.norm
    )

    for actual, wanted in zip(found, (expected, model.norm(expected)), strict=True):
        assert actual.dtype == torch.bfloat16
        assert (actual.float() - wanted.float()).norm() < 2**-8 * wanted.float().norm()


@pytest.mark.interpreted
def test_a_layer_by_kernels_is_replayed_over_other_numbers(reference, tmp_path, rng):
    """The recorder has poisoned all results of the first run."""
    interpreter.install()
    model = loaded(reference, tmp_path)
    layer, (x, *angles, scalar) = inputs(model, 0, 4, rng)
    other = torch.randn(4, 64, generator=rng).bfloat16()

    def run(x: Tensor) -> Tensor:
        return torch.stack(layer.by_kernels(x, x, *angles, attend, scalar, following=model.norm))

    with torch.inference_mode():
        expected = run(other)
        captured = Recorder()(lambda: run(x))
        x.copy_(other)
        captured.replay()
        assert torch.equal(captured.states, expected)


@pytest.mark.interpreted
def test_a_pass_by_kernels_is_within_rounding_of_torch_s(reference, tmp_path, rng):
    """Both have the error of bf16, in a layer of each kind."""
    interpreter.install()
    made = []
    canvas = reference.draw(rng, 1, reference.CANVAS)
    for layers in ("triton", "torch"):
        kinds = {"layer_types": reference.KINDS[:2], "num_hidden_layers": 2}
        model = loaded(reference, tmp_path, layers, top_k_experts=4, **kinds)
        cache = model.new_cache(1)
        model.encode([[5, 3, 9, 2, 60]], cache, [0])
        nothing = model.no_soft_embedding()[None]
        made.append(model.denoise(canvas, nothing, cache, [0]).float())
    assert (made[0] - made[1]).norm() < 0.02 * made[1].norm()


@pytest.mark.gpu
@pytest.mark.parametrize("at", [0, 1], ids=["sliding", "full"])
def test_a_gpu_s_layer_by_kernels_is_within_rounding_of_torch_s(at, reference, tmp_path, rng):
    """Products of joined weights may add in another order: a few roundings to bf16 differ, 2^-9
    each, in quadrature. A captured layer has the same results as an eager one, to the bit."""
    reference.make(tmp_path, **NARROW, top_k_experts=4)
    model = checkpoint.load(tmp_path, torch.bfloat16, "cuda", kernels="triton")
    layer, (x, *angles, scalar) = inputs(model, at, 64, rng)

    def run() -> tuple[Tensor, Tensor]:
        normed = layer.input_layernorm(x)
        return layer.by_kernels(x, normed, *angles, attend, scalar, following=model.norm)

    with torch.inference_mode():
        expected = layer(x, *angles, attend, scalar)
        for actual, wanted in zip(run(), (expected, model.norm(expected)), strict=True):
            assert (actual.float() - wanted.float()).norm() < 2**-6 * wanted.float().norm()
        eager, graph = run(), torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            captured = run()
        graph.replay()
        torch.cuda.synchronize()
        for one, other in zip(captured, eager, strict=True):
            assert torch.equal(one, other)


def test_torch_computes_layers_whose_batch_and_length_are_two_axes(reference, tmp_path, rng):
    """Training has such rows; kernels take packed rows alone."""
    reference.make(tmp_path)
    model = checkpoint.load(tmp_path)
    x, positions = torch.randn(2, 5, 32, generator=rng), torch.arange(5).expand(2, 5)
    attends = [lambda q, k, v: q] * 4
    one = torch.ones(1)
    expected = model.run_layers(x, positions, attends, [one] * 4)
    model.backends["layers"] = "triton"
    assert torch.equal(model.run_layers(x, positions, attends, [one] * 4), expected)


def test_weights_of_one_input_share_memory_and_are_those_of_the_file(reference, tmp_path):
    reference.make(tmp_path, **NARROW)
    model = checkpoint.load(tmp_path, torch.bfloat16, kernels="triton")
    plain = checkpoint.load(tmp_path, torch.bfloat16, kernels="torch")
    assert len(side_by_side(model)) == 2 * 4 + 1
    for name, tensor in plain.named_parameters():
        if ".experts." not in name:
            assert torch.equal(model.get_parameter(name), tensor)
    for names in side_by_side(model):
        layers = [model.get_submodule(name.removesuffix(".weight")) for name in names]
        whole = adjacent(layers)
        assert whole is not None
        assert torch.equal(whole, torch.cat([model.get_parameter(name) for name in names]))
        assert whole.untyped_storage().nbytes() == whole.nbytes
        others = [plain.get_submodule(name.removesuffix(".weight")) for name in names]
        assert adjacent(others) is None
        x = torch.randn(16, whole.shape[1]).bfloat16()
        for one, other in zip(products(x, layers), products(x, others), strict=True):
            torch.testing.assert_close(one, other)


def test_a_model_whose_weights_share_memory_is_written_to_the_same_bits(reference, tmp_path):
    reference.make(tmp_path, **NARROW)
    model = checkpoint.load(tmp_path, torch.bfloat16, kernels="triton")
    config = read_json(tmp_path / "config.json")
    checkpoint.save(model, tmp_path / "written", config, {})
    again = checkpoint.load(tmp_path / "written", torch.bfloat16)
    for name, tensor in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor)


def test_weights_that_do_not_follow_each_other_in_memory_are_not_adjacent(reference, tmp_path):
    reference.make(tmp_path, **NARROW)
    model = checkpoint.load(tmp_path, torch.bfloat16, kernels="triton")
    mlp = model.layers[0].mlp
    layers = [mlp.gate_proj, mlp.up_proj]
    assert adjacent(layers) is not None
    assert adjacent(layers[::-1]) is None
    mlp.up_proj.weight = torch.nn.Parameter(mlp.up_proj.weight.clone())
    assert adjacent(layers) is None
    assert adjacent([mlp.gate_proj, torch.nn.Identity()]) is None


def of_layers(model: DiffusionGemma) -> list[list[str]]:
    """Return launches of each layer but the first in a pass of two canvases, without data."""
    with torch.device("meta"):
        cache = model.new_cache(2, E4M3, capacity=256, segment=64)
        model.encode([[5] * 30], cache, [0])
        x = torch.zeros(2 * 8, 64, dtype=torch.bfloat16)
    canvases = cache.plan({}, [0, 1], 8)
    with torch.inference_mode(), Operators() as operators:
        model._states(x, canvases, cache)
    names = [call[0]._schema.name for call in operators.calls]
    ends = [at for at, name in enumerate(names) if name == "dlm::end_layer"]
    return [launches(operators.calls[begin + 1 : end + 1]) for begin, end in pairwise(ends)]


@pytest.mark.parametrize("weights", ["bf16", "nvfp4"])
def test_a_layer_has_fourteen_launches_and_one_that_merges_attention(weights, reference, tmp_path):
    reference.make(tmp_path, **NARROW)
    config = checkpoint.config_of(tmp_path)
    model = LAYOUT.unfilled(config, weights)
    model.backends = dict.fromkeys(model.backends, "triton")
    for layer in model.layers:
        layer.experts.backend = "triton"
    meta = Dispatch(device=torch.device("meta"), dtype=torch.bfloat16)
    form = None if weights == "bf16" else MODELOPT
    give(model, blank(model, LAYOUT.places(model, form), meta))

    found = of_layers(model)

    assert len(found) == len(config.layers) - 1
    for each in found:
        assert len(each) <= 15, each
        assert each.count("aten::linear") == 5, "two of attention, two of the MLP, the router's"
