"""Our text stack against transformers' DiffusionGemmaForBlockDiffusion, and against itself."""

import json

import pytest
import torch
from exhaustive import examples
from hypothesis import given
from hypothesis import strategies as st

from dlm.models import ModelConfig, checkpoint
from dlm.models.config import Rotary
from dlm.models.layers import rotary_angles

# Below, at and beyond the window of 6, where sliding layers begin to forget.
PROMPTS = [1, 5, 6, 7, 30]


@pytest.mark.parametrize("length", PROMPTS)
def test_the_encoder_computes_the_states_of_transformers(pair, reference, rng, length):
    prompt = reference.draw(rng, length).tolist()
    states = pair.ours.encode([prompt], pair.ours.new_cache(1), [0])
    expected = reference.Theirs(pair.theirs).encode(prompt)
    torch.testing.assert_close(states, expected, **reference.CLOSE)


@pytest.mark.parametrize("length", PROMPTS)
def test_the_cache_holds_the_keys_and_values_of_transformers(pair, reference, rng, length):
    prompt, more = reference.draw(rng, length).tolist(), reference.draw(rng, 5).tolist()
    theirs, cache = reference.Theirs(pair.theirs), pair.ours.new_cache(1)
    for tokens in (prompt, more):
        theirs.encode(tokens)
        pair.ours.encode([tokens], cache, [0])
    for layer in range(len(reference.KINDS)):
        for ours, expected in zip(
            reference.cached(cache, 0, layer), theirs.cached(layer), strict=True
        ):
            seen = expected.shape[1]
            assert ours.shape[1] >= seen
            assert seen == min(length + 5, reference.WINDOW - 1 if layer % 2 == 0 else length + 5)
            torch.testing.assert_close(ours[:, -seen:], expected, **reference.CLOSE)


@pytest.mark.parametrize("length", PROMPTS)
def test_the_decoder_computes_the_logits_of_transformers(pair, reference, rng, length):
    prompt, canvas = reference.draw(rng, length).tolist(), reference.draw(rng, reference.CANVAS)
    theirs, cache = reference.Theirs(pair.theirs), pair.ours.new_cache(1)
    theirs.encode(prompt)
    pair.ours.encode([prompt], cache, [0])
    soft_embedding, previous = reference.no_soft_embedding(1, reference.CANVAS), None
    for step in range(3):  # each step is shown the logits of the one before
        logits = pair.ours.denoise(canvas[None], soft_embedding, cache, [0])
        expected = theirs.denoise(canvas, previous)
        capped = pair.ours.softcapped(logits[0])
        torch.testing.assert_close(capped, expected, **reference.CLOSE, msg=f"step {step}")
        soft_embedding, previous = reference.soft_embedding(pair.ours, logits), expected


def test_self_conditioning_changes_the_logits(pair, reference, rng):
    """Otherwise the parity of steps that are shown a soft embedding would say nothing about it."""
    canvas, cache = reference.draw(rng, 1, reference.CANVAS), pair.ours.new_cache(1)
    first = pair.ours.denoise(canvas, reference.no_soft_embedding(1, reference.CANVAS), cache, [0])
    soft_embedding = reference.soft_embedding(pair.ours, first)
    second = pair.ours.denoise(canvas, soft_embedding, cache, [0])
    assert (first - second).abs().mean() > 0.1


@pytest.mark.parametrize("length", PROMPTS)
def test_later_canvases_see_the_ones_committed_before_them(pair, reference, rng, length):
    theirs, cache = reference.Theirs(pair.theirs), pair.ours.new_cache(1)
    committed = reference.draw(rng, length)
    for canvas in reference.draw(rng, 3, reference.CANVAS):
        states = pair.ours.encode([committed.tolist()], cache, [0])
        torch.testing.assert_close(states, theirs.encode(committed.tolist()), **reference.CLOSE)
        soft_embedding = reference.no_soft_embedding(1, reference.CANVAS)
        logits = pair.ours.denoise(canvas[None], soft_embedding, cache, [0])
        capped = pair.ours.softcapped(logits[0])
        torch.testing.assert_close(capped, theirs.denoise(canvas), **reference.CLOSE)
        committed = canvas


