"""Images in prompts against transformers' DiffusionGemmaForBlockDiffusion, with random weights."""

import json

import pytest
import torch
from PIL import Image
from torch import Tensor
from transformers import DynamicCache
from transformers.models.gemma4.image_processing_pil_gemma4 import Gemma4ImageProcessorPil

from dlm.integrations.causal_lm import cache_name
from dlm.models import CheckpointError, ModelError, checkpoint
from dlm.models.diffusion_gemma.vision import VisionTower
from dlm.models.image_tokens import FIRST, MOST, EncodedImages, piece_length, runs, within_image
from dlm.models.pages import PAGE

IMAGE = 3  # the token by which transformers marks an image, as in reference.py
CPU = torch.device("cpu")


def picture(width: int = 60, height: int = 40, seed: int = 0) -> Image.Image:
    rng = torch.Generator().manual_seed(seed)
    pixels = torch.randint(256, (height, width, 3), generator=rng, dtype=torch.uint8)
    return Image.fromarray(pixels.numpy())


@pytest.fixture(scope="module", params=["vision", None], ids=["both ways", "causal"])
def seeing(request, reference, tmp_path_factory):
    """Return a model of transformers, ours, and our tower."""
    directory = tmp_path_factory.mktemp("seeing")
    theirs = reference.make(directory, use_bidirectional_attention=request.param)
    Gemma4ImageProcessorPil(max_soft_tokens=70).save_pretrained(directory)
    ours = checkpoint.load(directory)
    return theirs, ours, VisionTower.load(directory, ours.images, torch.float32, CPU)


class Theirs:
    """A prompt with images in transformers' model; `parts` are tokens, or patches of an image."""

    def __init__(self, model, parts):
        tokens = [[IMAGE] * part.tokens if hasattr(part, "pixels") else part for part in parts]
        ids = torch.tensor([[token for part in tokens for token in part]])
        shown = [part for part in parts if hasattr(part, "pixels")]
        kinds = (ids == IMAGE).long()
        encoder, self._cache = model.model.encoder, DynamicCache(config=model.config.text_config)
        self._model, self._past = model, {cache_name(model): self._cache}
        masks = encoder.create_masks_for_generate(
            config=model.config,
            inputs_embeds=torch.empty(*ids.shape, 0),
            attention_mask=None,
            past_key_values=None,
            position_ids=torch.arange(ids.shape[1])[None],
            mm_token_type_ids=kinds,
        )
        with torch.no_grad():
            self.states = encoder(
                input_ids=ids,
                pixel_values=torch.cat([each.pixels for each in shown]),
                image_position_ids=torch.cat([each.positions for each in shown]),
                attention_mask=masks,
                mm_token_type_ids=kinds,
                **{cache_name(encoder): self._cache},
            ).last_hidden_state[0]

    @torch.no_grad()
    def denoise(self, canvas: Tensor) -> Tensor:
        return self._model(**self._past, decoder_input_ids=canvas[None]).logits[0]


def test_states_and_logits_after_images_are_those_of_transformers(seeing, reference, rng):
    """Images are longer than the window of sliding layers, before and after texts."""
    theirs, ours, tower = seeing
    wide, high = (tower.patches(picture(*size, seed=size[0])) for size in ((60, 40), (20, 90)))
    images = [tower.encode(wide), tower.encode(high), tower.encode(wide)]
    text = [5, 6, 7, 9, 11]
    expected = Theirs(theirs, [wide, text, high, text[:1], wide, text])

    cache = ours.new_cache(1)
    tokens = [*images[0].tokens, *text, *images[1].tokens, text[0], *images[2].tokens, *text]
    states = ours.encode([tokens], cache, [0])
    canvas = reference.draw(rng, reference.CANVAS)
    logits = ours.denoise(canvas[None], reference.no_soft_embedding(1, 8), cache, [0])

    torch.testing.assert_close(states, expected.states, **reference.CLOSE)
    torch.testing.assert_close(
        ours.softcapped(logits[0]), expected.denoise(canvas), **reference.CLOSE
    )


def test_the_pixels_of_an_image_change_the_states(seeing, reference):
    """Otherwise parity would prove nothing about images."""
    _, ours, tower = seeing
    states = []
    for seed in (1, 2):
        image = tower.encode(tower.patches(picture(seed=seed)))
        states.append(ours.encode([[*image.tokens, 5]], ours.new_cache(1), [0])[-1])
    assert (states[0] - states[1]).abs().mean() > 1e-3


