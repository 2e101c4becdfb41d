"""Training's layers in C++ against the same in torch, forwards and backwards."""

import json
import shutil

import pytest
import torch
from torch.nn import functional as F
from training import batches, fused, objective, steps
from training.fused import HeadSizes, MLPs

from dlm import DecodeConfig
from dlm.engine import BUILT_IN
from dlm.models import DiffusionGemma, ModelConfig

EPS = 1e-6
B, N, D = 3, 11, 40  # 40 is no multiple of a vector's 16

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


@pytest.fixture
def drawn(rng):
    """Random numbers with gradients, in bf16 or fp32."""

    def draw(*shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        numbers = torch.randn(shape, generator=rng).to(dtype or fused.number())
        return numbers.requires_grad_(True)

    return draw


def norm(x, gain=None):
    return F.rms_norm(x.float(), x.shape[-1:], gain, EPS)


def compare(ours, theirs, inputs, rng):
    """Assert that results, and gradients of `inputs`, are equal but for bf16's rounding."""
    ours, theirs = (x if isinstance(x, tuple) else (x,) for x in (ours, theirs))
    given = [torch.randn(y.shape, generator=rng) for y in theirs]
    found = torch.autograd.grad(
        ours, inputs, [g.type_as(y) for g, y in zip(given, ours, strict=True)]
    )
    expected = torch.autograd.grad(theirs, inputs, given)
    for a, b in [*zip(ours, theirs, strict=True), *zip(found, expected, strict=True)]:
        assert a.shape == b.shape
        assert (a.float() - b.float()).norm() < 0.01 * b.float().norm()


def test_a_norm_without_gain(drawn, rng):
    x = drawn(B, N, D, dtype=torch.float32)
    compare(fused.Unit.apply(x, EPS), norm(x), [x], rng)


def test_a_norm_on_the_residual_stream(drawn, rng):
    x, a, gain = drawn(B, N, D, dtype=torch.float32), drawn(B, N, D), drawn(D, dtype=torch.float32)
    compare(fused.AddNorm.apply(x, a, gain, EPS), x + norm(a, gain), [x, a, gain], rng)


def test_both_mlps_on_the_residual_stream(drawn, rng):
    x, a, b = drawn(B, N, D, dtype=torch.float32), drawn(B, N, D), drawn(B, N, D)
    gains, scalars = drawn(3, D, dtype=torch.float32), torch.rand(N, generator=rng) + 0.5
    both = norm(norm(a, gains[0]) + norm(b, gains[1]), gains[2])
    ours = fused.Join.apply(x, a, b, gains, scalars, EPS)
    compare(ours, (x + both) * scalars[:, None], [x, a, b, gains], rng)


@pytest.mark.parametrize("values", [True, False])
def test_heads(values, drawn, rng):
    Q, K = 4, 2
    z = drawn(B, N, (Q + K + values * K) * D)
    gains, angle = drawn(2, D, dtype=torch.float32), torch.randn(B, N, D // 2, generator=rng)
    parts = z.float().unflatten(2, (-1, D)).transpose(1, 2).split([Q, K, K][: 2 + values], dim=1)

    def turned(x):
        left, right = x.chunk(2, dim=-1)
        cos, sin = angle.cos()[:, None], angle.sin()[:, None]
        return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)

    theirs = *(turned(norm(x, g)) for x, g in zip(parts[:2], gains, strict=True)), norm(parts[-1])
    sizes = HeadSizes(B, N, Q, K, D, values)
    ours = fused.Heads.apply(z, gains, angle.cos(), angle.sin(), sizes, EPS)
    compare(ours, theirs, [z, gains], rng)


def test_attention_to_two_ranges_of_tokens(drawn, rng):
    M = N + 5
    q, k, v = drawn(B, 4, N, D), drawn(B, 2, M, D), drawn(B, 2, M, D)
    spans = torch.tensor([[0, n, n, n + 5] if n % 2 else [n // 2, n + 1, 0, 0] for n in range(N)])
    spans = spans.int().expand(B, N, 4).contiguous()
    shared = [x.float().repeat_interleave(2, dim=1) for x in (k, v)]
    mask = objective._seen(spans, M)
    theirs = F.scaled_dot_product_attention(q.float(), *shared, attn_mask=mask, scale=1.0)
    compare(fused.Attend.apply(q, k, v, spans), theirs, [q, k, v], rng)


@pytest.mark.parametrize("sizes", [MLPs(48, 4, 24, 2), MLPs(40, 5, 16, 1), MLPs(32, 0, 0, 0)])
def test_gates(sizes, drawn, rng):
    M, E, m, k = sizes
    z, scales = drawn(B, N, 2 * M + 2 * E * m + E + 7), drawn(E, dtype=torch.float32)
    gate, up, experts, scores, _ = z.float().split([M, M, 2 * E * m, E, 7], dim=-1)
    best, chosen = scores.topk(k, dim=-1)
    share = torch.zeros(B, N, E).scatter(2, chosen, best.softmax(-1)) * scales
    of_gate, of_up = experts.unflatten(2, (E, 2, m)).unbind(3)
    routed = (F.gelu(of_gate, approximate="tanh") * of_up * share[..., None]).flatten(2)
    dense = F.gelu(gate, approximate="tanh") * up
    inputs = [z, scales] if E else [z]
    ours = fused.Gate.apply(z, scales, sizes)
    compare(ours[: 1 + (E > 0)], (dense, routed)[: 1 + (E > 0)], inputs, rng)


def test_gates_far_from_zero_are_finite(rng):
    z = torch.tensor([[-1e4, -40.0, 40.0, 1e4]]).repeat(1, 8).to(fused.number())
    z.requires_grad_(True)
    dense, _ = fused.Gate.apply(z, torch.zeros(0), MLPs(16, 0, 0, 0))
    [grad] = torch.autograd.grad(dense.float().sum(), [z])
    gate, up = z.detach().float().chunk(2, dim=-1)
    torch.testing.assert_close(dense.float(), gate.clamp(min=0) * up, rtol=0.01, atol=1e-20)
    assert grad.isfinite().all()


def random_model() -> DiffusionGemma:
    """Two layers with random gains, and all experts chosen: rounding routes no token elsewhere."""
    torch.manual_seed(3)
    config = json.loads((BUILT_IN / "config.json").read_text())
    text = config["text_config"]
    text |= {"num_hidden_layers": 2, "layer_types": text["layer_types"][:2]}
    text |= {"intermediate_size": 128, "per_layer_config": {"1": text["per_layer_config"]["1"]}}
    model = steps.initialised(ModelConfig.from_hf(config))
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.mul_(torch.rand_like(parameter) + 0.5)
    for layer in model.layers:
        layer.router.k = model.config.experts
    return model


def test_a_loss_and_its_gradients_are_those_of_the_plain_layers(monkeypatch):
    """Both corrupt alike and continue with the tokens that the plain layers' step drew: rounded
    logits may draw another token, which changes the loss at all later ones."""
    monkeypatch.setattr(objective, "noise_rates", lambda x, rng: torch.rand(x.shape, generator=rng))
    source = batches.BatchSource(directory=BUILT_IN, seed=5, size=4)
    batch = next(batches.batches(source, 0, lambda step: 0.0, 0))
    found, draw, drawn = [], steps.step_of(DecodeConfig()), []

    def step(*given):
        if not drawn:
            drawn.extend(draw(*given))
        return drawn

    for layers in (objective.plainly, fused.run_layers):
        model = random_model()
        if layers is fused.run_layers:
            fused.prepare(model)
        now = objective.loss(model, batch, 1, step, torch.Generator().manual_seed(1), layers)
        now.total.backward()
        grads = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        found.append((now.diffusion.item(), now.next_token.item(), grads))
    (*plain, expected), (*ours, grads) = found
    assert ours == pytest.approx(plain, rel=0.001)
    assert grads.keys() == expected.keys()
    slack = 1e-3 * max(grad.norm() for grad in expected.values())  # next to 0 is bf16's rounding
    for name, grad in grads.items():
        error = (grad - expected[name]).norm()
        assert error < 0.05 * expected[name].norm() + slack, name


def test_the_process_keeps_its_denormals():
    fused.library()
    smallest = torch.finfo(torch.float64).smallest_normal
    assert smallest / 2 > 0