def test_the_encoder_is_an_autoregressive_model(pair, reference, rng):
    prompt = reference.draw(rng, 1, 30)
    states = pair.ours.encode(prompt.tolist(), pair.ours.new_cache(1), [0])
    with torch.no_grad():
        canvas = reference.draw(rng, 1, reference.CANVAS)
        output = pair.theirs(input_ids=prompt, decoder_input_ids=canvas)
        cap = pair.theirs.final_logit_softcapping
        raw = pair.theirs.lm_head(output.encoder_last_hidden_state[0])
    expected = torch.tanh(raw / cap) * cap
    capped = pair.ours.softcapped(pair.ours.logits(states))
    torch.testing.assert_close(capped, expected, **reference.CLOSE)


def test_what_comes_next_is_said_behind_the_last_tokens_of_each_slot(pair, reference, rng):
    """Some slots ask for one row, some for several, some for none, in an order of their own. Each
    gets what it would get alone, to the bit."""
    model, lengths = pair.ours, {3: 7, 0: 21, 4: 1, 1: 12}
    tokens = {slot: reference.draw(rng, n).tolist() for slot, n in lengths.items()}
    last = {1: 5, 3: 1, 4: 1}
    logits = model.predict(tokens, last, model.new_cache(5))
    for slot, rows in zip(last, logits.split(list(last.values())), strict=True):
        one, count = {slot: tokens[slot]}, {slot: last[slot]}
        assert torch.equal(rows, model.predict(one, count, model.new_cache(5)))
        states = model.encode([tokens[slot]], model.new_cache(5), [slot])
        expected = model.logits(states)[-last[slot] :]
        torch.testing.assert_close(rows, expected, **reference.CLOSE)


def test_one_pass_predicts_and_denoises_as_two_do(pair, reference, rng):
    """The canvas sees what the pass reads, as in a pass that encodes it."""
    model, slots = pair.ours, [2, 0]
    before = {slot: reference.draw(rng, 9 + slot).tolist() for slot in range(3)}
    tokens = {slot: reference.draw(rng, 4 + slot).tolist() for slot in range(3)}
    canvas = reference.draw(rng, 2, reference.CANVAS)
    soft_embedding = torch.randn(2, reference.CANVAS, reference.HIDDEN, generator=rng)
    together, apart, alone = (model.new_cache(3) for _ in range(3))
    for cache in (together, apart, alone):
        model.encode(list(before.values()), cache, list(before))
    last = {2: 3, 0: 1}
    logits, canvases = model.predict_and_denoise(tokens, last, canvas, soft_embedding, together)
    torch.testing.assert_close(logits, model.predict(tokens, last, apart), rtol=0, atol=0)
    denoised = model.denoise(canvas, soft_embedding, alone, slots, tokens)
    torch.testing.assert_close(canvases, denoised, rtol=0, atol=0)
    assert [together.length(slot) for slot in range(3)] == [apart.length(s) for s in range(3)]


def test_logits_are_capped(pair):
    """At the tiny model's magnitudes, the cap of 30 is all but linear: parity would miss it."""
    states = 1e5 * torch.ones(1, pair.ours.config.hidden_size)
    raw = pair.ours.logits(states)
    capped = pair.ours.softcapped(raw)
    assert capped.abs().max() <= 30.0
    far = raw.abs() > 1e3
    torch.testing.assert_close(capped[far], 30.0 * raw[far].sign())
    assert far.sum() > 10


