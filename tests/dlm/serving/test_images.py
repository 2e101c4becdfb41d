"""Images in the three forms of requests, through the official clients, on a small checkpoint."""

import json
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import anthropic
import openai
import pictured
import pytest
from asks import turn
from bad_images import bad_images
from pictured import content, data_url, encoded, picture

from dlm import Engine, Policy

SCHEMA = {
    "type": "object",
    "properties": {"seen": {"type": "boolean"}},
    "required": ["seen"],
    "additionalProperties": False,
}
PNG, RED, BLUE = (content(picture(seed)) for seed in range(3))
QUESTION = {"type": "text", "text": "What is it?"}


class Host(BaseHTTPRequestHandler):
    """Host of images; `/elsewhere` redirects to another address."""

    served = 0

    def do_GET(self):
        Host.served += 1
        if self.path == "/elsewhere":
            self.send_response(302)
            self.send_header("Location", "/image.png")
            self.end_headers()
            return
        self.send_response(200)
        self.end_headers()
        self.wfile.write(PNG)

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def host():
    """Address of a host that is allowed."""
    running = HTTPServer(("127.0.0.1", 0), Host)
    thread = threading.Thread(target=running.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{running.server_port}"
    running.shutdown()
    thread.join()
    running.server_close()


@pytest.fixture(scope="module")
def seeing(serve, tmp_path_factory):
    directory = pictured.write(tmp_path_factory.mktemp("seeing"))
    settings = json.loads((directory / "generation_config.json").read_text())
    settings["max_denoising_steps"] = 6  # it has not learnt to read images
    (directory / "generation_config.json").write_text(json.dumps(settings))
    policy = Policy(image_hosts=frozenset({"127.0.0.1"}))
    with serve(Engine.load(directory, device="cpu", slots=4, policy=policy)) as served:
        yield served


@pytest.fixture(scope="module")
def claude(seeing):
    with anthropic.Anthropic(base_url=seeing.url, api_key="any", max_retries=0) as client:
        yield client


def source_of(data):
    return {"type": "base64", "media_type": "image/png", "data": encoded(data)}


def image_url(url):
    return {"type": "image_url", "image_url": {"url": url}}


def input_image(url):
    return {"type": "input_image", "image_url": url}


def image_block(source):
    return {"type": "image", "source": source}


def chat(served, url):
    parts = [{"type": "image_url", "image_url": url}, QUESTION]
    format = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
    return served.client.chat.completions.create(
        model="tiny",
        messages=turn(parts),
        response_format=format,
        seed=1,
        max_tokens=60,
    )


def respond(served, url, **more):
    parts = [
        input_image(url) | {"detail": "auto"},
        {"type": "input_text", "text": "What is it?"},
    ]
    return served.client.responses.create(
        model="tiny",
        input=turn(parts),
        text={"format": {"type": "json_schema", "name": "a", "schema": SCHEMA}},
        max_output_tokens=60,
        extra_body={"seed": 1},
        **more,
    )


def message(client, source):
    return client.messages.create(
        model="tiny",
        max_tokens=60,
        messages=turn([image_block(source), QUESTION]),
        extra_body={"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
    )


def test_an_image_means_the_same_in_every_form(seeing, claude):
    source = source_of(PNG)
    first = chat(seeing, {"url": data_url(PNG), "detail": "high"})
    second = respond(seeing, data_url(PNG))
    third = message(claude, source)
    assert json.loads(first.choices[0].message.content).keys() == {"seen"}
    assert first.choices[0].message.content == second.output_text
    assert json.loads(third.content[0].text).keys() == {"seen"}
    assert first.usage.prompt_tokens == second.usage.input_tokens > 20
    messages = turn([image_block(source), QUESTION])
    counted = claude.messages.count_tokens(model="tiny", messages=messages)
    assert counted.input_tokens == first.usage.prompt_tokens


def test_the_prompt_of_an_image_that_is_sent_again_is_cached(seeing):
    url = data_url(content(picture(seed=5)))
    chat(seeing, url)
    again = chat(seeing, url)
    assert again.usage.prompt_tokens_details.cached_tokens > 16


def test_a_stored_conversation_keeps_its_image(seeing):
    first = respond(seeing, data_url(PNG), store=True)
    second = seeing.client.responses.create(
        model="tiny", input="And now?", previous_response_id=first.id, max_output_tokens=8
    )
    assert second.usage.input_tokens > first.usage.input_tokens


@pytest.mark.parametrize(("name", "data"), bad_images().items(), ids=[*bad_images()])
def test_a_bad_image_is_a_400_in_a_second(seeing, claude, name, data):
    begun = time.monotonic()
    with pytest.raises(openai.BadRequestError) as error:
        chat(seeing, {"url": data_url(data)})
    assert error.value.param == "messages"
    assert "messages[0].content[0].image_url" in error.value.message
    with pytest.raises(openai.BadRequestError) as error:
        respond(seeing, data_url(data))
    assert error.value.param == "input"
    assert "input[0].content[0].image_url" in error.value.message
    with pytest.raises(anthropic.BadRequestError, match=r"content\[0\]\.source\.data"):
        message(claude, source_of(data))
    assert time.monotonic() - begun < 30  # a second each, on a machine that does nothing else


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("", "must be a data URL of an image in base64"),
        ("image.png", "must be a data URL of an image in base64"),
        ("file:///etc/passwd", "must be a data URL of an image in base64"),
        ("data:text/plain;base64,aGk=", "must be a data URL of an image in base64"),
        ("data:image/png,abc", "must be a data URL of an image in base64"),
        ("data:image/png;base64,a", "must be base64"),
        ("data:image/png;base64,$$$$", "must be base64"),
        ("https://example.com/a.png", "is an address of a host that is not allowed"),
        ("http://[::1/a.png", "is an address of a host that is not allowed"),
    ],
)
def test_an_address_that_is_not_served_is_refused(seeing, url, problem):
    with pytest.raises(openai.BadRequestError, match=problem):
        chat(seeing, url)


