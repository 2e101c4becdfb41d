"""Images in requests of the library, on a small checkpoint whose vision tower is random."""

import json
import shutil

import pictured
import pytest
from bad_images import bad_images
from pictured import content, picture
from PIL import Image

from dlm import Engine, JsonSchema, Policy, Request, RequestError
from dlm.images import ImageFile
from dlm.models.image_tokens import FIRST

SCHEMA = {"type": "object", "properties": {"seen": {"type": "boolean"}}, "required": ["seen"]}


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return pictured.write(tmp_path_factory.mktemp("seeing"))


@pytest.fixture(scope="module")
def seeing(directory):
    return Engine.load(directory, device="cpu")


def asked(*images, text="What is it?", **fields):
    parts = [{"type": "image", "image": image} for image in images]
    parts.append({"type": "text", "text": text})
    return Request(messages=[{"role": "user", "content": parts}], **fields)


def test_an_image_is_tokens_between_its_markers(seeing):
    tokens = seeing.prompts.tokens(asked(picture()))
    prompt = seeing.prompts.encode(asked(picture()))
    soft = [i for i, token in enumerate(prompt.tokens) if token >= FIRST]
    assert len(soft) == len(prompt.images[0].embeddings) > 9
    assert soft == [*range(soft[0], soft[-1] + 1)]
    assert tokens[soft[0] - 1] == 5
    assert tokens[soft[-1] + 1] == 6
    assert {tokens[i] for i in soft} == {4}
    assert [t for t in prompt.tokens if t < FIRST] == [t for t in tokens if t != 4]


def test_every_form_of_the_same_image_gives_the_same_tokens(seeing):
    data = content(picture())
    forms = (picture(), Image.open(pictured.BytesIO(data)), data, ImageFile(data, "here"))
    prompts = [seeing.prompts.encode(asked(form)) for form in forms]
    images = [prompt.images[0] for prompt in prompts]
    assert len({image.number for image in images}) == 2  # pixels and bytes have hashes of their own
    assert all((image.embeddings == images[0].embeddings).all() for image in images)
    other = seeing.prompts.encode(asked(picture(seed=1))).images[0]
    assert other.number not in {image.number for image in images}


def test_an_answer_about_images_is_valid_and_depends_on_them(seeing):
    """The tower is random, so that nothing is said of what is right."""
    requests = [
        asked(*images, constraint=JsonSchema(SCHEMA), max_tokens=40, seed=3)
        for images in ([picture()], [picture(1), picture(2)], [content(picture(), "JPEG")])
    ]
    alone = [seeing.generate(one) for one in requests]
    together = seeing.generate(requests)
    for one, other in zip(alone, together, strict=True):
        assert json.loads(one.text).keys() == {"seen"}
        assert (one.text, one.token_ids) == (other.text, other.token_ids)
    free = [seeing.generate(asked(picture(seed), max_tokens=24)).token_ids for seed in range(4)]
    assert len({*map(tuple, free)}) > 1


def test_an_image_that_was_seen_is_not_encoded_again(seeing):
    image = picture(seed=77)
    first = seeing.generate(asked(image, max_tokens=8))
    again = seeing.generate(asked(image, text="What is it? Say more.", max_tokens=8))
    assert first.stats.cached < 32
    assert again.stats.cached >= first.prompt_tokens // 16 * 16 - 48


def test_images_of_requests_that_ended_are_forgotten(directory):
    engine = Engine.load(directory, device="cpu", slots=1)
    for seed in range(70):
        engine.prompts.encode(asked(picture(seed)))
    assert len(engine.model.images._images) == 64
    kept = engine.prompts.encode(asked(picture(3)))  # was dropped, and is encoded anew
    assert engine.generate(asked(picture(3), max_tokens=4)).token_ids
    assert kept.images[0].number == 70


@pytest.mark.parametrize(("name", "data"), bad_images().items(), ids=[*bad_images()])
def test_a_bad_file_is_refused_with_its_place(seeing, name, data):
    with pytest.raises(RequestError, match=r"^messages\[0\]\.content\[0\]\.image "):
        seeing.prepare(asked(data))


def test_limits_of_images(directory):
    policy = Policy(max_images=2, max_image_pixels=300)
    engine = Engine.load(directory, device="cpu", policy=policy)
    with pytest.raises(RequestError, match="too large: 3 images, and up to 2 are served"):
        engine.add(asked(*[picture()] * 3))
    with pytest.raises(RequestError, match="is 21 by 15 pixels: it takes 300 pixels at most"):
        engine.add(asked(content(picture(width=21, height=15))))
    engine.add(asked(picture(), picture(), max_tokens=4))


def test_without_a_tower_images_are_refused(built_in, directory):
    for engine in (built_in, Engine.load(directory, device="cpu", policy=Policy(max_images=0))):
        with pytest.raises(RequestError, match="messages hold an image: this model reads text"):
            engine.add(asked(picture()))


@pytest.mark.parametrize("image", [None, 3, "a path.png", {"url": "a"}])
def test_a_part_without_an_image_is_refused(image):
    with pytest.raises(RequestError, match=r"messages\[0\]\.content\[0\]\.image is a"):
        asked(image)


def test_a_text_that_spells_the_mark_is_no_image(seeing):
    messages = [
        {"role": "user", "content": [{"type": "image", "image": picture()}]},
        {"role": "assistant", "content": "A cat."},
        {"role": "user", "content": "<|image|> And this?"},
    ]
    assert len(seeing.prompts.encode(Request(messages=messages)).images) == 1


def test_a_template_that_leaves_images_out_is_an_error(directory, tmp_path):
    shutil.copytree(directory, tmp_path, dirs_exist_ok=True)
    template = tmp_path / "chat_template.jinja"
    template.write_text(template.read_text().replace(pictured.MARK, ""))
    engine = Engine.load(tmp_path, device="cpu")
    with pytest.raises(RequestError, match=r"messages hold 1 images.*marks 0"):
        engine.add(asked(picture()))


@pytest.mark.parametrize("decoding", ["left-to-right", "drafted"])
def test_other_decodings_read_images_too(directory, decoding):
    from dlm.loading import Loading

    engine = Loading(model=str(directory), device="cpu", policy=Policy(), writes=decoding).engine()
    result = engine.generate(asked(picture(), constraint=JsonSchema(SCHEMA), max_tokens=40))
    assert json.loads(result.text).keys() == {"seen"}


def test_decisions_about_images(seeing):
    request = asked(picture())
    question = {"type": "predicate", "instructions": "Is it red?"}
    by_canvas = seeing.decide(request, [question])
    by_causal = seeing.decide(request, [question], by="causal")
    assert by_canvas[0].probability < 1
    assert by_causal[0].probability < 1