@pytest.mark.parametrize(
    ("kind", "fraction"), [("sliding_attention", 1.0), ("full_attention", 0.25)]
)
def test_rotary_angles_are_those_of_transformers_to_the_bit(pair, kind, fraction):
    """At position 131,071 the last bit of a frequency is 0.007 rad: close is not enough."""
    rotary = pair.theirs.model.decoder.rotary_emb
    positions = torch.tensor([0, 1, 100, 5_000, 131_071])
    expected = rotary(torch.zeros(1), positions[None], kind)
    config = pair.ours.config
    dim = next(layer.head_dim for layer in config.layers if layer.kind == kind)
    theta = config.rotary[kind].theta
    angles = rotary_angles(Rotary(theta=theta, fraction=fraction), dim, positions)
    for ours, theirs in zip(angles, expected, strict=True):
        assert torch.equal(ours[:, 0], theirs[0])


LENGTHS = [3, 30, 0, 8, 17]


def test_a_batch_of_unequal_slots_denoises_each_as_if_alone_to_the_bit(pair, reference, rng):
    model, B = pair.ours, len(LENGTHS)
    canvases = reference.draw(rng, B, reference.CANVAS)
    soft_embeddings = torch.randn(B, reference.CANVAS, reference.HIDDEN, generator=rng)
    together = model.new_cache(B)
    for slot, length in enumerate(LENGTHS):
        if length:
            model.encode([reference.draw(rng, length).tolist()], together, [slot])
    logits = model.denoise(canvases, soft_embeddings, together, list(range(B)))
    for slot in range(B):
        one = slice(slot, slot + 1)
        alone = model.denoise(canvases[one], soft_embeddings[one], together, [slot])
        assert torch.equal(logits[one], alone), f"slot {slot}"


def test_the_order_of_slots_in_a_batch_does_not_matter(pair, reference, rng):
    model, cache = pair.ours, pair.ours.new_cache(3)
    model.encode([reference.draw(rng, n).tolist() for n in (4, 20, 9)], cache, [0, 1, 2])
    canvases = reference.draw(rng, 3, reference.CANVAS)
    soft_embeddings = torch.randn(3, reference.CANVAS, reference.HIDDEN, generator=rng)
    logits = model.denoise(canvases, soft_embeddings, cache, [0, 1, 2])
    order = [2, 0, 1]
    assert torch.equal(
        model.denoise(canvases[order], soft_embeddings[order], cache, order), logits[order]
    )


def test_encoding_several_slots_at_once_equals_one_at_a_time_to_the_bit(pair, reference, rng):
    model, lengths = pair.ours, [3, 30, 8, 17]
    prompts = [reference.draw(rng, length).tolist() for length in lengths]
    together, apart = model.new_cache(5), model.new_cache(5)
    slots = [4, 0, 2, 1]
    states = model.encode(prompts, together, slots).split(lengths)
    for prompt, slot, at_once in zip(prompts, slots, states, strict=True):
        assert torch.equal(at_once, model.encode([prompt], apart, [slot]))
        assert together.length(slot) == apart.length(slot) == len(prompt)
        for layer in range(len(reference.KINDS)):
            torch.testing.assert_close(
                reference.cached(together, slot, layer),
                reference.cached(apart, slot, layer),
                rtol=0,
                atol=0,
            )


def test_a_pass_encodes_and_denoises_each_slot_as_if_alone_to_the_bit(pair, reference, rng):
    """Slots that encode and wait, that encode and denoise what follows, that only denoise."""
    model, encoded, denoised = pair.ours, {3: 7, 0: 21, 4: 1}, [0, 1, 4]
    canvases = reference.draw(rng, len(denoised), reference.CANVAS)
    soft_embeddings = torch.randn(len(denoised), reference.CANVAS, reference.HIDDEN, generator=rng)
    before = {slot: reference.draw(rng, 5 * slot + 4).tolist() for slot in range(5)}
    more = {slot: reference.draw(rng, length).tolist() for slot, length in encoded.items()}
    together, apart, steps = (model.new_cache(5) for _ in range(3))
    for cache in (together, apart, steps):
        for slot, tokens in before.items():
            model.encode([tokens], cache, [slot])
    logits = model.denoise(canvases, soft_embeddings, together, denoised, more)
    for slot in {*encoded, *denoised}:
        own = {slot: more[slot]} if slot in more else {}
        mine = [i for i, one in enumerate(denoised) if one == slot]
        what = canvases[mine], soft_embeddings[mine]
        alone = model.denoise(*what, apart, [slot] * len(mine), own)
        assert torch.equal(logits[mine], alone)
        if slot in more:
            model.encode([more[slot]], steps, [slot])
        if mine:
            in_steps = model.denoise(*what, steps, [slot])
            torch.testing.assert_close(logits[mine], in_steps, **reference.CLOSE)
        assert together.length(slot) == len(before[slot]) + len(more.get(slot, ()))
        for layer in range(len(reference.KINDS)):
            torch.testing.assert_close(
                reference.cached(together, slot, layer),
                reference.cached(apart, slot, layer),
                rtol=0,
                atol=0,
            )


