"""A model over its cache: shared, stored in less, computed by kernels, traced."""

import interpreter
import pytest
import torch
from exhaustive import by_default

from dlm.models import DiffusionGemma, KVCache, checkpoint

E4M3 = torch.float8_e4m3fn


def denoised(model: DiffusionGemma, cache: KVCache, slot: int, canvas: torch.Tensor):
    nothing = torch.zeros(1, *canvas.shape[1:], model.config.hidden_size, dtype=model.dtype)
    return model.denoise(canvas, nothing, cache, [slot])


@pytest.mark.parametrize("length", [17, 33, 70])
def test_what_is_shared_gives_what_encoding_it_gives_to_the_bit(pair, reference, rng, length):
    model, cache = pair.ours, pair.ours.new_cache(2)
    prompt, canvas = reference.draw(rng, length).tolist(), reference.draw(rng, 1, reference.CANVAS)
    assert cache.attach(0, prompt) == 0
    model.encode([prompt], cache, [0])
    found = cache.attach(1, prompt)
    assert found == (length - 1) // 16 * 16
    shared = model.encode([prompt[found:]], cache, [1])

    untouched = model.new_cache(1)
    assert torch.equal(shared, model.encode([prompt], untouched, [0])[found:])
    assert torch.equal(denoised(model, cache, 1, canvas), denoised(model, untouched, 0, canvas))


def error_of(model: DiffusionGemma, cache: KVCache, reference) -> float:
    """How far logits over `cache` are from those over one that rounds nothing, as a share."""
    rng = torch.Generator().manual_seed(0)
    prompt, canvas = reference.draw(rng, 40).tolist(), reference.draw(rng, 1, reference.CANVAS)
    both = []
    for each in (cache, model.new_cache(1)):
        model.encode([prompt], each, [0])
        both.append(denoised(model, each, 0, canvas))
    return float((both[0] - both[1]).norm() / both[1].norm())


def test_fp8_loses_about_what_its_three_bits_say(pair, reference):
    """Of each number 2^-4 at the most; bf16 2^-9. Four layers add to that, sums of many numbers
    take from it: between a quarter of a number's share and twice that."""
    fp8 = error_of(pair.ours, pair.ours.new_cache(1, E4M3), reference)
    bf16 = error_of(pair.ours, pair.ours.new_cache(1, torch.bfloat16), reference)
    assert 2**-6 < fp8 < 2**-3
    assert 2**-11 < bf16 < 2**-8


def test_scales_of_a_checkpoint_change_what_is_stored_and_not_what_it_means(pair, reference):
    model = checkpoint.load(pair.directory)
    for layer in model.layers:
        layer.self_attn.k_scale.fill_(2.0)
        layer.self_attn.v_scale.fill_(0.25)
    cache, plain = model.new_cache(1), pair.ours.new_cache(1)
    prompt = list(range(1, 31))
    for each, one in ((model, cache), (pair.ours, plain)):
        each.encode([prompt], one, [0])
    for layer in range(len(reference.KINDS)):
        k, v = reference.cached(cache, 0, layer)
        plain_k, plain_v = reference.cached(plain, 0, layer)
        torch.testing.assert_close(k, plain_k / 2, **reference.CLOSE)
        torch.testing.assert_close(v, plain_v * 4, **reference.CLOSE)


@pytest.mark.interpreted
@pytest.mark.parametrize(
    ("stored", "bound"), by_default([(E4M3, 0.1), (torch.bfloat16, 0.03)]), ids=str
)
def test_kernels_compute_the_passes_that_torch_computes(stored, bound, reference, rng, tmp_path):
    """Interpreted; both round to bf16, in different places: to 3 % of the norm, as in parity. What
    is off by a bit of bf16 may be stored as fp8's next number, which is 2^-3 away."""
    interpreter.install()
    reference.make(tmp_path, hidden_size=64, moe_intermediate_size=64)
    prompts = [reference.draw(rng, length).tolist() for length in (9, 3)]
    canvas = reference.draw(rng, 2, reference.CANVAS)
    both = []
    for kernels in ("triton", "torch"):
        model = checkpoint.load(tmp_path, torch.bfloat16, kernels=kernels)
        assert model.backends["attention"] == kernels
        cache = model.new_cache(2, stored)
        model.encode([prompts[0][:4]], cache, [0])
        nothing = torch.zeros(2, reference.CANVAS, 64, dtype=torch.bfloat16)
        more = {0: prompts[0][4:], 1: prompts[1]}
        both.append(model.denoise(canvas, nothing, cache, [0, 1], more).float())
    assert 0 < (both[0] - both[1]).norm() / both[1].norm() < bound


@pytest.mark.parametrize("experts", ["triton", "torch"])
def test_a_pass_by_kernels_waits_for_nothing_on_the_device(experts, reference, tmp_path):
    """On a device without data, whatever reads a number raises: the experts' loop in torch does."""
    reference.make(tmp_path, hidden_size=64, moe_intermediate_size=64)
    config = checkpoint.config_of(tmp_path)
    with torch.device("meta"):
        model = DiffusionGemma(config).to(torch.bfloat16)
        model.backends |= {"attention": "triton", "layers": "triton"}
        for layer in model.layers:
            layer.experts.backend = experts
            for name in ("k_scale", "v_scale"):
                setattr(layer.self_attn, name, torch.ones(()))
        cache = model.new_cache(2, E4M3, capacity=256, segment=64)
        canvas = torch.zeros(2, 8, dtype=torch.long)
        nothing = torch.zeros(2, 8, config.hidden_size, dtype=torch.bfloat16)
        if experts == "torch":
            with pytest.raises(NotImplementedError, match="bincount"):
                model.denoise(canvas, nothing, cache, [0, 1], {0: [5] * 30})
            return
        logits = model.denoise(canvas, nothing, cache, [0, 1], {0: [5] * 30})
    assert logits.shape == (2, 8, config.vocab_size)
    assert logits.is_meta
    assert cache.length(0) == 30
