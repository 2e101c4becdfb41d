"""Tools and reasoning of Nemotron-Labs-Diffusion in vLLM's own front end, without its engine.

This vLLM need not have the model: its parsers and bodies are the same for all. A double of the
sampler writes the answers.
"""

import json

import calling
import jsonschema
import pytest
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.parser import ParserManager
from vllm_masks import MASK, MaskRequest, worker_of
from weightless import Knowing

from dlm.chat import Chat
from dlm.grammar import Compiler
from dlm.integrations.vllm import hooks, own
from dlm.integrations.vllm.admission import vocabulary_of
from dlm.integrations.vllm.front_end import FrontEnd

NOTE = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 6}, "ages": {"type": "array"}},
    "required": ["name"],
}
NOTE["properties"]["ages"] |= {"items": {"type": "integer"}, "maxItems": 2}
TOOL = {"type": "function", "function": {"name": "note", "parameters": NOTE}}
CALL = (
    "<tool_call>\n<function=note>\n<parameter=name>\n007\n</parameter>\n</function>\n</tool_call>"
)
THOUGHT = f"Shall I write {CALL}?"


class ModelConfig:
    """vLLM's config of the model."""

    architecture, is_diffusion, max_model_len = own.NEMOTRON.architecture, True, 512
    model = "nemotron"

    class hf_config:  # noqa: N801
        mask_token_id = MASK
        model_type = "nemotron_labs_diffusion"

    def try_get_generation_config(self):
        return {"eos_token_id": [1, calling.IDS["<|im_end|>"]]}

    def get_vocab_size(self):
        return calling.SIZES["vocab_size"]


class Config:
    def __init__(self):
        self.model_config, self.parallel_config = ModelConfig(), object()


@pytest.fixture(scope="module")
def chat(tmp_path_factory):
    installed = hooks.install()
    own.register([own.NEMOTRON])
    yield Chat.load(
        calling.write(tmp_path_factory.mktemp("m") / "m", "nemotron"), own.NEMOTRON.markup
    )
    installed.undo()


@pytest.fixture(scope="module")
def compiler(chat):
    return Compiler(vocabulary_of(ModelConfig(), chat.tokenizer, own.NEMOTRON))


@pytest.fixture(scope="module")
def front_end(chat):
    return FrontEnd(Config(), chat.tokenizer, own.NEMOTRON)


def parser_of(chat, body):
    made = ParserManager.get_parser(
        tool_parser_name="qwen3_coder",
        reasoning_parser_name="nemotron_v3",
        enable_auto_tools=True,
        tokenizer=chat.tokenizer,
    )
    return made(
        chat.tokenizer,
        body.tools,
        model_config=ModelConfig(),
        chat_template_kwargs=body.chat_template_kwargs,
    )


def answered(chat, compiler, front_end, prompt, text, **fields):
    """Return what vLLM's parser reads of an answer, whole and streamed."""
    messages = [{"role": "user", "content": "Hi."}]
    body = ChatCompletionRequest(model="nemotron", messages=messages, max_tokens=200, **fields)
    body = parser_of(chat, body).adjust_request(body)
    params = body.to_sampling_params(200, {})
    tokens = chat.tokenizer.encode(prompt, add_special_tokens=False)
    payload = front_end.admit(params, tokens).payload
    answer = [*compiler.vocabulary.encode(text), compiler.vocabulary.stops[0]]
    model = Knowing(compiler.unpack(payload.rules), {0: answer}, right=1.0, slope=0.0)
    worker = worker_of(compiler, 1, model=model)
    worker.add(0, MaskRequest(key=0, budget=200, payload=payload))
    worker.run()
    output = worker.requests[0].output
    parser = parser_of(chat, body)
    written = chat.tokenizer.decode(output)
    whole = parser.parse(written, body, enable_auto_tools=True, model_output_token_ids=output)
    stream, reasoning, content, calls = parser_of(chat, body), "", "", {}
    for number, token in enumerate(output, 1):
        ended = number == len(output)
        delta = stream.parse_delta("", [token], body, prompt_token_ids=tokens, finished=ended)
        if delta is None:
            continue
        reasoning, content = reasoning + (delta.reasoning or ""), content + (delta.content or "")
        for call in delta.tool_calls or ():
            calls.setdefault(call.index, ["", ""])
            calls[call.index][0] += call.function.name or ""
            calls[call.index][1] += call.function.arguments or ""
    expected = [(call.name, call.arguments) for call in whole[2] or ()]
    assert [tuple(call) for call in calls.values()] == expected
    assert (reasoning or None, content.strip() or None) == (whole[0], whole[1])
    return whole[0], whole[1], expected


@pytest.mark.parametrize(
    "choice", ["auto", "required", {"type": "function", "function": {"name": "note"}}]
)
@pytest.mark.parametrize("thinks", [None, True])
def test_calls_are_read_as_the_grammar_wrote_them(chat, compiler, front_end, choice, thinks):
    kwargs = None if thinks is None else {"enable_thinking": True}
    prompt, begins = ("Hi.", "") if thinks is None else ("Hi.<think>\n", f"{THOUGHT}</think>")
    reasoning, content, calls = answered(
        chat, compiler, front_end, prompt, begins + CALL,
        tools=[TOOL], tool_choice=choice, chat_template_kwargs=kwargs,
    )  # fmt: skip
    assert (reasoning, content) == (THOUGHT if thinks else None, None)
    assert calls == [("note", '{"name": "007"}')]
    jsonschema.validate(json.loads(calls[0][1]), NOTE)


@pytest.mark.parametrize("field", ["response_format", "structured_outputs"])
@pytest.mark.parametrize("opened", [False, True])
def test_an_answer_of_a_form_is_content_with_reasoning_or_without(
    chat, compiler, front_end, field, opened
):
    wrapped = {"type": "json_schema", "json_schema": {"name": "x", "schema": NOTE}}
    value = wrapped if field == "response_format" else {"json": NOTE}
    prompt, begins = ("Hi.<think>", "Hm.</think>") if opened else ("Hi.", "")
    text = '{"name": "Ada"}'
    answer = answered(chat, compiler, front_end, prompt, begins + text, **{field: value})
    assert answer == ("Hm." if opened else None, text, [])


def test_text_beside_tools_that_may_be_called_is_content(chat, compiler, front_end):
    answer = answered(
        chat, compiler, front_end, "Hi.", "Just text.", tools=[TOOL], tool_choice="auto"
    )
    assert answer == (None, "Just text.", [])