@examples(15)
@given(cuts=st.lists(st.integers(1, 29), max_size=6, unique=True))
def test_a_prompt_can_be_encoded_in_any_pieces(pair, reference, cuts):
    prompt = reference.draw(torch.Generator().manual_seed(0), 30)
    whole = pair.ours.encode([prompt.tolist()], pair.ours.new_cache(1), [0])
    cache = pair.ours.new_cache(1)
    pieces = [
        pair.ours.encode([piece.tolist()], cache, [0])
        for piece in prompt.tensor_split(sorted(cuts))
    ]
    torch.testing.assert_close(torch.cat(pieces), whole, **reference.CLOSE)


def test_denoising_leaves_the_cache_as_it_was(pair, reference, rng):
    model, cache = pair.ours, pair.ours.new_cache(2)
    model.encode(reference.draw(rng, 2, 13).tolist(), cache, [0, 1])
    layers = range(len(reference.KINDS))
    before = [reference.cached(cache, slot, layer) for slot in (0, 1) for layer in layers]
    canvas, soft_embedding = reference.draw(rng, 2, 8), reference.no_soft_embedding(2, 8)
    first = model.denoise(canvas, soft_embedding, cache, [0, 1])
    model.denoise(reference.draw(rng, 2, 8), soft_embedding, cache, [0, 1])
    after = [reference.cached(cache, slot, layer) for slot in (0, 1) for layer in layers]
    torch.testing.assert_close(after, before, rtol=0, atol=0)
    assert [cache.length(0), cache.length(1)] == [13, 13]
    assert torch.equal(model.denoise(canvas, soft_embedding, cache, [0, 1]), first)


@pytest.mark.parametrize("kept", [0, 20, 50, 62, 70])
def test_a_rewound_slot_encodes_as_if_it_had_never_gone_further(pair, reference, rng, kept):
    """Further back than a canvas, sliding layers may have to encode some tokens again."""
    model, prompt = pair.ours, reference.draw(rng, 70)
    cache, untouched = model.new_cache(2), model.new_cache(2)
    other = reference.draw(rng, 9).tolist()
    model.encode([prompt.tolist(), other], cache, [0, 1])
    reached = cache.rewind(0, kept)
    assert reached == (kept if kept >= len(prompt) - reference.CANVAS else 0)
    if reached < kept:
        model.encode([prompt[reached:kept].tolist()], cache, [0])
    if kept:
        model.encode([prompt[:kept].tolist()], untouched, [0])
    again = reference.draw(rng, 11).tolist()
    states = model.encode([again], cache, [0])
    torch.testing.assert_close(states, model.encode([again], untouched, [0]), **reference.CLOSE)
    canvas, soft_embedding = reference.draw(rng, 1, 8), reference.no_soft_embedding(1, 8)
    torch.testing.assert_close(
        model.denoise(canvas, soft_embedding, cache, [0]),
        model.denoise(canvas, soft_embedding, untouched, [0]),
        **reference.CLOSE,
    )
    assert [cache.length(0), cache.length(1)] == [kept + 11, 9]


