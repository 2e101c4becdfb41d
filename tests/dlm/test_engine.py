"""Requests, slots and events."""

import jsonschema
import pytest
import torch
from doubles import Double, Random, Scripted
from driven import events_of
from specs import checked
from values import PROMPT, V

from dlm import (
    Committed,
    DlmError,
    Draft,
    Engine,
    Finished,
    JsonSchema,
    Request,
    RequestError,
)

ASKED = [
    "Extract name, age as JSON. This is Olga Lopez, 61 years old.",
    "Extract invoice_id, paid, total as JSON. Invoice TF-4914, it costs 197.5, it is open.",
    "List as JSON. chair, desk, lamp",
    "Answer with one word of mage, healer. Ben Kim, fights as a mage.",
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
    """Rounding must not depend on how a product is shared out among them."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("several_threads")
def test_requests_give_in_a_batch_exactly_what_each_gives_alone(built_in):
    requests = [
        Request(prompt=prompt, seed=seed, max_tokens=64, constraint=spec)
        for seed, (prompt, spec) in enumerate(
            [(p, None) for p in ASKED[1:]] + [(ASKED[2], JsonSchema(True)), (ASKED[0], PERSON)]
        )
    ]
    alone = [built_in.generate(request) for request in requests]
    together = built_in.generate(requests)
    backwards = built_in.generate(requests[::-1])[::-1]
    for one, other, last in zip(alone, together, backwards, strict=True):
        assert one.token_ids == other.token_ids == last.token_ids
        assert one.stats.denoiser_calls == other.stats.denoiser_calls == last.stats.denoiser_calls


def test_a_request_that_joins_later_disturbs_nobody(built_in):
    first = Request(prompt=ASKED[1], seed=3, max_tokens=96)
    second = Request(prompt=ASKED[0], seed=4, max_tokens=96, constraint=PERSON)
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


def test_more_requests_than_slots_all_end(engine_of, tokens_of):
    engine = engine_of(Scripted(V, len(PROMPT), tokens_of('"hi"<turn|>')), slots=2)
    results = engine.generate([Request(token_ids=PROMPT, seed=s) for s in range(7)])
    assert [r.text for r in results] == ['"hi"'] * 7
    assert not engine.busy


def test_events_tell_of_drafts_then_of_text_that_stays(engine_of, tokens_of):
    script = tokens_of('["laptop", "desk", "lamp", "tent", "chair", "desk"]<turn|>')
    engine = engine_of(Scripted(V, len(PROMPT), script))
    number = engine.add(Request(token_ids=PROMPT, constraint=JsonSchema({"type": "array"})))
    events = events_of(engine)
    assert {event.request for event in events} == {number}
    assert isinstance(events[0], Draft)
    assert len(events[0].tokens) == len(events[0].accepted) == engine.model.canvas_length
    committed = [t for event in events if isinstance(event, Committed) for t in event.tokens]
    assert committed == script
    end = events[-1]
    assert isinstance(end, Finished)
    assert end.result.token_ids == committed[:-1]
    assert end.result.parsed == ["laptop", "desk", "lamp", "tent", "chair", "desk"]
    assert end.result.stats.canvases == 2


@pytest.mark.parametrize("max_tokens", [1, 15, 16, 17, 40])
def test_max_tokens_is_never_passed(engine_of, tokens_of, max_tokens):
    script = tokens_of("word " * 40)
    engine = engine_of(Scripted(V, len(PROMPT), script))
    result = engine.generate(Request(token_ids=PROMPT, max_tokens=max_tokens))
    assert result.finish_reason == "length"
    assert result.token_ids == script[:max_tokens]
    assert result.stats.canvases == -(-max_tokens // engine.model.canvas_length)


def test_unconstrained_canvases_take_at_most_the_reference_s_steps(engine_of):
    engine = engine_of(Random(V, seed=1))
    result = engine.generate(Request(token_ids=PROMPT, max_tokens=32))
    assert result.stats.denoiser_calls <= engine.config.max_steps * result.stats.canvases


def test_an_answer_that_its_schema_refuses_is_taken_back_and_mended(engine_of, tokens_of):
    """Rules cannot compare items; nothing is told before the schema has seen the whole."""
    engine = engine_of(Scripted(V, len(PROMPT), tokens_of("[7, 7]<turn|>")))
    items = {"type": "integer"}
    schema = {"type": "array", "items": items, "uniqueItems": True, "minItems": 1}
    wide = checked(schema)
    engine.add(Request(token_ids=PROMPT, constraint=wide))
    told, result = [], None
    while engine.busy:
        for event in engine.step():
            if isinstance(event, Committed):
                told.append(event.text)
            elif isinstance(event, Finished):
                result = event.result
    assert told == [result.text]
    assert result.parsed != [7, 7]
    jsonschema.validate(result.parsed, schema)
    assert 0 < result.stats.rollbacks <= engine.config.refusals


def test_a_cancelled_request_leaves_its_slot(engine_of):
    engine = engine_of(Random(V, seed=1), slots=1)
    running, waiting = (engine.add(Request(token_ids=PROMPT)) for _ in range(2))
    engine.step()
    engine.cancel(running)
    engine.cancel(waiting)
    assert not engine.busy
    assert engine._cache.tokens == [[]]


def test_reasoning_cannot_stop_the_answer_away(engine_of, tokens_of):
    script = tokens_of('<|channel>thought\nhm<turn|><eos>hm<channel|>"mage"<turn|>')
    engine = engine_of(Scripted(V, len(PROMPT), script))
    words = JsonSchema({"enum": ["mage", "healer"]})
    result = engine.generate(Request(token_ids=PROMPT, constraint=words, thinking=True))
    assert result.reasoning.startswith("hm")
    assert result.parsed in ("mage", "healer")
    assert not set(result.token_ids) & set(engine.config.stops)


def test_a_model_that_need_not_think_answers_at_once(engine_of, tokens_of):
    engine = engine_of(Scripted(V, len(PROMPT), tokens_of('{"a": 1}<turn|>')))
    result = engine.generate(
        Request(token_ids=PROMPT, constraint=JsonSchema({"type": "object"}), thinking=True)
    )
    assert (result.parsed, result.reasoning) == ({"a": 1}, None)


def test_an_empty_thought_channel_is_no_part_of_the_text(engine_of, tokens_of):
    script = tokens_of("<|channel>thought\n<channel|>hello<turn|>")
    result = engine_of(Scripted(V, len(PROMPT), script)).generate(Request(token_ids=PROMPT))
    assert (result.text, result.reasoning) == ("hello", None)


def test_without_thinking_the_prompt_ends_behind_an_empty_thought_channel(chat):
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


@pytest.mark.parametrize("text", ["[" * 1100 + "]" * 1100])
def test_a_value_that_python_cannot_hold_is_left_as_text(engine_of, tokens_of, text):
    script = [*tokens_of(text), 106]
    engine = engine_of(Scripted(V, len(PROMPT), script, canvas_length=64))
    schema = JsonSchema({"type": "array"})
    result = engine.generate(Request(token_ids=PROMPT, constraint=schema, max_tokens=9000))
    assert (result.text, result.finish_reason, result.parsed) == (text, "stop", None)


def test_a_directory_that_is_no_model_is_named(tmp_path):
    with pytest.raises(DlmError, match=f"no model directory at {tmp_path / 'none'}"):
        Engine.load(tmp_path / "none")


def test_bf16_runs_too(built_in):
    engine = Engine.load(device="cpu", dtype=torch.bfloat16)
    result = engine.generate(Request(prompt=ASKED[0], constraint=PERSON, max_tokens=96))
    assert result.finish_reason == "stop"
    assert result.parsed.keys() == {"name", "age"}


class Undecided(Double):
    """Likes one token a little better than another, everywhere."""

    def wish(self, committed, canvas, soft_embedding):
        logits = torch.full((self.canvas_length, self.vocab_size), -50.0)
        logits[:, 300], logits[:, 301] = 0.05, 0.0
        return logits


@pytest.mark.parametrize(("temperature", "others"), [(0, False), (1.0, True), (2, True)])
def test_at_temperature_0_what_is_accepted_is_the_likeliest_token(engine_of, temperature, others):
    engine, kept = engine_of(Undecided(V), slots=1), set()
    for seed in range(12):
        engine.add(Request(token_ids=PROMPT, seed=seed, temperature=temperature, max_tokens=16))
        (draft,) = engine.step()
        (sequence,) = engine._scheduler.running.values()
        kept |= set(sequence.canvas.tokens[torch.tensor(draft.accepted)].tolist())
        engine.cancel(sequence.number)
    assert kept == ({300, 301} if others else {300})


@pytest.mark.parametrize("temperature", [-0.1, 2.1, float("nan"), True, "1"])
def test_a_temperature_that_is_none_is_refused(temperature):
    with pytest.raises(RequestError, match=r"temperature is .*: it takes 0 to 2"):
        Request(prompt="a", temperature=temperature)


def test_a_request_may_take_fewer_tokens_than_it_asks_for(engine_of, tokens_of):
    model = Scripted(V, len(PROMPT), tokens_of("word " * 40))
    model.max_positions = len(PROMPT) + 2 * model.canvas_length + 3
    engine = engine_of(model)
    with pytest.raises(RequestError, match="4 prompt tokens leave 32 for the answer"):
        engine.add(Request(token_ids=PROMPT, max_tokens=100))
    result = engine.generate(Request(token_ids=PROMPT, max_tokens=100, fit=True))
    assert (result.finish_reason, len(result.token_ids)) == ("length", 32)
    with pytest.raises(RequestError, match="45 prompt tokens leave 0 for the answer"):
        engine.add(Request(token_ids=[5] * 45, max_tokens=100, fit=True))


def test_a_request_may_take_what_the_cache_holds(tokens_of):
    engine = Engine.load(device="cpu", slots=1, cache_tokens=200)
    try:
        tokens = tokens_of("a word, ") * 20
        with pytest.raises(RequestError, match="are more than the cache holds: 200"):
            engine.add(Request(token_ids=tokens, max_tokens=512))
        prepared = engine.prepare(Request(token_ids=tokens, max_tokens=512, fit=True))
        assert prepared.prompt_tokens + prepared.sequences[0].request.max_tokens == 200
    finally:
        engine.close()
