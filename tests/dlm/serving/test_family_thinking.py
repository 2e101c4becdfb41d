"""Reasoning of a masked family whose markers are text, over HTTP: no call within it is one."""

import json
from contextlib import ExitStack
from itertools import chain

import calling
import pytest
from asks import turn
from exhaustive import by_default
from revealing import MASK, Revealing, endless

from dlm import Autoregressive, DecodeConfig, Diffusion, Engine
from dlm.chat import Chat
from dlm.models.families import family_of
from dlm.samplers.reveal import Reveal

L, TURN, STOP = 16, "<|im_start|>assistant\n", calling.IDS["<|im_end|>"]
CALL = (
    "<tool_call>\n<function=note>\n<parameter=name>\nAda\n</parameter>\n</function>\n</tool_call>"
)
THOUGHT = f"Shall I write {CALL} or <tool_call> alone?"
SCHEMA = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
WAYS = {
    "joint": (Diffusion(), {}),
    "left to right": (Autoregressive(), {}),
    "prefix": (Diffusion(), {"order": "prefix"}),
}
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
BODIES = {
    CHAT: {
        "messages": turn("Who?"),
        "tools": [{"type": "function", "function": {"name": "note", "parameters": SCHEMA}}],
        "reasoning_effort": "high",
        "max_tokens": 300,
    },
    RESPONSES: {
        "input": "Who?",
        "tools": [{"type": "function", "name": "note", "parameters": SCHEMA, "strict": False}],
        "reasoning": {"effort": "high"},
        "max_output_tokens": 300,
    },
    MESSAGES: {
        "messages": turn("Who?"),
        "tools": [{"name": "note", "input_schema": SCHEMA}],
        "thinking": {"type": "adaptive"},
        "max_tokens": 300,
    },
}


class Reasoner(Revealing):
    """Denoiser that is sure of one text in each turn of the model, also left to right."""

    def __init__(self, chat, *texts):
        super().__init__(L)
        self._turn, *script = (encoded(chat, text) for text in (TURN, *texts))
        self._script = [*chain(*script), STOP]
        self.wants(lambda before, canvas: self.wish(before, canvas, None))

    def wish(self, committed, canvas, soft_embedding):
        size = len(self._turn)
        begins = (i for i in range(len(committed), 0, -1) if committed[i - size : i] == self._turn)
        written = len(committed) - next(begins)
        logits = endless(STOP, L)([], canvas)
        for position, token in enumerate(self._script[written : written + L]):
            logits[position, token] = 100.0
        return logits


def encoded(chat, text):
    return chat.tokenizer.encode(text, add_special_tokens=False)


@pytest.fixture(scope="module", params=by_default([*WAYS]))
def served(request, tmp_path_factory, serve):
    """Servers of one way to write, by whether the prompt opens the reasoning."""
    decoding, settings = WAYS[request.param]
    family, running = family_of({"architectures": ["NemotronLabsDiffusionModel"]}), {}
    with ExitStack() as stack:
        for opened in (False, True):
            directory = calling.write(tmp_path_factory.mktemp("thinking") / "model", "nemotron")
            template = directory / "chat_template.jinja"
            begun = "\n{%- if add_generation_prompt %}{{ '<think>\\n' }}{% endif %}"
            template.write_text(template.read_text() + begun * opened)
            chat = Chat.load(directory, family.markup)
            model = Reasoner(chat, "<think>\n", f"{THOUGHT}\n</think>", "\n\nHi.")
            config = DecodeConfig(sampler=Reveal(mask=MASK, **settings), stops=(1, STOP), pad=0)
            engine = Engine(model, chat, config, slots=2, decoding=decoding, family=family)
            running[opened] = stack.enter_context(serve(engine, names=("reasoner",))).http
        yield running