def test_a_prompt_can_be_cut_before_and_after_an_image(seeing):
    _, ours, tower = seeing
    image = tower.encode(tower.patches(picture()))
    before, after = [*range(5, 30)], [*range(7, 19)]
    whole = ours.encode([[*before, *image.tokens, *after]], ours.new_cache(1), [0])
    cache = ours.new_cache(1)
    pieces = [ours.encode([piece], cache, [0]) for piece in (before, image.tokens, after)]
    torch.testing.assert_close(torch.cat(pieces), whole, rtol=1e-5, atol=1e-5)


def test_a_prompt_beside_others_has_the_same_states_to_the_bit(seeing):
    _, ours, tower = seeing
    image = tower.encode(tower.patches(picture()))
    tokens = [5, *image.tokens, 6]
    alone = ours.encode([tokens], ours.new_cache(1), [0])
    others = [[*range(40)], [*image.tokens, 9]]
    together = ours.encode([others[0], tokens, others[1]], ours.new_cache(3), [0, 1, 2])
    assert torch.equal(together[40 : 40 + len(tokens)], alone)


def test_equal_beginnings_are_shared_also_across_an_image(seeing):
    _, ours, tower = seeing
    image, other = (tower.encode(tower.patches(picture(seed=seed))) for seed in (1, 2))
    begin, end = [*range(4, 4 + PAGE + 3)], [*range(5, 5 + 2 * PAGE)]
    for first, second, shared in (
        (image, image, len(begin) + len(image.tokens) + len(end) - 1),
        (image, other, len(begin)),
    ):
        cache = ours.new_cache(2)
        for slot, one in ((0, first), (1, second)):
            tokens = [*begin, *one.tokens, *end]
            found = cache.attach(slot, tokens)
            assert found == (shared // PAGE * PAGE if slot else 0)
            ours.encode([tokens[found:]], cache, [slot])


def test_no_shared_beginning_ends_within_an_image(seeing):
    """An image of which only a part is equal is not shared."""
    _, ours, tower = seeing
    image = tower.encode(tower.patches(picture()))
    begin = [*range(4, 4 + PAGE + 3)]
    tokens = [*begin, *image.tokens, 5]
    cache = ours.new_cache(2)
    cache.attach(0, tokens)
    ours.encode([tokens], cache, [0])
    assert cache.attach(1, [*tokens[:-9], 6, 7]) == PAGE


def test_tokens_of_an_image_that_was_dropped_are_an_error():
    images = EncodedImages()
    gone = images.add(torch.zeros(4, 2)).tokens
    here = images.add(torch.ones(3, 2))
    assert images.embeddings(here.tokens[1:]).shape == (2, 2)
    with pytest.raises(KeyError):
        images.embeddings(gone)
    with pytest.raises(KeyError, match="token 7 belongs to no image"):
        images.embeddings([7])
    with pytest.raises(ValueError, match="an image has 1 to 4096 soft tokens, got 0"):
        images.add(torch.zeros(0, 2))


def test_pieces_of_a_prompt_hold_whole_images():
    image, next_one = [*range(FIRST, FIRST + 9)], [*range(FIRST + MOST, FIRST + MOST + 4)]
    tokens = [1, 2, *image, *next_one, 3]
    assert [*runs(tokens)] == [(None, 2), (0, 9), (1, 4), (None, 1)]
    assert [*runs([1, 2])] == [(None, 2)]
    assert [*runs([*image, *image])] == [(0, 9), (0, 9)]
    assert [*runs([])] == []
    inside = {end for end in range(len(tokens) + 1) if within_image(tokens, end)}
    assert inside == {*range(3, 11), *range(12, 15)}
    assert piece_length(tokens, 1) == 1
    assert piece_length(tokens, 5) == 2  # before the image
    assert piece_length(tokens[2:], 5) == 9  # the image alone
    assert piece_length(tokens, 11) == 11
    assert piece_length(tokens, 12) == 11
    assert piece_length(tokens, 100) == 16


def test_a_directory_without_settings_or_weights_has_no_tower(reference, tmp_path):
    reference.make(tmp_path)
    assert VisionTower.load(tmp_path, EncodedImages(), torch.float32, CPU) is None


def test_tensors_that_do_not_fit_are_named(reference, tmp_path):
    reference.make(tmp_path)
    Gemma4ImageProcessorPil(max_soft_tokens=70).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["vision_config"]["intermediate_size"] = 24
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(CheckpointError, match=r"(?s)vision_tower.*size mismatch.*gate_proj"):
        VisionTower.load(tmp_path, EncodedImages(), torch.float32, CPU)


def test_an_image_without_pixels_is_refused(seeing):
    *_, tower = seeing
    with pytest.raises(ModelError, match="the image processor refuses it"):
        tower.patches(Image.new("RGB", (0, 10)))
