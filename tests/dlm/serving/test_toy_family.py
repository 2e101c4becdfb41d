"""A masked family of forty lines and a sampler of thirty, added through the public registries.

Nothing else knows of them: their directories are loaded and served as any other. The network is
random, so that a valid answer is the constraint's work.
"""

import json
import shutil
from dataclasses import dataclass

import jsonschema
import pytest
import torch
from asks import PERSON, turn
from doubles import Double
from driven import fewest_tokens, streamed
from values import PROMPT

from dlm import Autoregressive, DecodeConfig, DlmError, Engine, JsonSchema, Policy, Request
from dlm.engine import BUILT_IN
from dlm.models import families
from dlm.models.family import Family, Loaded
from dlm.samplers import register
from dlm.samplers.reveal import Reveal

MASK, EOS = 4, 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Leftmost:
    """Sampler of masked canvases that reveals sure positions from the left, and at least one."""

    mask: int
    threshold: float = 0.9
    max_steps: int = 64
    carries: bool = False
    edit_threshold: None = None

    def start(self, rng, length, vocab_size):
        return torch.full((length,), self.mask, device=rng.device)

    def temperature(self, step):
        return 1.0

    def accept(self, rows, free):
        sure = (~free | (rows.confidences > self.threshold)).cumprod(-1)
        return torch.arange(sure.shape[1]) <= sure.sum(-1, keepdim=True)

    def next(self, tokens, kept, rngs, vocab_size):
        return torch.where(kept < 0, tokens, kept)

    def settled(self, passes, guidance, entropy):
        return len(passes.pinned) >= min(guidance.scored, guidance.stop + 1)


class ToyModel(Double):
    """Random network that sees which positions are masked, and prefers to write masks."""

    def __init__(self, vocab_size, canvas_length, seed):
        super().__init__(vocab_size, canvas_length)
        rng = torch.Generator().manual_seed(seed)
        self.weights = torch.randn(vocab_size, 8, generator=rng)
        self.head = 4 * torch.randn(8, vocab_size, generator=rng)
        self.seen = []  # canvases

    def denoise(self, canvas, soft_embedding, cache, slots, encode):
        assert soft_embedding is None
        self.seen.append(canvas.clone())
        self.encode(list(encode.values()), cache, list(encode))
        rows = zip(slots, canvas, strict=True)
        return torch.stack([self.wish(cache.tokens[slot], row, None) for slot, row in rows])

    def wish(self, committed, canvas, soft_embedding):
        states = self.weights[canvas].cumsum(0) + self.weights[committed].mean(0)
        logits = torch.sin(states) @ self.head
        logits[:, MASK] += 50
        return logits


def load(directory, options):
    config = json.loads((directory / "config.json").read_text())
    shape = (config[name] for name in ("vocab_size", "block_size", "seed"))
    return Loaded(ToyModel(*shape))


TOY = Family(
    name="toy",
    architectures=("ToyMaskedModel",),
    load=load,
    sampler=lambda config, _: ("leftmost", {"mask": config["mask_token_id"]}),
    stops=(EOS,),
    pad=0,
)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """A directory of the family, with the tokenizer of the built-in model."""
    families.register(TOY)
    register("leftmost", Leftmost)
    made = tmp_path_factory.mktemp("toy")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(BUILT_IN / name, made)
    shape = {"vocab_size": 1536, "block_size": 16, "mask_token_id": MASK, "seed": 5}
    config = {"architectures": ["ToyMaskedModel"], "model_type": "toy", **shape}
    (made / "config.json").write_text(json.dumps(config))
    return made


@pytest.fixture(scope="module")
def engine(directory):
    made = Engine.load(directory, slots=4)
    yield made
    made.close()


def test_its_answers_over_http_are_valid_and_complete(directory, serve):
    schema = {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON}}
    body = {"model": "toy", "messages": turn("Who?"), "response_format": schema, "max_tokens": 64}
    with serve(Engine.load(directory), names=("toy",)) as running:
        for seed in range(3):
            answer = running.http.post("/v1/chat/completions", json=body | {"seed": seed}).json()
            jsonschema.validate(json.loads(answer["choices"][0]["message"]["content"]), PERSON)


@pytest.mark.parametrize("beyond", [0, 1, 7])
def test_the_tightest_budget_is_enough(engine, beyond):
    spec = JsonSchema(PERSON)
    most = fewest_tokens(engine, spec) + beyond
    requests = [
        Request(token_ids=[*PROMPT, 300 + i], constraint=spec, max_tokens=most, seed=i)
        for i in range(4)
    ]
    for result in engine.generate(requests):
        assert result.complete
        jsonschema.validate(json.loads(result.text), PERSON)
        assert len(result.token_ids) < most