def test_images_of_allowed_hosts_are_fetched_and_no_redirect_is_followed(seeing, host, claude):
    first = chat(seeing, f"{host}/image.png")
    assert (
        first.choices[0].message.content == chat(seeing, data_url(PNG)).choices[0].message.content
    )
    third = message(claude, {"type": "url", "url": f"{host}/image.png"})
    assert json.loads(third.content[0].text).keys() == {"seen"}
    with pytest.raises(openai.BadRequestError, match=r"cannot be fetched.*302"):
        chat(seeing, f"{host}/elsewhere")


def chat_results(served, *contents):
    """Return the answer to a chat with one result of a tool for each of `contents`."""
    calls = [
        {"id": f"c{i}", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        for i in range(len(contents))
    ]
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": each}
        for call, each in zip(calls, contents, strict=True)
    ]
    called = {"role": "assistant", "content": None, "tool_calls": calls}
    return served.client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "Look."}, called, *results],
        seed=1,
        max_tokens=16,
    )


def response_results(served, *contents, custom=False, **more):
    call = {"type": "function_call", "name": "look", "arguments": "{}"}
    if custom:
        call = {"type": "custom_tool_call", "name": "look", "input": ""}
    kind = f"{call['type']}_output"
    items = [{"role": "user", "content": "Look."}]
    items += [call | {"call_id": f"c{i}"} for i in range(len(contents))]
    items += [{"type": kind, "call_id": f"c{i}", "output": one} for i, one in enumerate(contents)]
    return served.client.responses.create(
        model="tiny", input=items, max_output_tokens=16, extra_body={"seed": 1}, **more
    )


def message_results(client, *contents):
    calls = [
        {"type": "tool_use", "id": f"c{i}", "name": "look", "input": {}}
        for i in range(len(contents))
    ]
    results = [
        {"type": "tool_result", "tool_use_id": call["id"], "content": each}
        for call, each in zip(calls, contents, strict=True)
    ]
    return client.messages.create(
        model="tiny",
        max_tokens=16,
        messages=[
            {"role": "user", "content": "Look."},
            {"role": "assistant", "content": calls},
            {"role": "user", "content": results},
        ],
        extra_body={"seed": 1},
    )


def test_images_of_results_mean_the_same_in_every_form(seeing, claude):

    def parts(form, url, first, second):
        text = {"type": "input_text" if form is input_image else "text", "text": "and"}
        return [form(url(first)), text, form(url(second))], [form(url(first))]

    def answers(first, second):
        chat = chat_results(seeing, *parts(image_url, data_url, first, second))
        response = response_results(seeing, *parts(input_image, data_url, first, second))
        message = message_results(claude, *parts(image_block, source_of, first, second))
        read = message.usage.input_tokens + message.usage.cache_read_input_tokens
        assert chat.usage.prompt_tokens == response.usage.input_tokens == read > 60
        text = chat.choices[0].message.content
        assert text == response.output_text == message.content[0].text
        return text

    turned = chat_results(seeing, *parts(image_url, data_url, BLUE, RED))
    assert answers(RED, BLUE) != turned.choices[0].message.content


