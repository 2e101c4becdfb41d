"""Left to right: the same weights, another loop; held against transformers, and a naive loop."""

from functools import cache
from random import Random as Dice

import jsonschema
import pytest
import torch
from doubles import Dreamer, Obsessed, Scripted
from driven import ends_of, events_of
from exhaustive import by_default
from training.extraction import extract
from transformers import DiffusionGemmaForBlockDiffusion
from values import PROMPT, V

from dlm import (
    Autoregressive,
    Committed,
    DlmError,
    Draft,
    Engine,
    Failed,
    Finished,
    Grammar,
    JsonSchema,
    Policy,
    Regex,
    Request,
)
from dlm.engine import BUILT_IN
from dlm.grammar import LeftToRight, Matcher
from dlm.grammar.masks import unpacked
from dlm.left_to_right_state import DrawNumbers
from dlm.models.pages import CHUNK

CPU = torch.device("cpu")
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 9}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
SPECS = {
    "free": None,
    "object": JsonSchema(PERSON, max_whitespace=1),
    "regex": Regex("[a-f]{3,40}-[0-9]{1,9}"),
    "grammar": Grammar('root ::= "(" root ")" | [a-z]+'),
}


@pytest.fixture
def engine_of(engine_of):
    def build(*args, **more):
        return engine_of(*args, **{"decoding": Autoregressive()} | more)

    return build


@pytest.fixture(scope="module")
def left_to_right():
    """The built-in model's engine."""
    engine = Engine.load(device="cpu", decoding=Autoregressive())
    yield engine
    engine.close()


def samples(count):
    return [extract(Dice(f"autoregressive/{i}"), "heldout") for i in range(count)]


def test_its_tokens_are_those_of_transformers_encoder_and_head(left_to_right):
    """Greedy: each token is the likeliest after all before it, by transformers' own model, which
    reads the whole text at once."""
    requests = [Request(prompt=item.prompt, max_tokens=96) for item in samples(8)]
    for request, result in zip(requests, left_to_right.generate(requests), strict=True):
        *wanted, stop = likeliest(left_to_right.chat.prompt(request), result.token_ids)
        assert result.token_ids == wanted
        assert result.finish_reason == "stop"
        assert stop in left_to_right.config.stops
        assert result.stats.causal_calls == result.stats.tokens == len(wanted) + 1
        assert result.stats.denoiser_calls == 0


def test_requests_give_in_a_batch_exactly_what_each_gives_alone(left_to_right):
    requests = [
        Request(
            prompt=s.prompt, seed=i, max_tokens=48, constraint=JsonSchema(s.schema) if c else None
        )
        for i, s in enumerate(samples(2))
        for c in (False, True)
    ]
    alone = [left_to_right.generate(request) for request in requests]
    together = left_to_right.generate(requests)
    for one, other in zip(alone, together, strict=True):
        assert one.token_ids == other.token_ids
        assert one.stats.causal_calls == other.stats.causal_calls


def test_a_schema_is_kept_and_what_it_leaves_no_choice_about_takes_no_pass(left_to_right):
    items = samples(6)
    results = left_to_right.generate(
        [Request(prompt=s.prompt, constraint=JsonSchema(s.schema)) for s in items]
    )
    for item, result in zip(items, results, strict=True):
        jsonschema.validate(result.parsed, item.schema)
        assert result.stats.causal_calls < result.stats.tokens