def test_revealed_tokens_stand_and_none_is_right_of_a_mask(engine):
    engine.model.seen.clear()
    result, committed = streamed(
        engine, Request(token_ids=PROMPT, constraint=JsonSchema(PERSON), max_tokens=60)
    )
    assert len(engine.model.seen) == result.stats.denoiser_calls > 1
    before = torch.empty(0, dtype=torch.long)
    for (canvas,) in engine.model.seen:
        masked = (canvas == MASK).tolist()
        assert masked == sorted(masked)
        shown = canvas[canvas != MASK]
        if len(shown):  # else a new canvas begins
            assert torch.equal(shown[: len(before)], before)
        before = shown
    assert [token for event in committed for token in event.tokens][:-1] == result.token_ids
    assert result.stats.denoiser_calls <= len(result.token_ids) + 2


@pytest.mark.parametrize("seed", range(3))
def test_free_text_has_no_mask_though_the_model_prefers_it(engine, seed):
    result = engine.generate(Request(token_ids=PROMPT, max_tokens=40, seed=seed))
    assert result.token_ids
    assert MASK not in result.token_ids


def test_a_mask_that_the_tokenizer_takes_for_text_is_never_written(directory, tmp_path):
    made = tmp_path / "toy"
    shutil.copytree(directory, made)
    config = json.loads((made / "config.json").read_text())
    mask = Engine.load(directory).chat.tokenizer.encode("a", add_special_tokens=False)[0]
    (made / "config.json").write_text(json.dumps(config | {"mask_token_id": mask}))
    engine = Engine.load(made)
    request = Request(token_ids=PROMPT, constraint=JsonSchema({"enum": ["aaaa"]}), max_tokens=9)
    result = engine.generate(request)
    assert result.text == '"aaaa"'
    assert mask not in result.token_ids


def test_a_sampler_that_carries_a_soft_embedding_needs_a_model_that_takes_it(engine):
    class Plain:
        vocab_size, canvas_length, max_positions = 1536, 16, 100
        device, softcap = torch.device("cpu"), None
        new_cache = encode = denoise = Double.new_cache

    with pytest.raises(DlmError, match="a Plain takes no soft embedding, which the sampler carr"):
        Engine(Plain(), engine.chat)
    with pytest.raises(DlmError, match="mask must be one of the model's 1536 tokens, got 1536"):
        Engine(engine.model, engine.chat, DecodeConfig(sampler=Leftmost(mask=1536)))


@pytest.mark.parametrize("spec", [None, JsonSchema(PERSON)])
def test_canvases_end_even_if_the_sampler_never_reveals_a_token(engine, spec):
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Never(Leftmost):
        def accept(self, rows, free):
            return torch.zeros_like(rows.confidences, dtype=torch.bool)

        def settled(self, passes, guidance, entropy):
            return False

    config = DecodeConfig(sampler=Never(mask=MASK, max_steps=3), stops=(EOS,), pad=0)
    stubborn = Engine(engine.model, engine.chat, config, slots=1, family=TOY)
    result = stubborn.generate(Request(token_ids=PROMPT, constraint=spec, max_tokens=48))
    assert result.stats.denoiser_calls <= result.stats.canvases * (3 + 4 + 1)
    if spec is not None:
        jsonschema.validate(json.loads(result.text), PERSON)


def test_it_has_neither_the_reasoning_nor_the_calls_of_another_family(engine):
    assert engine.vocabulary.thought is None
    assert engine.vocabulary.call is None
    assert engine.chat.no_thought_after(engine.chat.raw("<|turn>model\n")) == []


def test_left_to_right_it_writes_no_mask_either(directory):
    engine = Engine.load(directory, decoding=Autoregressive())
    result = engine.generate(Request(token_ids=PROMPT, max_tokens=20))
    assert MASK not in result.token_ids


def test_a_family_is_registered_once(directory):
    families.register(TOY)
    other = Family(name="toy", architectures=(), load=load, sampler=TOY.sampler, stops=(1,), pad=0)
    with pytest.raises(DlmError, match="family 'toy' is registered already"):
        families.register(other)
    assert Policy().max_images > 0


def test_a_call_is_streamed_from_masked_canvases_as_it_is_answered_at_once(engine, serve):
    tool = {"type": "function", "function": {"name": "note", "parameters": PERSON}}
    body = {"model": "toy", "messages": turn("Who?"), "tools": [tool], "max_tokens": 80}
    body |= {"tool_choice": "required", "seed": 3}
    config = DecodeConfig(sampler=Reveal(mask=MASK), stops=(EOS, 106), pad=0)
    calling = Engine(ToyModel(1536, 16, 5), engine.chat, config)
    with serve(calling, names=("toy",)) as running:
        answer = running.http.post("/v1/chat/completions", json=body).json()
        text = running.http.post("/v1/chat/completions", json=body | {"stream": True}).text
    (call,) = answer["choices"][0]["message"]["tool_calls"]
    jsonschema.validate(json.loads(call["function"]["arguments"]), PERSON)
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line]
    assert lines[-1] == "[DONE]"
    deltas = [json.loads(line)["choices"][0]["delta"] for line in lines[:-1]]
    parts = [part["function"] for delta in deltas for part in delta.get("tool_calls", ())]
    assert len(parts) > 2
    assert "".join(part.get("name", "") for part in parts) == "note"
    written = "".join(part.get("arguments", "") for part in parts)
    assert written == call["function"]["arguments"]
