"""Results whose budget took a token from the model: complete and valid, and `length`."""

import json

import pytest
from decodings import engine_of_each
from doubles import Scripted
from driven import streamed
from native_calls import answer_tokens
from values import PROMPT, V

from dlm import DlmError, JsonSchema, Policy, Regex, Request, ToolCall, Tools
from dlm.grammar.calls import MARKUPS

engine_of = engine_of_each
ITEMS = {
    "type": "object",
    "properties": {"items": {"type": "array", "items": {"type": "string"}}},
    "required": ["items"],
}
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": CITY}}
CALL = ToolCall("get_weather", {"city": "Oslo and all that is near it"})
LIST = '{"items": ["apples", "pears", "plums"]}'
STOP = 106


@pytest.fixture
def answering(engine_of):
    """Build engines whose model is sure of texts and calls, then of its stop."""

    def build(*parts, **more):
        vocabulary = engine_of(Scripted(V, len(PROMPT), [])).vocabulary
        tokens = [*answer_tokens(vocabulary, *parts), STOP]
        return engine_of(Scripted(V, len(PROMPT), tokens), **more), tokens

    return build


def request(max_tokens, constraint=None, **more):
    return Request(token_ids=PROMPT, constraint=constraint, max_tokens=max_tokens, **more)


@pytest.mark.parametrize(
    ("spec", "parts"),
    [
        (JsonSchema(ITEMS), [LIST]),
        (Regex("[a-z ]{3,99}"), ["one and another and a third"]),
        (Tools([TOOL], choice="required"), [CALL]),
        (Tools([TOOL]), ["It is sunny in Oslo and in all that is near it."]),
        (Tools([TOOL]), ["Let me look. ", CALL]),
    ],
    ids=["JSON", "regex", "a call", "text beside tools", "a call after text"],
)
def test_an_answer_says_length_exactly_if_its_budget_took_a_token(answering, spec, parts):
    engine, wished = answering(*parts)
    for taken in (1, 2, 5):
        result = engine.generate(request(len(wished) - taken, spec))
        assert (result.finish_reason, result.complete, result.squeezed) == ("length", True, True)
        assert result.stats.tokens <= len(wished) - taken
        if isinstance(spec, JsonSchema):
            assert LIST.startswith(json.dumps(result.parsed)[:-3])
        if isinstance(spec, Regex):
            assert parts[0].startswith(result.parsed)
        for call in result.tool_calls:
            assert CALL.arguments["city"].startswith(call.arguments["city"])
    for room in (0, 1, 40):
        result = engine.generate(request(len(wished) + room, spec))
        assert (result.finish_reason, result.complete, result.squeezed) == ("stop", True, False)
        assert result.token_ids == wished[:-1]


@pytest.mark.parametrize("before", ["", "So: "])
def test_a_call_that_does_not_fit_leaves_no_trace_in_the_text(answering, before):
    engine, wished = answering(*[before] * bool(before), CALL)
    opened = wished.index(engine.vocabulary.call.open)
    for max_tokens in range(opened + 1, opened + 7):
        result = engine.generate(request(max_tokens, Tools([TOOL])))
        assert (result.text, result.tool_calls) == (before, ())
        assert (result.finish_reason, result.complete) == ("length", True)


def test_an_answer_that_the_context_bounds_says_length(engine_of, tokens_of):
    wished = tokens_of('{"items": [' + '"plums", ' * 40)
    model = Scripted(V, len(PROMPT), wished)
    model.max_positions = len(PROMPT) + 2 * model.canvas_length
    result = engine_of(model).generate(request(300, JsonSchema(ITEMS), fit=True))
    assert (result.finish_reason, result.complete, result.squeezed) == ("length", True, True)
    assert set(result.parsed["items"][:-1]) == {"plums"}


def test_free_text_that_max_tokens_cuts_is_not_complete(answering):
    engine, _ = answering("It is sunny.")
    result = engine.generate(request(3))
    assert (result.finish_reason, result.complete, result.squeezed) == ("length", False, False)
    result = engine.generate(request(40))
    assert (result.finish_reason, result.complete, result.squeezed) == ("stop", True, False)


THOUGHT = "<|channel>thought\n" + "on and " * 40
BOTH = [Regex("[a-z ]{1,40}"), None]


@pytest.mark.parametrize("spec", BOTH, ids=["constrained", "free text"])
@pytest.mark.parametrize(("share", "reserve"), [(0.25, 8), (0.5, 16)])
def test_reasoning_leaves_a_share_of_the_budget_to_the_answer(
    engine_of, tokens_of, spec, share, reserve
):
    model = Scripted(V, len(PROMPT), tokens_of(THOUGHT))
    engine = engine_of(model, policy=Policy(answer_share=share))
    result = engine.generate(request(32, spec, thinking=True))
    assert result.reasoning_tokens == 32 - reserve
    assert result.finish_reason == "length"
    assert result.squeezed


@pytest.mark.parametrize("spec", BOTH, ids=["constrained", "free text"])
def test_reasoning_that_its_own_budget_ends_is_not_squeezed(engine_of, tokens_of, spec):
    script = tokens_of(THOUGHT)[:12]
    model = Scripted(V, len(PROMPT), [*script, *tokens_of("yes<turn|>")])
    result = engine_of(model).generate(request(60, spec, thinking=True, thinking_budget=12))
    assert result.reasoning_tokens == 12
    assert not result.squeezed


@pytest.mark.parametrize("spec", BOTH, ids=["constrained", "free text"])
def test_reasoning_that_ends_by_itself_where_it_would_have_to_is_not_squeezed(
    engine_of, tokens_of, spec
):
    thought = [*tokens_of(THOUGHT)[:11], *tokens_of("<channel|>")]
    script = [*thought, *tokens_of("ok<turn|>")]
    engine = engine_of(Scripted(V, len(PROMPT), script))
    result = engine.generate(request(16, spec, thinking=True))
    assert result.reasoning_tokens == len(thought) == 12
    assert (result.text, result.finish_reason) == ("ok", "stop")


@pytest.mark.parametrize("share", [-0.1, 1.0, float("nan")])
def test_a_share_of_the_answer_is_part_of_its_budget(share):
    with pytest.raises(DlmError, match="answer_share must be at least 0 and less than 1"):
        Policy(answer_share=share)


@pytest.mark.parametrize("form", ["hermes", "qwen3_coder", "llama"])
@pytest.mark.parametrize("spelled", ["tokens", "bytes"])
def test_a_call_in_a_markup_that_does_not_fit_leaves_no_trace_in_the_text(
    engine_of, tokens_of, form, spelled
):
    text, opening = "Let me look. ", MARKUPS[form].opening
    written = f'{opening}{{"name": "get_weather", "arguments": {{"city": "Oslo"}}}}'
    vocabulary = engine_of(Scripted(V, len(PROMPT), [])).vocabulary
    by_byte = [vocabulary.pieces.index(bytes([byte])) for byte in written.encode()]
    script = [*tokens_of(text), *(tokens_of(written) if spelled == "tokens" else by_byte)]
    spec = Tools([TOOL], format=form)
    engine = engine_of(Scripted(V, len(PROMPT), script))
    for room in range(1, 4 if spelled == "tokens" else len(opening) + 1):
        result, events = streamed(engine, request(len(tokens_of(text)) + room, spec))
        assert (result.text, result.tool_calls) == (text, ())
        assert result.parsed.content == text
        assert "".join(event.text for event in events) == text
        assert (result.finish_reason, result.complete) == ("length", True)