def whole(path, answer):
    """Return reasoning, text and calls of an answer, and how it ended."""
    if path == CHAT:
        (choice,) = answer["choices"]
        message = choice["message"]
        calls = message.get("tool_calls") or []
        return message["reasoning"], message["content"], calls, choice["finish_reason"]
    key, kinds = ("output", "message") if path == RESPONSES else ("content", "text")
    items = {item["type"]: item for item in answer[key]}
    calls = [item for item in answer[key] if item["type"] in ("function_call", "tool_use")]
    if path == RESPONSES:
        (thought,) = items["reasoning"]["content"]
        return thought["text"], items[kinds]["content"][0]["text"], calls, answer["status"]
    return items["thinking"]["thinking"], items[kinds]["text"], calls, answer["stop_reason"]


def streamed(path, events):
    """Return what `whole` does, of a streamed answer's events."""
    if path == RESPONSES:
        return whole(path, events[-1]["response"])
    if path == CHAT:
        choices = [choice for event in events for choice in event["choices"]]
        deltas = [choice["delta"] for choice in choices]
        thought, text = ("".join(d.get(k) or "" for d in deltas) for k in ("reasoning", "content"))
        calls = [call for delta in deltas for call in delta.get("tool_calls") or ()]
        return thought, text, calls, choices[-1]["finish_reason"]
    deltas = [event["delta"] for event in events if "delta" in event]
    thought, text = ("".join(d.get(k, "") for d in deltas) for k in ("thinking", "text"))
    calls = [delta for delta in deltas if "partial_json" in delta]
    (reason,) = [delta["stop_reason"] for delta in deltas if "stop_reason" in delta]
    return thought, text, calls, reason


def check_no_call(client, path, body):
    """Check that the answer to `body`, whole and streamed, is the thought and a text."""
    answer = client.post(path, json=body).json()
    stream = client.post(path, json=body | {"stream": True}).text
    lines = [line[6:] for line in stream.splitlines() if line.startswith("data: {")]
    ends = {CHAT: "stop", RESPONSES: "completed", MESSAGES: "end_turn"}
    expected = THOUGHT, "\n\nHi.", [], ends[path]
    assert whole(path, answer) == expected
    assert streamed(path, [json.loads(line) for line in lines]) == expected


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("opened", [False, True], ids=["", "opened by the prompt"])
def test_a_call_within_reasoning_is_reasoning_whole_and_streamed(served, path, opened):
    body = {"model": "reasoner"} | BODIES[path]
    check_no_call(served[opened], path, body)


UNREQUESTED = {"tools", "reasoning_effort", "reasoning", "thinking"}  # fields that are left out


@pytest.mark.parametrize("path", BODIES)
def test_reasoning_that_the_prompt_opens_is_apart_though_nobody_requests_it(served, path):
    fields = {name: value for name, value in BODIES[path].items() if name not in UNREQUESTED}
    body = {"model": "reasoner"} | fields
    check_no_call(served[True], path, body)


@pytest.mark.parametrize("effort", ["none", "high"])
def test_reasoning_that_the_prompt_opens_is_closed_at_once_before_a_constrained_answer(
    served, effort
):
    """Unless it is requested: then the model reasons first."""
    body = {
        "model": "reasoner",
        "messages": turn("Who?"),
        "reasoning_effort": effort,
        "structured_outputs": {"choice": ["yes", "no"]},
        "max_tokens": 300,
    }
    answer = served[True].post(CHAT, json=body).json()
    (choice,) = answer["choices"]
    assert choice["message"]["content"] in ("yes", "no")
    assert choice["message"]["reasoning"] == (None if effort == "none" else THOUGHT)
    assert choice["finish_reason"] == "stop"
    if effort == "none":
        details = answer["usage"]["completion_tokens_details"]
        assert details["reasoning_tokens"] == 1  # the closing marker


def test_a_text_that_opens_reasoning_is_continued_as_text_unless_it_is_constrained(served):
    body = {"model": "reasoner", "prompt": f"{TURN}<think>\n", "max_tokens": 300}
    answer = served[False].post("/v1/completions", json=body).json()
    assert answer["choices"][0]["text"] == f"{THOUGHT}\n</think>\n\nHi."
    constrained = body | {"structured_outputs": {"choice": ["yes", "no"]}}
    answer = served[False].post("/v1/completions", json=constrained).json()
    assert answer["choices"][0]["text"] in ("yes", "no")
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == 1
