"""SGLang's own algorithms with constraints, on made-up logits: valid answers, and their passes."""

import pytest
from blocks import Request, answer
from holds import holds_of
from invoice_requests import MASK, algorithm, check, is_valid, made, requests_for, shortest
from sglang.srt.dllm.algorithm import algo_name_to_cls
from weightless import Knowing, Noise

from dlm.grammar import Compiler, JsonSchema, Reasoning
from dlm.grammar.vocabulary.markers import Marker
from dlm.integrations.sglang.grammar import RequestGrammar
from dlm.integrations.sglang.hooks import ALGORITHMS
from dlm.integrations.sglang.masked import Masked
from dlm.integrations.sglang.self_check import WORDS, check_algorithm
from dlm.integrations.sglang.settings import PluginSettings
from dlm.policy import Policy

MASKED = ["LowConfidence", "JointThreshold", "JointThresholdInDel"]
MANY_STATES = {"type": "string", "pattern": "^[ab]*a[ab]{8}$"}  # other ones after each text
EDITS = 20  # passes that may come after a block's last mask


@pytest.mark.parametrize("fdfo", [False, True], ids=["sync", "fdfo"])
@pytest.mark.parametrize("block", [4, 32])
@pytest.mark.parametrize("name", MASKED)
@pytest.mark.parametrize("model", ["knowing", "flat", "sure"])
@pytest.mark.parametrize("order", ["joint", "prefix"])
def test_answers_are_valid_and_each_pass_unmasks(
    models, compiled, vocabulary, order, model, name, block, fdfo
):
    """Half of the answers have to be the shortest one, and a block takes no more passes than it has
    positions, and those that edit."""
    requests = requests_for(compiled, [1], budget=shortest(compiled)) + requests_for(compiled, [2])
    answer(
        algorithm(name, block, fdfo, PluginSettings(order)),
        requests,
        models[model],
        vocabulary.stops,
    )
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
    answer(algorithm(name, 32, fdfo), mixed, models["knowing"], vocabulary.stops)
    check([request for request in mixed if request.grammar is not None], vocabulary)
    alone = requests_for(compiled, free, free=free)
    plain = algorithm(name, 32, fdfo, settings=None)
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
        answer(
            algorithm("JointThreshold", 32, fdfo, **how), requests, models[model], vocabulary.stops
        )
        check(requests, vocabulary)


class Restless(Noise):
    """A model that is sure of other tokens in each pass, so that edits never end."""

    rows = 0

    def row(self, key, position, holes, written):
        self.rows += 1
        return super().row(key, self.rows, holes, written)


@pytest.mark.parametrize("vectorized", [False, True])
@pytest.mark.parametrize("name", MASKED[1:])
def test_a_finished_block_that_waits_for_others_takes_no_more_edits(
    compiled, vocabulary, name, vectorized
):
    how = {"max_post_edit_steps": 1, "vectorized_decoding": vectorized}
    requests = requests_for(compiled, range(4))
    model = Restless(len(vocabulary.pieces), 12.0)
    answer(algorithm(name, 32, **how), requests, model, vocabulary.stops)
    for request in requests:
        assert request.grammar.error is None, request.grammar.error
        assert is_valid(vocabulary.text(request.output))


def test_constraints_save_passes_and_right_answers_stay(models, compiled, vocabulary, texts):
    """Prints the figures: passes of the model for an answer of 50 tokens or so, in blocks of 32."""
    passes = {}
    for name in MASKED[:2]:
        for order in ("free", "prefix", "joint"):
            how = None if order == "free" else PluginSettings(order)
            keys = range(20)
            requests = requests_for(compiled, keys, free=keys if order == "free" else ())
            for request in requests:
                low = algorithm(name, 32, settings=how)
                answer(low, [request], models["knowing"], vocabulary.stops)
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


@pytest.mark.parametrize("fdfo", [False, True], ids=["sync", "fdfo"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_grammar_that_needs_many_steps_holds_its_block_and_changes_no_answer(
    vocabulary, monkeypatch, name, fdfo
):
    spec = JsonSchema({"type": "array", "minItems": 1, "maxItems": 2, "items": MANY_STATES})
    model = Noise(len(vocabulary.pieces), 12.0)

    def answered(work):
        requests = requests_for(Compiler(vocabulary).compile(spec), [3], budget=60)
        how = PluginSettings(step_work=work)
        answer(algorithm(name, 4, fdfo, how), requests, model, vocabulary.stops)
        assert requests[0].grammar.error is None
        spec.value(vocabulary.text(requests[0].output))
        return requests[0]

    held = holds_of(monkeypatch)
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
    answer(algorithm(name, 4, fdfo), requests, models["knowing"], vocabulary.stops)
    assert "a bug, by the test" in str(broken.error)
    assert MASK not in requests[1].output
    check([requests[0], requests[2]], vocabulary)


def test_a_bug_of_the_guide_ends_the_requests_and_raises_nothing(
    models, compiled, vocabulary, monkeypatch
):
    low = algorithm("LowConfidence", 32)
    monkeypatch.setattr(low, "_canvas", None)
    requests = requests_for(compiled, range(2), free=(1,))
    answer(low, requests, models["knowing"], vocabulary.stops)
    assert "TypeError" in str(requests[0].grammar.error)
    assert requests[1].output


def test_undefined_logits_end_the_request(compiled, vocabulary):
    requests = requests_for(compiled, [0])
    model = Noise(len(vocabulary.pieces), float("nan"))
    answer(algorithm("LowConfidence", 32, fdfo=True), requests, model, vocabulary.stops)
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
    answer(algorithm("LowConfidence", 32), [request], model, vocabulary.stops)
    assert grammar.error is None, grammar.error
    text = vocabulary.text(request.output)
    assert is_valid(text.partition("</think>")[2])


@pytest.mark.parametrize("fdfo", [False, True], ids=["sync", "fdfo"])
@pytest.mark.parametrize("block", [4, 32])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_check_at_the_start_passes(compiler, vocabulary, name, block, fdfo):
    size = len(vocabulary.pieces)
    check_algorithm(algorithm(name, block, fdfo), compiler.compile(WORDS), size, "cpu")


def test_the_check_at_the_start_fails_where_logits_are_not_read(compiler, vocabulary):
    class Deaf(algo_name_to_cls["LowConfidence"]):
        def step(self, forward_batch, full_logits, states):
            return super().step(forward_batch, full_logits.roll(1, -1), states)

    deaf = made(Masked.of(Deaf, PluginSettings()), 32)
    with pytest.raises(Exception, match=r"suspect|not allowed|token"):
        check_algorithm(deaf, compiler.compile(WORDS), len(vocabulary.pieces), "cpu")


def test_an_algorithm_without_constraints_fails_the_check(compiler, vocabulary):
    plain = algorithm("LowConfidence", 32, settings=None)
    with pytest.raises(Exception, match="has no constraints"):
        check_algorithm(plain, compiler.compile(WORDS), len(vocabulary.pieces), "cpu")
