"""Requests, slots and events of an engine."""

from dataclasses import replace

import pytest
import torch
from doubles import Double, Random
from values import PROMPT, V

from dlm import DlmError, Engine, Finished, JsonSchema, Request, RequestError

PROMPTS = [
    "Extract name, age as JSON. This is Olga Lopez, 61 years old.",
    "Extract invoice_id, paid, total as JSON. Invoice TF-4914, it costs 197.5, it is open.",
    "List as JSON. chair, desk, lamp",
]
PERSON = JsonSchema(
    {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name", "age"],
    }
)


@pytest.fixture
def several_threads():
    """Two threads of torch: rounding must not depend on how they share a product."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("several_threads")
def test_results_in_a_batch_are_exactly_those_of_each_request_alone(built_in):
    requests = [
        Request(prompt=prompt, seed=seed, max_tokens=48, constraint=spec)
        for seed, (prompt, spec) in enumerate(
            [(PROMPTS[1], None), (PROMPTS[2], JsonSchema(True)), (PROMPTS[0], PERSON)]
        )
    ]
    sampler = replace(built_in.config.sampler, max_steps=6)  # to save time
    config = replace(built_in.config, sampler=sampler)
    engine = Engine(built_in.model, built_in.chat, config, slots=3)
    alone = [engine.generate(request) for request in requests]
    together = engine.generate(requests)
    backwards = engine.generate(requests[::-1])[::-1]
    for one, other, last in zip(alone, together, backwards, strict=True):
        assert one.token_ids == other.token_ids == last.token_ids
        assert one.stats.denoiser_calls == other.stats.denoiser_calls == last.stats.denoiser_calls


def test_a_request_that_joins_later_changes_no_other(built_in):
    first = Request(prompt=PROMPTS[1], seed=3, max_tokens=64)
    second = Request(prompt=PROMPTS[0], seed=4, max_tokens=64, constraint=PERSON)
    alone = [built_in.generate(r).token_ids for r in (first, second)]
    numbers, ends = [built_in.add(first)], {}
    for step in range(1000):
        if step == 2:
            numbers.append(built_in.add(second))
        for event in built_in.step():
            if isinstance(event, Finished):
                ends[event.request] = event.result.token_ids
        if not built_in.busy:
            break
    assert [ends[n] for n in numbers] == alone


@pytest.mark.parametrize("max_tokens", [1, 15, 16, 17, 40])
def test_an_answer_ends_at_max_tokens(scripted, tokens_of, max_tokens):
    engine = scripted("word " * 40)
    result = engine.generate(Request(token_ids=PROMPT, max_tokens=max_tokens))
    assert result.finish_reason == "length"
    assert result.token_ids == tokens_of("word " * 40)[:max_tokens]
    assert result.stats.canvases == -(-max_tokens // engine.model.canvas_length)


def test_unconstrained_canvases_take_at_most_the_configured_steps(engine_of):
    engine = engine_of(Random(V, seed=1))
    result = engine.generate(Request(token_ids=PROMPT, max_tokens=32))
    assert result.stats.denoiser_calls <= engine.config.sampler.max_steps * result.stats.canvases


def test_cancelled_requests_leave_their_slots_empty(engine_of):
    engine = engine_of(Random(V, seed=1), slots=1)
    running, waiting = (engine.add(Request(token_ids=PROMPT)) for _ in range(2))
    engine.step()
    engine.cancel(running)
    engine.cancel(waiting)
    assert not engine.busy
    assert engine._cache.tokens == [[]]


def test_a_stop_token_within_reasoning_does_not_end_the_answer(scripted):
    engine = scripted('<|channel>thought\nhm<turn|><eos>hm<channel|>"mage"<turn|>')
    words = JsonSchema({"enum": ["mage", "healer"]})
    result = engine.generate(Request(token_ids=PROMPT, constraint=words, thinking=True))
    assert result.reasoning.startswith("hm")
    assert result.parsed in ("mage", "healer")
    assert not set(result.token_ids) & set(engine.config.stops)


def test_an_answer_may_come_without_reasoning(scripted):
    request = Request(token_ids=PROMPT, constraint=JsonSchema({"type": "object"}), thinking=True)
    result = scripted('{"a": 1}<turn|>').generate(request)
    assert (result.parsed, result.reasoning) == ({"a": 1}, None)


def test_an_empty_thought_channel_is_no_part_of_the_text(scripted):
    engine = scripted("<|channel>thought\n<channel|>hello<turn|>")
    result = engine.generate(Request(token_ids=PROMPT))
    assert (result.text, result.reasoning) == ("hello", None)


def test_without_thinking_the_prompt_ends_with_an_empty_thought_channel(chat):
    off, on = (
        chat.prompt(Request(prompt="Hello", thinking=thinking)) for thinking in (False, True)
    )
    assert chat.tokenizer.decode(off).endswith("<|turn>model\n<|channel>thought\n<channel|>")
    assert chat.tokenizer.decode(on).endswith("<|turn>model\n")
    assert "<|think|>" in chat.tokenizer.decode(on)
    bound = JsonSchema(True)
    assert chat.prompt(Request(token_ids=off, constraint=bound)) == off  # it is there already
    assert chat.prompt(Request(token_ids=off[:-4], constraint=bound)) == off
    assert chat.prompt(Request(token_ids=off[:-4])) == off[:-4]


def test_a_value_that_python_cannot_parse_is_left_as_text(scripted):
    text = "[" * 1100 + "]" * 1100
    engine = scripted(f"{text}<turn|>", canvas_length=64)
    schema = JsonSchema({"type": "array"})
    result = engine.generate(Request(token_ids=PROMPT, constraint=schema, max_tokens=9000))
    assert (result.text, result.finish_reason, result.parsed) == (text, "stop", None)


def test_an_error_names_a_model_directory_that_does_not_exist(tmp_path):
    with pytest.raises(DlmError, match=f"no model directory at {tmp_path / 'none'}"):
        Engine.load(tmp_path / "none")


def test_answers_are_valid_in_bf16(built_in):
    engine = Engine.load(device="cpu", dtype=torch.bfloat16)
    result = engine.generate(Request(prompt=PROMPTS[0], constraint=PERSON, max_tokens=96))
    assert result.finish_reason == "stop"
    assert result.parsed.keys() == {"name", "age"}


class Undecided(Double):
    """Model that prefers one token slightly to another, at every position."""

    def wish(self, committed, canvas, soft_embedding):
        logits = torch.full((self.canvas_length, self.vocab_size), -50.0)
        logits[:, 300], logits[:, 301] = 0.05, 0.0
        return logits


@pytest.mark.parametrize(
    ("temperature", "others"), [(0, False), (None, True), (1.0, True), (2, True)]
)
def test_at_temperature_0_only_the_likeliest_token_is_accepted(engine_of, temperature, others):
    engine, kept = engine_of(Undecided(V), slots=1), set()
    for seed in range(12):
        engine.add(Request(token_ids=PROMPT, seed=seed, temperature=temperature, max_tokens=16))
        (draft,) = engine.step()
        (sequence,) = engine._scheduler.running.values()
        kept |= set(sequence.canvas.tokens[torch.tensor(draft.accepted)].tolist())
        engine.cancel(sequence.number)
    assert kept == ({300, 301} if others else {300})


@pytest.mark.parametrize("temperature", [-0.1, 2.1, float("nan"), True, "1"])
def test_an_invalid_temperature_is_refused(temperature):
    with pytest.raises(RequestError, match=r"temperature must be 0 to 2, got .*"):
        Request(prompt="a", temperature=temperature)


def test_max_tokens_may_be_reduced_to_the_positions_of_the_model(scripted, engine_of):
    model = scripted("word " * 40).model
    model.max_positions = len(PROMPT) + 2 * model.canvas_length + 3
    engine = engine_of(model)
    with pytest.raises(RequestError, match="4 prompt tokens leave 32 for the answer"):
        engine.add(Request(token_ids=PROMPT, max_tokens=100))
    result = engine.generate(Request(token_ids=PROMPT, max_tokens=100, fit=True))
    assert (result.finish_reason, len(result.token_ids)) == ("length", 32)
    with pytest.raises(RequestError, match="45 prompt tokens leave 0 for the answer"):
        engine.add(Request(token_ids=[5] * 45, max_tokens=100, fit=True))


def test_max_tokens_may_be_reduced_to_the_capacity_of_the_cache(tokens_of):
    engine = Engine.load(device="cpu", slots=1, cache_tokens=200)
    try:
        tokens = tokens_of("a word, ") * 20
        with pytest.raises(RequestError, match="are more than the cache holds: 200"):
            engine.add(Request(token_ids=tokens, max_tokens=512))
        prepared = engine.prepare(Request(token_ids=tokens, max_tokens=512, fit=True))
        assert prepared.prompt_tokens + prepared.sequences[0].request.max_tokens == 200
    finally:
        engine.close()
