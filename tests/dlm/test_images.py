"""Images in requests, on a small checkpoint whose vision tower has random weights."""

import json
import shutil

import pictured
import pytest
from bad_images import bad_images
from pictured import content, picture
from PIL import Image

from dlm import Decision, Engine, JsonSchema, Policy, PredicateQuestion, Request, RequestError
from dlm.images import ImageFile, images_after_results
from dlm.loading import Loading
from dlm.models.image_tokens import FIRST

SCHEMA = {"type": "object", "properties": {"seen": {"type": "boolean"}}, "required": ["seen"]}


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    path = pictured.write(tmp_path_factory.mktemp("seeing"))
    config = json.loads((path / "generation_config.json").read_text())
    config["max_denoising_steps"] = 12  # to save time
    (path / "generation_config.json").write_text(json.dumps(config))
    return path


@pytest.fixture(scope="module")
def seeing(directory):
    return Engine.load(directory, device="cpu")


def request_about(*images, text="What is it?", **fields):
    parts = [{"type": "image", "image": image} for image in images]
    parts.append({"type": "text", "text": text})
    return Request(messages=[{"role": "user", "content": parts}], **fields)


def test_an_image_becomes_tokens_between_its_markers(seeing):
    tokens = seeing.prompts.tokens(request_about(picture()))
    prompt = seeing.prompts.encode(request_about(picture()))
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
    prompts = [seeing.prompts.encode(request_about(form)) for form in forms]
    images = [prompt.images[0] for prompt in prompts]
    assert len({image.number for image in images}) == 2  # pixels and bytes have hashes of their own
    assert all((image.embeddings == images[0].embeddings).all() for image in images)
    other = seeing.prompts.encode(request_about(picture(seed=1))).images[0]
    assert other.number not in {image.number for image in images}


def test_an_answer_about_images_is_valid_and_depends_on_them(seeing):
    requests = [
        request_about(*images, constraint=JsonSchema(SCHEMA), max_tokens=16, seed=3)
        for images in ([picture()], [picture(1), picture(2)], [content(picture(), "JPEG")])
    ]
    alone = [seeing.generate(one) for one in requests]
    together = seeing.generate(requests)
    for one, other in zip(alone, together, strict=True):
        assert json.loads(one.text).keys() == {"seen"}
        assert (one.text, one.token_ids) == (other.text, other.token_ids)
    free = [
        seeing.generate(request_about(picture(seed), max_tokens=8)).token_ids for seed in range(4)
    ]
    assert len({*map(tuple, free)}) > 1


def test_an_image_in_the_cache_is_not_encoded_again(seeing):
    image = picture(seed=77)
    first = seeing.generate(request_about(image, max_tokens=8))
    again = seeing.generate(request_about(image, text="What is it? Say more.", max_tokens=8))
    assert first.stats.cached < 32
    assert again.stats.cached >= first.prompt_tokens // 16 * 16 - 48


def test_images_that_were_not_used_recently_are_dropped(directory):
    engine = Engine.load(directory, device="cpu", slots=1)
    for seed in range(70):
        engine.prompts.encode(request_about(picture(seed)))
    assert len(engine.model.images._images) == 64
    kept = engine.prompts.encode(request_about(picture(3)))  # was dropped, and is encoded anew
    assert engine.generate(request_about(picture(3), max_tokens=4)).token_ids
    assert kept.images[0].number == 70


@pytest.mark.parametrize(("name", "data"), bad_images().items(), ids=[*bad_images()])
def test_a_bad_file_is_refused_with_its_place(seeing, name, data):
    with pytest.raises(RequestError, match=r"^messages\[0\]\.content\[0\]\.image "):
        seeing.prepare(request_about(data))


def test_without_a_vision_tower_images_are_refused(built_in, directory):
    for engine in (built_in, Engine.load(directory, device="cpu", policy=Policy(max_images=0))):
        problem = r"^messages\[0\].content\[0\].image is an image: this model reads text"
        with pytest.raises(RequestError, match=problem):
            engine.add(request_about(picture()))
        with pytest.raises(RequestError, match=r"^messages\[3\].content\[1\].image is an image"):
            engine.add(Request(messages=with_results("a", [text("b"), image(1)])))


@pytest.mark.parametrize("image", [None, 3, "a path.png", {"url": "a"}])
def test_a_part_without_an_image_is_refused(image):
    with pytest.raises(
        RequestError, match=r"messages\[0\]\.content\[0\]\.image must be a PIL image"
    ):
        request_about(image)


def test_a_text_that_spells_the_image_token_is_no_image(seeing):
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
        engine.add(request_about(picture()))