def naive(engine, model, spec, request, temperature):
    """One token after the other, from whole rows of logits in fp64: tokens, with the stop.

    The grammar's own masks hold until the budget refuses a token, which is picked again."""
    numbers, emitted, budget = DrawNumbers(request.seed, CPU), [], request.max_tokens
    matcher = spec and Matcher(engine._compiler.compile(spec))
    squeezed = again = False
    while True:
        if matcher:
            for token in engine.vocabulary.canonical(emitted[-20:], matcher.forced()):
                if not matcher.accept(token):
                    break
                if not matcher.closes_within(budget - len(emitted) - 2):
                    matcher.rollback(1)
                    break
                emitted.append(token)
        text = [*request.token_ids, *emitted]
        blank = torch.zeros(model.canvas_length, dtype=torch.long), model.no_soft_embedding()
        logits = model.wish(text, *blank)[0].double()
        left = budget - len(emitted)
        if matcher and again and matcher.complete:
            logits[[token for token in range(V) if token not in engine.config.stops]] = -torch.inf
        elif matcher:
            tight = again or (squeezed and not matcher.closes_within(left - 32))
            allowed = unpacked(matcher.allowed(left if tight else None))[:V].astype(bool)
            logits[torch.tensor(~allowed)] = -torch.inf
        token = int(logits.argmax())
        if temperature:
            mass = (logits / temperature).softmax(-1).cumsum(-1)
            (uniform,) = numbers.between(len(emitted), len(emitted) + 1)
            token = int((mass > uniform * mass[-1]).nonzero()[0, 0])
        if matcher:
            assert matcher.accept(token)
            if not matcher.closes_within(left - 2):
                assert not again
                matcher.rollback(1)
                numbers.renew(len(emitted))
                squeezed = again = True
                continue
            again = False
        emitted.append(token)
        if token in engine.config.stops or len(emitted) == budget:
            return emitted


WAYS = [(0.7, True), (0.0, False), (0.7, False), (0.0, True)]


@pytest.mark.parametrize("kind", SPECS)
@pytest.mark.parametrize(("temperature", "drafts"), by_default(WAYS, 2))
def test_the_engine_writes_what_a_naive_loop_does(engine_of, kind, temperature, drafts):
    """Drafts of a model that contradicts itself, in canvases and left to right, change nothing."""
    spec = SPECS[kind]
    requests = [
        Request(token_ids=[*PROMPT, *PROMPT[:seed]], constraint=spec, seed=seed, max_tokens=room)
        for seed, room in enumerate([30, 50, 23])
    ]
    for dream in range(2):
        model = Dreamer(V, dream, canvas_length=4)
        decoding = Autoregressive(temperature=temperature, drafts=drafts)
        engine = engine_of(model, decoding=decoding, slots=2)
        for request, result in zip(requests, engine.generate(requests), strict=True):
            stopped = result.complete
            expected = naive(engine, model, spec, request, temperature)
            assert result.token_ids == (expected[:-1] if stopped else expected)
            assert stopped or (spec is None and len(expected) == request.max_tokens)


def test_a_seed_repeats_what_it_draws_and_another_draws_something_else(engine_of):
    def run(seed):
        engine = engine_of(Dreamer(V, 3), decoding=Autoregressive(temperature=1.0))
        return engine.generate(Request(token_ids=PROMPT, seed=seed, max_tokens=20)).token_ids

    assert run(1) == run(1) != run(2)


@pytest.mark.parametrize("drafts", [False, True])
def test_what_leaves_too_little_room_is_picked_again(engine_of, tokens_of, drafts):
    (token,) = tokens_of("b")
    model = Obsessed(V, [token, 106])
    engine = engine_of(model, decoding=Autoregressive(drafts=drafts))
    spec = Regex("a|b[c-d]{200}")
    result = engine.generate(Request(token_ids=PROMPT, constraint=spec, max_tokens=60))
    assert (result.text, result.finish_reason) == ("a", "length")
    assert result.stats.causal_calls == 3  # "b", "a", and the stop


def test_a_constraint_that_contradicts_itself_ends_its_request(engine_of, monkeypatch):
    monkeypatch.setattr(LeftToRight, "fits", lambda self, tokens: 0)
    with pytest.raises(DlmError, match="allows only what it does not take"):
        engine_of(Obsessed(V, [300])).generate(
            Request(token_ids=PROMPT, constraint=Regex("[a-c]{3}"), max_tokens=60)
        )


def test_a_model_that_leaves_no_token_fails_its_request_alone(engine_of):
    class Silent(Obsessed):
        def wish(self, committed, canvas, soft_embedding):
            logits = super().wish(committed, canvas, soft_embedding)
            return logits.fill_(-torch.inf) if len(committed) == len(PROMPT) + 1 else logits

    engine = engine_of(Silent(V, [300]))
    engine.add(Request(token_ids=PROMPT, max_tokens=4))
    engine.add(Request(token_ids=[*PROMPT, 7, 7], max_tokens=4))
    ends = ends_of(engine)
    assert "the model's logits leave no token" in str(ends[0].error)
    assert ends[1].result.token_ids == [300] * 4