def test_images_of_results_of_custom_tools_are_read(seeing):
    images = [input_image(data_url(RED))], [input_image(data_url(BLUE))]
    function = response_results(seeing, *images)
    custom = response_results(seeing, *images, custom=True)
    bare = [  # these differ by the arguments of the calls
        response_results(seeing, "", "", custom=one).usage.input_tokens for one in (False, True)
    ]
    assert function.usage.input_tokens - bare[0] == custom.usage.input_tokens - bare[1] > 40


def test_a_stored_response_keeps_images_of_results(seeing):
    first = response_results(seeing, [input_image(data_url(RED))], store=True)
    second = seeing.client.responses.create(
        model="tiny", input="And now?", previous_response_id=first.id, max_output_tokens=8
    )
    assert second.usage.input_tokens > first.usage.input_tokens


def test_a_bad_image_of_a_result_is_a_400_with_its_place(seeing, claude):
    good = [{"type": "text", "text": "fine"}]
    with pytest.raises(openai.BadRequestError) as error:
        chat_results(seeing, good, [*good, image_url(data_url(b"no image"))])
    assert error.value.param == "messages"
    assert "messages[3].content[1].image_url.url must be PNG" in error.value.message
    for custom in (False, True):
        with pytest.raises(openai.BadRequestError) as error:
            response_results(seeing, "fine", [input_image(data_url(b""))], custom=custom)
        assert error.value.param == "input"
        assert (
            "input[4].output[0].image_url must be PNG, JPEG, WebP or GIF, got an empty file"
            in error.value.message
        )
    place = r"messages\[2\]\.content\[1\]\.content\[1\]\.source\.data must be PNG"
    with pytest.raises(anthropic.BadRequestError, match=place):
        message_results(claude, good, [*good, image_block(source_of(b"no image"))])


def test_hosts_and_limits_hold_for_images_of_results(seeing, claude, host):
    fetched = chat_results(seeing, [image_url(f"{host}/image.png")])
    sent = chat_results(seeing, [image_url(data_url(PNG))])
    assert fetched.choices[0].message.content == sent.choices[0].message.content
    with pytest.raises(openai.BadRequestError, match="a host that is not allowed"):
        response_results(seeing, [input_image("https://example.com/a.png")])
    with pytest.raises(anthropic.BadRequestError, match="17 images, and up to 16 are served"):
        message_results(
            claude, [image_block(source_of(RED))] * 9, [image_block(source_of(RED))] * 8
        )


def test_decisions_about_images(seeing, host):
    def decided(url, text="Look."):
        parts = [input_image(url), {"type": "input_text", "text": text}]
        questions = [{"type": "predicate", "instructions": "Is it red?"}] * 3
        return seeing.client.decisions.create(model="tiny", input=turn(parts), questions=questions)

    red, blue, fetched = decided(data_url(RED)), decided(data_url(BLUE)), decided(data_url(PNG))
    assert red.answers[0].probability != blue.answers[0].probability
    Host.served = 0
    assert decided(f"{host}/image.png").answers == fetched.answers
    assert Host.served == 1
    with pytest.raises(
        openai.BadRequestError, match=r"input\[0\]\.content\[0\]\.image_url must be PNG"
    ):
        decided(data_url(b"no image"))


def test_only_users_and_tools_send_images(seeing):
    part = image_url(data_url(PNG))
    for role in ("system", "assistant"):
        with pytest.raises(openai.BadRequestError, match=r"messages\[0\]\.content\[0\]\.type"):
            seeing.client.chat.completions.create(
                model="tiny",
                messages=[{"role": role, "content": [part]}, {"role": "user", "content": "hi"}],
            )


def test_a_model_without_a_tower_refuses_images(tiny):
    place = r"messages\[0\]\.content\[0\]\.image_url is an image: this model reads text"
    with pytest.raises(openai.BadRequestError, match=place):
        chat(tiny, data_url(PNG))
    place = r"input\[3\]\.output\[0\]\.image_url is an image: this model reads text"
    with pytest.raises(openai.BadRequestError, match=place) as error:
        response_results(tiny, [input_image(data_url(PNG))], "fine")
    assert error.value.param == "input"