def with_results(*results, after=()):
    """Return a conversation with results of tools; each of `results` is a content."""
    calls = [
        {"id": str(i), "type": "function", "function": {"name": f"look_{i}", "arguments": {}}}
        for i in range(len(results))
    ]
    answers = (
        {"role": "tool", "tool_call_id": call["id"], "name": call["function"]["name"], "content": c}
        for call, c in zip(calls, results, strict=True)
    )
    user = {"role": "user", "content": "Look."}
    assistant = {"role": "assistant", "content": "", "tool_calls": calls}
    return [user, assistant, *answers, *after]


def image(seed):
    return {"type": "image", "image": picture(seed)}


def text(words):
    return {"type": "text", "text": words}


RESULTS = "one", [text("two"), image(2), text("three"), image(1)], [image(3)], "four"


@pytest.fixture(scope="module")
def templated(directory, tmp_path_factory):
    """Make engines whose template renders a tool's message by the expression `result`.

    As in Gemma's template, results stand within the turn of the model."""

    def make(result):
        path = shutil.copytree(directory, tmp_path_factory.mktemp("templated"), dirs_exist_ok=True)
        (path / "chat_template.jinja").write_text(TEMPLATE.replace("RESULT", result))
        return Engine.load(path, device="cpu")

    return make


TEMPLATE = """
{%- macro shown(content) -%}
{%- if content is string -%}{{ content }}
{%- else -%}
{%- for part in content -%}{{ '<|image|>' if part.type == 'image' else part.text }}{%- endfor -%}
{%- endif -%}
{%- endmacro -%}
{%- macro texts(content) -%}
{%- if content is string -%}{{ content }}
{%- else -%}{%- for part in content if part.type == 'text' -%}{{ part.text }}{%- endfor -%}
{%- endif -%}
{%- endmacro -%}
{%- macro images(content) -%}
{%- for part in content if part.type == 'image' -%}<|image|>{%- endfor -%}
{%- endmacro -%}
{%- for message in messages -%}
{%- if message.role == 'tool' -%}<|tool_response>{{ RESULT }}
{%- elif message.tool_calls -%}<|turn>model
{% for call in message.tool_calls -%}<|tool_call>{{ call.function.name }}<tool_call|>{%- endfor -%}
{%- else -%}<|turn>{{ 'model' if message.role == 'assistant' else message.role }}
{{ shown(message.content) }}<turn|>
{% endif -%}
{%- endfor -%}
{%- if messages[-1].role != 'tool' -%}<|turn>model
{% endif -%}
"""
INSIDE = "texts(message.content) + '<tool_response|>' + images(message.content)"
WITHOUT = "texts(message.content) + '<tool_response|>'"
OF_TEXTS = "message.content + '<tool_response|>'"  # raises an error for a list


def rendered(engine, messages):
    """Return the prompt as a text, without an empty thought; `@N` is the image of seed N."""
    prompt = engine.prompts.encode(Request(messages=messages))
    by_pixels = {
        engine.prompts.encode(Request(messages=[{"role": "user", "content": [image(seed)]}]))
        .images[0]
        .number: seed
        for seed in range(5)
    }
    left = [f"@{by_pixels[one.number]}" for one in prompt.images]
    written = ""
    for token in prompt.tokens:
        if token < FIRST:
            written += engine.chat.tokenizer.decode([token])
        elif not written.endswith("\0"):
            written += "\0"
    begin, end = engine.chat.tokenizer.decode([5]), engine.chat.tokenizer.decode([6])
    for one in left:
        written = written.replace(f"{begin}\0{end}", one, 1)
    assert "\0" not in written
    written = written.replace("<|tool_response>", "[").replace("<tool_response|>", "]")
    return written.removesuffix("<|channel>thought\n<channel|>")


def test_images_stand_in_the_results_of_tools(templated):
    found = rendered(templated(INSIDE), with_results(*RESULTS))
    assert found.endswith("<tool_call|>[one][two\nthree]@2@1[]@3[four]")
    found = rendered(
        templated(INSIDE), with_results([image(4)], after=[{"role": "user", "content": "So?"}])
    )
    assert found.endswith("<tool_call|>[]@4<|turn>user\nSo?<turn|>\n<|turn>model\n")


def test_the_built_in_template_holds_images_of_results(seeing):
    found = rendered(seeing, with_results(*RESULTS))
    assert "<|turn>tool\ntwo\n@2three@1<turn|>\n<|turn>tool\n@3<turn|>" in found


@pytest.mark.parametrize("result", [WITHOUT, OF_TEXTS])
def test_images_that_a_template_leaves_out_of_results_stand_after_the_results(templated, result):
    engine = templated(result)
    user = {"role": "user", "content": "So?"}
    shown = [{"role": "user", "content": [image(0), text("So?")]}]
    moved = "Images in result 2 (look_1):@2@1Images in result 3 (look_2):@3"
    found = rendered(engine, with_results(*RESULTS))
    assert found.endswith(
        f"<tool_call|>[one][two\nthree][][four]<|turn>user\n{moved}<turn|>\n<|turn>model\n"
    )
    for after, end in (([user], "So?"), (shown, "@0So?")):
        found = rendered(engine, with_results(*RESULTS, after=after))
        assert found.endswith(f"[four]<|turn>user\n{moved}{end}<turn|>\n<|turn>model\n")