def test_events_tell_of_each_token_once_and_of_no_draft(engine_of, tokens_of):
    script = tokens_of('["laptop", "desk"]<turn|>')
    engine = engine_of(Scripted(V, len(PROMPT), script))
    engine.add(Request(token_ids=PROMPT, constraint=JsonSchema({"type": "array"})))
    events = events_of(engine)
    assert not [event for event in events if isinstance(event, Draft)]
    committed = [event for event in events if isinstance(event, Committed)]
    assert [token for event in committed for token in event.tokens] == script
    assert "".join(event.text for event in committed) == '["laptop", "desk"]'
    assert isinstance(events[-1], Finished)
    assert events[-1].result.parsed == ["laptop", "desk"]


def test_a_look_that_takes_several_steps_changes_nothing(engine_of):
    schema = {"anyOf": [PERSON | {"title": str(i)} for i in range(9)] + [{"type": "array"}]}
    request = Request(token_ids=PROMPT, constraint=JsonSchema(schema), max_tokens=60)
    answers, steps = [], []
    for work in (2000, 3):
        policy = Policy(step_work=work, max_unfinished_steps=100_000, request_work=10**9)
        engine = engine_of(Dreamer(V, 1), policy=policy)
        engine.compile(request.constraint).result()
        engine.add(request)
        ends, count = [], 0
        while engine.busy:
            ends += [event for event in engine.step() if isinstance(event, Finished | Failed)]
            count += 1
        assert isinstance(ends[0], Finished), ends[0].error
        answers.append(ends[0].result.token_ids)
        steps.append(count)
    assert answers[0] == answers[1]
    assert steps[1] > steps[0]


def test_a_grammar_that_takes_more_than_its_share_ends_its_request_alone(engine_of):
    engine = engine_of(Dreamer(V, 1), policy=Policy(step_work=1, max_unfinished_steps=2))
    bad = engine.add(Request(token_ids=PROMPT, constraint=JsonSchema(PERSON)))
    good = engine.add(Request(token_ids=PROMPT, max_tokens=5))
    ends = ends_of(engine)
    assert "the grammar takes over 2 units of work to match a token" in str(ends[bad].error)
    assert isinstance(ends[good], Finished)


def test_a_model_says_whether_it_can_be_decoded_so(engine_of):
    class OnlyCanvases:
        vocab_size, max_positions, softcap = V, 100, None
        device = torch.device("cpu")

        def new_cache(self, slots):
            raise NotImplementedError

    with pytest.raises(DlmError, match="a OnlyCanvases predicts no next token"):
        engine_of(OnlyCanvases())
    with pytest.raises(DlmError, match=r"temperature must be at least 0, got -1\.0"):
        Autoregressive(temperature=-1.0)


def test_a_conversation_of_many_chunks_is_read_in_several_passes(left_to_right):
    """The answer is that of transformers, which reads all of the conversation at once."""
    request = Request(prompt="The weather is fine. " * 150 + samples(1)[0].prompt, max_tokens=24)
    prompt = left_to_right.chat.prompt(request)
    assert 1024 < len(prompt) < 2048 - 24
    left_to_right.add(request)
    steps, result = 0, None
    while left_to_right.busy:
        ends = [event for event in left_to_right.step() if isinstance(event, Finished)]
        steps, result = steps + 1, ends[0].result if ends else None
    assert result is not None
    assert steps == result.stats.causal_calls + -(-len(prompt) // CHUNK) - 1
    answer = [*result.token_ids, *[106] * (result.finish_reason == "stop")]
    assert likeliest(prompt, answer[:-1]) == answer


@cache
def transformers_model():
    return DiffusionGemmaForBlockDiffusion.from_pretrained(BUILT_IN).eval()


def likeliest(prompt, answer):
    """Return transformers' likeliest token after the prompt, and after each token of `answer`."""
    theirs = transformers_model()
    with torch.no_grad():
        ids = torch.tensor([[*prompt, *answer]])
        states = theirs.model.encoder.language_model(input_ids=ids).last_hidden_state[0]
        return theirs.lm_head(states[len(prompt) - 1 :]).argmax(-1).tolist()
