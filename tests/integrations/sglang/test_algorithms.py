"""SGLang's own algorithms with constraints, on made-up logits: valid answers, and their passes."""

import json
from random import Random

import jsonschema
import pytest
import torch
from blocks import Request, answer
from conftest import TINY
from sglang.srt.dllm.algorithm import algo_name_to_cls
from sglang.srt.dllm.config import DllmConfig
from transformers import AutoTokenizer
from weightless import Knowing, Noise

from dlm.grammar import Compiler, Frontier, JsonSchema, Matcher, Reasoning, Unfinished, Vocabulary
from dlm.grammar.vocabulary.markers import Marker
from dlm.integrations.sglang.algorithms import constrained
from dlm.integrations.sglang.grammar import RequestGrammar
from dlm.integrations.sglang.self_check import WORDS, check_algorithm
from dlm.policy import Policy

MASK, DELETE, SPLIT = 4, 5, 6
ALGORITHMS = ["LowConfidence", "JointThreshold", "JointThresholdInDel"]
MANY_STATES = {"type": "string", "pattern": "^[ab]*a[ab]{8}$"}  # other ones after each text
EDITS = 20  # passes that may come after a block's last mask
INVOICE = {
    "type": "object",
    "properties": {
        "id": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{4}$"},
        "customer": {"type": "string", "maxLength": 30},
        "total": {"type": "number"},
        "paid": {"type": "boolean"},
        "items": {
            "type": "array",
            "maxItems": 3,
            "items": {
                "type": "object",
                "properties": {
                    "name": {"type": "string", "maxLength": 12},
                    "n": {"type": "integer"},
                },
                "required": ["name", "n"],
                "additionalProperties": False,
            },
        },
    },
    "required": ["id", "customer", "total", "paid", "items"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def tokenizer():
    torch.set_num_threads(1)
    return AutoTokenizer.from_pretrained(TINY)


@pytest.fixture(scope="module")
def vocabulary(tokenizer):
    size = json.loads((TINY / "config.json").read_text())["text_config"]["vocab_size"]
    return Vocabulary.from_tokenizer(tokenizer, size, [1], 0, control=[MASK, DELETE, SPLIT])


@pytest.fixture(scope="module")
def compiler(vocabulary):
    return Compiler(vocabulary)


@pytest.fixture(scope="module")
def compiled(compiler):
    return compiler.compile(JsonSchema(INVOICE))


@pytest.fixture(scope="module")
def texts(vocabulary):
    """Tokens of an invoice for each key, with the stop."""

    def text(key):
        dice = Random(f"invoice {key}")
        items = [
            {"name": dice.choice(["paper", "coffee", "lamps", "cables"]), "n": dice.randrange(99)}
            for _ in range(dice.randrange(3))
        ]
        value = {
            "id": f"{dice.choice('ABK')}{dice.choice('LMN')}-{dice.randrange(10000):04}",
            "customer": dice.choice(["Silver Robotics", "Old Mill", "Blue Ocean Foods"]),
            "total": dice.randrange(99999) / 100,
            "paid": dice.random() < 0.5,
            "items": items,
        }
        return [*vocabulary.encode(json.dumps(value)), vocabulary.stops[0]]

    return {key: text(key) for key in range(40)}


@pytest.fixture(scope="module")
def models(compiled, texts, vocabulary):
    size = len(vocabulary.pieces)
    return {
        "knowing": Knowing(compiled, texts),
        "flat": Noise(size, 1.0),
        "sure": Noise(size, 12.0),
    }


def made(name, block, fdfo=False, with_constraints=True, **config):
    base = algo_name_to_cls[name]
    cls = constrained(base) if with_constraints else base
    return cls(
        DllmConfig(
            algorithm=name,
            algorithm_config=config,
            block_size=block,
            mask_id=MASK,
            max_running_requests=4,
            first_done_first_out_mode=fdfo,
            delete_token_id=DELETE,
            split_token_id=SPLIT,
        )
    )


def requests_for(compiled, keys, budget=150, free=()):
    return [
        Request(
            key=key,
            grammar=None if key in free else RequestGrammar(compiled, Policy(), None),
            prompt=5 + 7 * key % 40,
            budget=budget,
        )
        for key in keys
    ]


def check(requests, vocabulary):
    for request in requests:
        assert request.grammar.error is None, request.grammar.error
        assert request.grammar.masked_again == 0
        assert not {MASK, DELETE, SPLIT} & set(request.output)
        jsonschema.validate(json.loads(vocabulary.text(request.output)), INVOICE)


def shortest(compiled):
    """Return the tokens of the shortest answer, its stop included."""
    return len(Matcher(compiled).shortest_completion()) + 1


@pytest.fixture(params=["joint", "prefix"])
def order(request, monkeypatch):
    monkeypatch.setenv("DLM_SGLANG_ORDER", request.param)
    return request.param


@pytest.mark.parametrize("fdfo", [False, True], ids=["sync", "fdfo"])
@pytest.mark.parametrize("block", [4, 32])
@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("model", ["knowing", "flat", "sure"])
def test_answers_are_valid_and_each_pass_unmasks(
    models, compiled, vocabulary, order, model, name, block, fdfo
):
    """Half of the answers have to be the shortest one, and a block takes no more passes than it has
    positions, and those that edit."""
    requests = requests_for(compiled, [1], budget=shortest(compiled)) + requests_for(compiled, [2])
    answer(made(name, block, fdfo), requests, models[model], vocabulary.stops)
    check(requests, vocabulary)
    edits = 0 if name == "LowConfidence" else EDITS
    if fdfo:
        assert max(max(request.passes) for request in requests) <= block + 1 + edits
    if name != "JointThresholdInDel":
        assert len(requests[0].output) <= shortest(compiled) - 1


@pytest.mark.parametrize("fdfo", [False, True], ids=["sync", "fdfo"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_free_requests_are_those_of_sglang_beside_constrained_ones(
    models, compiled, vocabulary, name, fdfo
):
    keys, free = range(4), (1, 3)
    mixed = requests_for(compiled, keys, free=free)
    answer(made(name, 32, fdfo), mixed, models["knowing"], vocabulary.stops)
    check([request for request in mixed if request.grammar is not None], vocabulary)
    alone = requests_for(compiled, free, free=free)
    plain = made(name, 32, fdfo, with_constraints=False)
    answer(plain, alone, models["knowing"], vocabulary.stops)
    assert [mixed[key].output for key in free] == [request.output for request in alone]


@pytest.mark.parametrize("vectorized", [False, True])
@pytest.mark.parametrize("fdfo", [False, True], ids=["sync", "fdfo"])
def test_penalties_and_batched_decisions_leave_answers_valid(
    models, compiled, vocabulary, vectorized, fdfo
):
    how = {"penalty_lambda": 3.0, "vectorized_decoding": vectorized}
    for model in ("knowing", "sure"):
        requests = requests_for(compiled, range(2))
        answer(made("JointThreshold", 32, fdfo, **how), requests, models[model], vocabulary.stops)
        check(requests, vocabulary)


class Restless(Noise):
    """A model that is sure of other tokens in each pass, so that edits never end."""

    rows = 0

    def row(self, key, position, holes, written):
        self.rows += 1
        return super().row(key, self.rows, holes, written)


@pytest.mark.parametrize("vectorized", [False, True])
@pytest.mark.parametrize("name", ALGORITHMS[1:])
def test_a_finished_block_that_waits_for_others_takes_no_more_edits(
    compiled, vocabulary, name, vectorized
):
    how = {"max_post_edit_steps": 1, "vectorized_decoding": vectorized}
    requests = requests_for(compiled, range(4))
    model = Restless(len(vocabulary.pieces), 12.0)
    answer(made(name, 32, **how), requests, model, vocabulary.stops)
    for request in requests:
        assert request.grammar.error is None, request.grammar.error
        assert is_valid(vocabulary.text(request.output))


def test_constraints_save_passes_and_right_answers_stay(
    models, compiled, vocabulary, texts, monkeypatch
):
    """Prints the figures: passes of the model for an answer of 50 tokens or so, in blocks of 32."""
    passes = {}
    for name in ALGORITHMS[:2]:
        for order in ("free", "prefix", "joint"):
            monkeypatch.setenv("DLM_SGLANG_ORDER", "joint" if order == "free" else order)
            keys = range(20)
            requests = requests_for(compiled, keys, free=keys if order == "free" else ())
            for request in requests:
                answer(made(name, 32), [request], models["knowing"], vocabulary.stops)
            if order != "free":
                check(requests, vocabulary)
            valid = sum(is_valid(vocabulary.text(request.output)) for request in requests)
            same = sum(request.output == texts[request.key][:-1] for request in requests)
            passes[name, order] = sum(sum(r.passes) for r in requests) / len(requests)
            print(
                f"{name}, {order}: {valid} of {len(keys)} valid, {same} the text, "
                f"{passes[name, order]:.1f} passes an answer"
            )
            assert order == "free" or same >= len(keys) * 0.6
        assert passes[name, "joint"] <= passes[name, "prefix"] < passes[name, "free"] * 1.2


def is_valid(text):
    try:
        jsonschema.validate(json.loads(text), INVOICE)
    except (ValueError, jsonschema.ValidationError):
        return False
    return True


@pytest.mark.parametrize("fdfo", [False, True], ids=["sync", "fdfo"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_grammar_that_needs_many_steps_holds_its_block_and_changes_no_answer(
    vocabulary, monkeypatch, name, fdfo
):
    spec = JsonSchema({"type": "array", "minItems": 1, "maxItems": 2, "items": MANY_STATES})
    model = Noise(len(vocabulary.pieces), 12.0)

    def answered(work):
        monkeypatch.setenv("DLM_SGLANG_STEP_WORK", str(work))
        requests = requests_for(Compiler(vocabulary).compile(spec), [3], budget=60)
        answer(made(name, 4, fdfo), requests, model, vocabulary.stops)
        assert requests[0].grammar.error is None
        spec.value(vocabulary.text(requests[0].output))
        return requests[0]

    held = []
    guide = Frontier.guide

    def counted(self, *args):
        try:
            return guide(self, *args)
        except Unfinished:
            held.append(1)
            raise

    monkeypatch.setattr(Frontier, "guide", counted)
    quick = answered(10**6)
    assert not held
    slow = answered(1)
    assert held
    assert slow.output == quick.output


@pytest.mark.parametrize("fdfo", [False, True], ids=["sync", "fdfo"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_request_whose_grammar_fails_ends_alone(
    models, compiled, vocabulary, monkeypatch, name, fdfo
):
    requests = requests_for(compiled, range(3))
    broken, guide = requests[1].grammar, RequestGrammar.guide

    def raising(self, *args):
        if self is broken and len(requests[1].output) > 30:
            raise RuntimeError("a bug, by the test")
        return guide(self, *args)

    monkeypatch.setattr(RequestGrammar, "guide", raising)
    answer(made(name, 4, fdfo), requests, models["knowing"], vocabulary.stops)
    assert "a bug, by the test" in str(broken.error)
    assert MASK not in requests[1].output
    check([requests[0], requests[2]], vocabulary)


def test_a_bug_of_the_guide_ends_the_requests_and_raises_nothing(
    models, compiled, vocabulary, monkeypatch
):
    algorithm = made("LowConfidence", 32)
    monkeypatch.setattr(algorithm, "_canvas", None)
    requests = requests_for(compiled, range(2), free=(1,))
    answer(algorithm, requests, models["knowing"], vocabulary.stops)
    assert "TypeError" in str(requests[0].grammar.error)
    assert requests[1].output


def test_undefined_logits_end_the_request(compiled, vocabulary):
    requests = requests_for(compiled, [0])
    model = Noise(len(vocabulary.pieces), float("nan"))
    answer(made("LowConfidence", 32, fdfo=True), requests, model, vocabulary.stops)
    assert requests[0].grammar.error is not None or is_valid(vocabulary.text(requests[0].output))


def test_reasoning_comes_before_the_answer(compiled, vocabulary, texts):
    opening, closing = vocabulary.encode("<think>"), vocabulary.encode("</think>")
    markers = Reasoning(Marker(opening, vocabulary), Marker(closing, vocabulary))
    thought = [*vocabulary.encode("A thought, not long."), *closing]
    model = Knowing(compiled, {0: [*thought, *texts[0]]})
    grammar = RequestGrammar(compiled, Policy(), markers)
    request = Request(key=0, grammar=grammar, prompt=9, budget=200)
    grammar.bind(9, request.tokens, 200, thinks=True)
    request.grammar.bind = lambda *_: None
    answer(made("LowConfidence", 32), [request], model, vocabulary.stops)
    assert grammar.error is None, grammar.error
    text = vocabulary.text(request.output)
    assert is_valid(text.partition("</think>")[2])


@pytest.mark.parametrize("fdfo", [False, True], ids=["sync", "fdfo"])
@pytest.mark.parametrize("block", [4, 32])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_check_at_the_start_passes(compiler, vocabulary, name, block, fdfo):
    size = len(vocabulary.pieces)
    check_algorithm(made(name, block, fdfo), compiler.compile(WORDS), size, "cpu")


def test_the_check_at_the_start_fails_where_logits_are_not_read(compiler, vocabulary):
    class Deaf(algo_name_to_cls["LowConfidence"]):
        def step(self, forward_batch, full_logits, states):
            return super().step(forward_batch, full_logits.roll(1, -1), states)

    config = made("LowConfidence", 32)
    algorithm = constrained(Deaf)(
        DllmConfig(
            algorithm="LowConfidence",
            algorithm_config={},
            block_size=config.block_size,
            mask_id=MASK,
            max_running_requests=1,
        )
    )
    with pytest.raises(Exception, match=r"suspect|not allowed|token"):
        check_algorithm(algorithm, compiler.compile(WORDS), len(vocabulary.pieces), "cpu")


def test_an_algorithm_without_constraints_fails_the_check(compiler, vocabulary):
    plain = made("LowConfidence", 32, with_constraints=False)
    with pytest.raises(Exception, match="has no constraints"):
        check_algorithm(plain, compiler.compile(WORDS), len(vocabulary.pieces), "cpu")