def test_left_out_images_of_several_turns_stand_after_their_own_results(templated):
    later = {"role": "assistant", "content": "Fine."}
    first = with_results([image(1)], "none", after=[later])
    found = rendered(templated(WITHOUT), [*first, *with_results("none", [image(2)])])
    assert (
        "[][none]<|turn>user\nImages in result 1 (look_0):@1<turn|>\n<|turn>model\nFine." in found
    )
    assert "[none][]<|turn>user\nImages in result 2 (look_1):@2<turn|>\n" in found


@pytest.mark.parametrize("result", [INSIDE, WITHOUT])
def test_an_answer_after_images_of_results_is_valid(templated, result):
    messages = with_results(*RESULTS)
    request = Request(messages=messages, constraint=JsonSchema(SCHEMA), max_tokens=16)
    engine = templated(result)
    assert json.loads(engine.generate(request).text).keys() == {"seen"}
    one, other = (
        engine.generate(Request(messages=with_results([image(seed)]), max_tokens=8))
        for seed in (2, 4)
    )
    assert one.token_ids != other.token_ids


def test_images_above_the_limits_of_a_policy_are_refused(directory):
    policy = Policy(max_images=2, max_image_pixels=300)
    engine = Engine.load(directory, device="cpu", policy=policy)
    shown = {"role": "user", "content": [image(3)]}
    in_results = with_results([image(1)], [image(2)], after=[shown])
    for three in (request_about(*[picture()] * 3), Request(messages=in_results)):
        with pytest.raises(RequestError, match="too large: 3 images, and up to 2 are served"):
            engine.add(three)
    with pytest.raises(RequestError, match="must have at most 300 pixels, got 21 by 15"):
        engine.add(request_about(content(picture(width=21, height=15))))
    wide = {"type": "image", "image": picture(width=21, height=15)}
    place = r"^messages\[3\].content\[1\].image must have at most 300 pixels, got 21 by 15"
    with pytest.raises(RequestError, match=place):
        engine.add(Request(messages=with_results("a", [text("b"), wide])))
    engine.add(request_about(picture(), picture(), max_tokens=4))


def test_images_of_too_many_pixels_together_are_refused_before_any_is_decoded(
    directory, monkeypatch
):
    engine = Engine.load(directory, device="cpu", policy=Policy(max_image_pixels=300))
    images = [content(picture(seed, 20, 14)) for seed in range(5)]
    engine.add(request_about(*images[:4], max_tokens=4))
    monkeypatch.setattr(Image.Image, "load", None)
    problem = r"^messages\[0\].content\[4\].image brings the images of this request to 1400 pixels"
    for ask in (engine.add, engine.tokens):
        with pytest.raises(RequestError, match=problem):
            ask(request_about(*images, max_tokens=4))


@pytest.mark.parametrize("decoding", ["left-to-right", "drafted"])
def test_every_decoding_reads_images(directory, decoding):
    engine = Engine.loaded(
        Loading(model=str(directory), device="cpu", policy=Policy(), decoding=decoding)
    )
    result = engine.generate(request_about(picture(), constraint=JsonSchema(SCHEMA), max_tokens=24))
    assert json.loads(result.text).keys() == {"seen"}


def test_decisions_about_images(seeing):
    request = request_about(picture())
    question = {"type": "predicate", "instructions": "Is it red?"}
    by_canvas = seeing.decide(request, [question])
    by_causal = seeing.decide(request, [question], by="causal")
    assert by_canvas[0].probability < 1
    assert by_causal[0].probability < 1


def test_a_question_about_an_image_stands_in_the_turn_that_shows_it():
    decision = Decision(
        request=request_about(picture()), questions=[PredicateQuestion(instructions="Is it red?")]
    )
    ((_, _, request),) = decision.prompted()
    (message,) = request.messages
    assert [part["type"] for part in message["content"][-2:]] == ["text", "text"]
    assert "Is it red?" in message["content"][-1]["text"]


def test_a_system_message_among_results_does_not_separate_them():
    shown = [{"type": "image", "image": content(picture())}]
    results = [{"role": "tool", "name": name, "content": shown} for name in ("a", "b")]
    moved = images_after_results([results[0], {"role": "system", "content": "x"}, results[1]])
    assert [message["role"] for message in moved] == ["tool", "system", "tool", "user"]
    assert [part["type"] for part in moved[-1]["content"]] == ["text", "image"] * 2
    assert moved[-1]["content"][2]["text"] == "Images in result 2 (b):"