@pytest.mark.parametrize("length", [-1, 14])
def test_a_slot_rewinds_only_to_where_it_has_been(pair, reference, rng, length):
    cache = pair.ours.new_cache(1)
    pair.ours.encode([reference.draw(rng, 13).tolist()], cache, [0])
    with pytest.raises(ValueError, match=f"cannot rewind to {length}: 13 tokens are cached"):
        cache.rewind(0, length)


@pytest.mark.parametrize(("head_dim", "kv_heads"), [(32, 1), (32, 2), (16, 1), (16, 2)])
def test_both_ways_to_write_full_layers_mean_the_same(reference, rng, tmp_path, head_dim, kv_heads):
    """transformers 5.23 leaves a number out of `per_layer_config` where it is no exception."""
    pair = reference.make_pair(
        tmp_path, global_head_dim=head_dim, num_global_key_value_heads=kv_heads
    )
    now = json.loads((tmp_path / "config.json").read_text())["text_config"]
    assert "per_layer_config" in now
    assert "global_head_dim" not in now
    reference.edit_config(
        tmp_path,
        per_layer_config=None,
        global_head_dim=head_dim,
        num_global_key_value_heads=kv_heads,
    )
    older = checkpoint.load(tmp_path)
    assert older.config == pair.ours.config
    full = pair.ours.config.layers[1]
    assert (full.head_dim, full.kv_heads) == (head_dim, kv_heads)
    prompt = reference.draw(rng, 12).tolist()
    expected = reference.Theirs(pair.theirs).encode(prompt)
    states = older.encode([prompt], older.new_cache(1), [0])
    torch.testing.assert_close(states, expected, **reference.CLOSE)


def test_the_published_geometry_is_read_from_transformers_defaults(tmp_path):
    """head_dim 512 of full layers is transformers' default, for files that do not give one."""
    text = {
        "vocab_size": 64,
        "hidden_size": 32,
        "intermediate_size": 48,
        "moe_intermediate_size": 24,
        "num_experts": 4,
        "top_k_experts": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "num_hidden_layers": 1,
        "layer_types": ["full_attention"],
        "sliding_window": 8,
        "rms_norm_eps": 1e-6,
    }
    config = ModelConfig.from_hf({"model_type": "diffusion_gemma", "text_config": text})
    assert (config.layers[0].head_dim, config.layers[0].kv_heads) == (512, 2)
    assert (config.canvas_length, config.max_positions, config.softcap) == (256, 131_072, 30.0)


def test_bf16_loses_no_more_than_transformers_does_in_bf16(pair, reference, rng):
    """8 bits are 0.4 % a rounding, dozens of them in a row. Observed for both: 3 % of the norm."""
    half = checkpoint.load(pair.directory, dtype=torch.bfloat16)
    half_of_theirs = type(pair.theirs).from_pretrained(pair.directory, dtype=torch.bfloat16)
    errors = []
    for prompt, canvas in zip(
        reference.draw(rng, 8, 20).tolist(),
        reference.draw(rng, 8, 1, reference.CANVAS),
        strict=True,
    ):
        both = []
        for model in (pair.ours, half):
            cache = model.new_cache(1)
            model.encode([prompt], cache, [0])
            soft_embedding = reference.no_soft_embedding(1, reference.CANVAS).to(
                model.embed_tokens.weight.dtype
            )
            logits = model.denoise(canvas, soft_embedding, cache, [0])
            soft_embedding = reference.soft_embedding(model, logits)
            again = model.denoise(canvas, soft_embedding, cache, [0])[0]
            both.append(model.softcapped(again))
        theirs = reference.Theirs(half_of_theirs)
        theirs.encode(prompt)
        both.append(theirs.denoise(canvas[0], theirs.denoise(canvas[0])))
        exact, *rounded = both
        errors.append([(logits - exact).norm() / exact.norm() for logits in rounded])
    ours, expected = torch.tensor(errors).mean(dim=0).tolist()
    assert 1e-3 < ours < 1.5 * expected
    assert expected < 0.1
