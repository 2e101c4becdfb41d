"""A model over a cache that is shared, stored in fewer bits, or read by kernels."""

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
def test_a_shared_beginning_has_the_states_of_an_encoded_one_to_the_bit(
    pair, reference, rng, length
):
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
    """Return the relative error of logits over `cache`; over the other cache nothing is rounded."""
    rng = torch.Generator().manual_seed(0)
    prompt, canvas = reference.draw(rng, 40).tolist(), reference.draw(rng, 1, reference.CANVAS)
    both = []
    for each in (cache, model.new_cache(1)):
        model.encode([prompt], each, [0])
        both.append(denoised(model, each, 0, canvas))
    return float((both[0] - both[1]).norm() / both[1].norm())


def test_a_cache_in_fp8_and_one_in_bf16_have_errors_of_their_rounding(pair, reference):
    """A number in fp8 has an error of at most 2^-4 of itself, in bf16 of 2^-9. Four layers add to
    it and sums reduce it: the result's is between a quarter and twice of it."""
    fp8 = error_of(pair.ours, pair.ours.new_cache(1, E4M3), reference)
    bf16 = error_of(pair.ours, pair.ours.new_cache(1, torch.bfloat16), reference)
    assert 2**-6 < fp8 < 2**-3
    assert 2**-11 < bf16 < 2**-8


def test_keys_and_values_are_stored_divided_by_the_scales_of_a_checkpoint(pair, reference):
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
def test_a_pass_by_kernels_is_within_rounding_of_torch_s(stored, bound, reference, rng, tmp_path):
    """Both round to bf16, in different places: to 3 % of the norm, as in test_parity.py. A number
    that differs by a bit of bf16 may be stored as the next one of fp8, 2^-3 away. There is a layer
    of each kind; test_by_kernels.py tests kernels between products, which take the longest."""
    interpreter.install()
    layers = {"layer_types": reference.KINDS[:2], "num_hidden_layers": 2}
    reference.make(tmp_path, hidden_size=64, moe_intermediate_size=64, **layers)
    prompts = [reference.draw(rng, length).tolist() for length in (9, 3)]
    canvas = reference.draw(rng, 2, reference.CANVAS)
    both = []
    for kernels in ("triton", "torch"):
        model = checkpoint.load(tmp_path, torch.bfloat16, kernels=kernels)
        assert model.backends["attention"] == kernels
        model.backends["layers"] = "torch"
        cache = model.new_cache(2, stored)
        model.encode([prompts[0][:4]], cache, [0])
        nothing = torch.zeros(2, reference.CANVAS, 64, dtype=torch.bfloat16)
        more = {0: prompts[0][4:], 1: prompts[1]}
        both.append(model.denoise(canvas, nothing, cache, [0, 1], more).float())
    assert 0 < (both[0] - both[1]).norm() / both[1].norm() < bound


@pytest.mark.parametrize("experts", ["triton", "torch"])
def test_a_pass_by_kernels_waits_for_nothing_on_the_device(experts, reference, tmp_path):
    """On a device without data, reading a number raises: the experts' loop in torch does."""
    model, cache = reference.model_without_data(tmp_path, experts)
    with torch.device("meta"):
        canvas = torch.zeros(2, 8, dtype=torch.long)
        nothing = torch.zeros(2, 8, 64, dtype=torch.bfloat16)
        if experts == "torch":
            with pytest.raises(NotImplementedError, match="bincount"):
                model.denoise(canvas, nothing, cache, [0, 1], {0: [5] * 30})
            return
        logits = model.denoise(canvas, nothing, cache, [0, 1], {0: [5] * 30})
    assert logits.shape == (2, 8, reference.VOCAB)
    assert logits.is_meta
    assert cache.length(0) == 30
