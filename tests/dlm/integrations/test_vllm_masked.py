"""The plugin's sampler of masks around a double of vLLM's, by each of its policies."""

import json

import jsonschema
import numpy as np
import pytest
import torch
from exhaustive import by_default
from values import V
from vllm_double import batch_of
from vllm_masks import MASK, POLICIES, LikingMasks, MaskRequest, MaskSampler, MaskStates, worker_of
from vllm_params import payload_of
from weightless import Knowing

from dlm.grammar import Compiler, Frontier, JsonSchema, Matcher, Regex, Unfinished, Vocabulary
from dlm.integrations.vllm.masked import MaskedSampler
from dlm.integrations.vllm.slots import Slots
from dlm.logits.guided import LogitsGuide
from dlm.policy import Policy

STOPS, PAD, MARKS = (1, 106, 50), 0, (2, 3, 5)
INTEGERS = {"type": "array", "items": {"type": "integer"}, "maxItems": 3}
SCHEMAS = {
    "nested": {
        "type": "object",
        "properties": {
            "id": {"type": "string", "pattern": "^[A-Z]{2}[0-9]?$"},
            "of": {
                "type": "object",
                "properties": {"paid": {"type": "boolean"}, "sums": INTEGERS},
                "required": ["paid", "sums"],
            },
        },
        "required": ["id", "of"],
    },
    "references": {
        "$defs": {"node": {"anyOf": [{"type": "null"}, {"$ref": "#"}]}},
        "type": "object",
        "properties": {"n": {"type": "integer"}, "next": {"$ref": "#/$defs/node"}},
        "required": ["n", "next"],
    },
    "dictionary": {
        "type": "object",
        "additionalProperties": {"type": "integer"},
        "minProperties": 2,
    },
    "tuple": {
        "type": "array",
        "prefixItems": [{"enum": ["red", "blue"]}, {"type": "number"}, {"type": "boolean"}],
        "items": False,
        "minItems": 3,
    },
    "union": {
        "anyOf": [
            {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]},
            {"type": "array", "items": {"type": "boolean"}, "minItems": 2},
        ]
    },
}


def called(name, **properties):
    """Return the schema of a call, as vLLM makes it of a tool."""
    parameters = {"type": "object", "properties": properties, "required": [*properties]}
    return {
        "properties": {"name": {"type": "string", "enum": [name]}, "parameters": parameters},
        "required": ["name", "parameters"],
    }


SCHEMAS["calls"] = {
    "type": "array",
    "minItems": 1,
    "items": {
        "type": "object",
        "anyOf": [called("book", n={"type": "integer"}), called("ask", of={"enum": ["a", "b"]})],
    },
}
policies = pytest.mark.parametrize("policy", POLICIES)


@pytest.fixture(scope="module")
def vocabulary(chat):
    return Vocabulary.from_tokenizer(chat.tokenizer, V, STOPS, PAD, control=[MASK])


@pytest.fixture(scope="module")
def compiler(vocabulary):
    return Compiler(vocabulary)


def payload_for(compiled, **changes):
    return payload_of(compiled, PAD, STOPS, **{"squeezed": [*MARKS]} | changes)


def check(vocabulary, request, schema):
    assert request.reason in ("stop", "length"), request.reason
    assert request.output[-1] in STOPS
    assert len(request.output) <= request.budget
    assert MASK not in request.output
    jsonschema.validate(json.loads(vocabulary.text(request.output)), schema)


@policies
@pytest.mark.parametrize(
    ("L", "steps", "order"),
    by_default([(16, 5, "joint"), (4, 4, "prefix"), (32, 32, "joint"), (32, 3, "prefix")]),
)
def test_answers_are_valid_in_exactly_the_shortest_budget_and_in_more(
    compiler, vocabulary, policy, L, steps, order
):
    """Each schema has an answer in the least budget, and one in a larger one."""
    worker = worker_of(compiler, 2 * len(SCHEMAS), policy=policy, L=L, steps=steps, order=order)
    wanted = []
    for number, schema in enumerate(SCHEMAS.values()):
        compiled = compiler.compile(JsonSchema(schema))
        least = len(Matcher(compiled).shortest_completion()) + 1
        for more in (0, 24):
            slot = len(wanted)
            request = MaskRequest(
                key=slot + number, budget=least + more, payload=payload_for(compiled)
            )
            worker.add(slot, request)
            wanted.append((request, schema))
    while not all(request.reason for request, _ in wanted):
        worker.step()
        assert (worker.states.step <= steps).all()  # passes of a canvas, as without constraints
    for request, schema in wanted:
        check(vocabulary, request, schema)


@policies
def test_a_model_that_knows_a_valid_text_writes_it(compiler, vocabulary, policy):
    schema = SCHEMAS["nested"]
    text = '{"id": "AB7", "of": {"paid": true, "sums": [1, 20]}}'
    compiled = compiler.compile(JsonSchema(schema))
    tokens = [*vocabulary.encode(text), STOPS[0]]
    knowing = Knowing(compiled, {0: tokens}, right=1.0, slope=0.0)
    passes = []
    for model in (knowing, LikingMasks(MASK, V, knowing)):
        worker = worker_of(compiler, 1, policy=policy, L=32, model=model)
        request = MaskRequest(key=0, budget=60, payload=payload_for(compiled))
        worker.add(0, request)
        worker.run()
        assert request.reason == "stop"
        assert vocabulary.text(request.output) == text
        passes.append(worker.passes)
    assert passes[0] == passes[1]  # that a model likes masks is no refusal of the grammar


@policies
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_free_requests_are_those_of_the_engine_beside_constrained_ones(
    compiler, policy, temperature
):
    """Beside them, in the same steps, a constraint changes no token and no random number."""
    compiled = compiler.compile(JsonSchema({"type": "array", "items": {"type": "integer"}}))

    def outputs(plugin):
        torch.manual_seed(7)
        worker = worker_of(compiler, 4, policy=policy, L=16, steps=4, plugin=plugin)
        for slot in range(4):
            free = slot % 2 == 1
            payload = None if free else payload_for(compiled)
            heat = temperature if free else 0.0
            worker.add(slot, MaskRequest(key=slot, budget=32, payload=payload, temperature=heat))
        for _ in range(9):
            for request in worker.requests.values():
                request.reason = request.reason if request.reason == "error" else ""
            worker.step()
        return [worker.requests[slot].output for slot in (1, 3)], torch.rand(1)

    (theirs, number), (ours, own_number) = outputs(plugin=False), outputs(plugin=True)
    assert all(theirs)
    assert ours == theirs
    assert own_number == number


def test_steps_without_constraints_leave_the_logits_unchanged(compiler):
    worker = worker_of(compiler, 2)
    seen = []
    inner = worker.sampler._inner
    worker.sampler._inner = lambda logits, batch: seen.append(logits) or inner(logits, batch)
    logits = torch.zeros(16, V)
    worker.sampler(logits, batch_of({1: 16}))
    assert seen[0] is logits
    assert not logits.any()


def test_from_left_to_right_no_token_stands_right_of_a_mask(compiler):
    compiled = compiler.compile(JsonSchema(SCHEMAS["nested"]))
    worker = worker_of(compiler, 1, order="prefix", policy="low_confidence")
    worker.add(0, MaskRequest(key=0, budget=60, payload=payload_for(compiled)))
    stood = []
    while not worker.requests[0].reason:
        worker.step()
        masks = (worker.states.canvas[0] == MASK).tolist()
        stood.append(masks == sorted(masks))
    assert all(stood)


@policies
def test_what_the_sampler_takes_of_suspect_positions_is_masked_again(compiler, policy):
    """After each pass all that stands is the guess, in the canvas and in what vLLM shows next."""
    compiled = compiler.compile(JsonSchema(SCHEMAS["references"]))
    worker = worker_of(compiler, 1, policy=policy, L=16, steps=6)
    worker.add(0, MaskRequest(key=0, budget=70, payload=payload_for(compiled)))
    guide, guidances = worker.sampler._guide.guide_, []

    def noted(*arguments):
        guidances.append(guide(*arguments))
        return guidances[-1]

    worker.sampler._guide.guide_ = noted
    while not worker.requests[0].reason:
        emitted = len(worker.requests[0].output)
        worker.step()
        if len(worker.requests[0].output) > emitted or not guidances[-1]:
            continue
        after = worker.states.canvas[0]
        standing = {p: t for p, t in enumerate(after.tolist()) if t != MASK}
        assert not guidances[-1][0].misplaced(standing)
        assert torch.equal(worker.sampler.req_states.draft_tokens[0, :16], after)
        assert bool(worker.states.is_encoder_phase[0]) == (MASK not in after.tolist())


def test_a_canvas_at_the_end_of_the_context_is_shorter(compiler, vocabulary):
    schema = SCHEMAS["nested"]
    compiled = compiler.compile(JsonSchema(schema))
    least = len(Matcher(compiled).shortest_completion()) + 1
    for context in (least + 3, least + 5):
        worker = worker_of(compiler, 1, L=16, steps=4, context=context)
        request = MaskRequest(key=0, budget=1000, payload=payload_for(compiled))
        worker.add(0, request)
        worker.run()
        check(vocabulary, request, schema)
        assert len(request.output) <= context - 3


def test_a_budget_that_cuts_an_answer_short_says_so(compiler, vocabulary):
    compiled = compiler.compile(Regex("[a-f]{3,200}"))
    reasons = set()
    for key in range(6):
        worker = worker_of(compiler, 1, steps=4)
        request = MaskRequest(key=key, budget=20, payload=payload_for(compiled))
        worker.add(0, request)
        worker.run()
        Regex("[a-f]{3,200}").value(vocabulary.text(request.output))
        assert not {*MARKS} & {*request.output}
        reasons.add(request.reason)
    assert "length" in reasons


def test_a_preempted_request_continues_after_its_tokens(compiler, vocabulary):
    schema = SCHEMAS["nested"]
    compiled = compiler.compile(JsonSchema(schema))
    worker = worker_of(compiler, 2, L=4)
    first = MaskRequest(key=0, budget=50, payload=payload_for(compiled))
    worker.add(0, first)
    while len(first.output) < 8:
        worker.step()
    worker.requests.clear()
    worker.slots.remove(0)
    again = MaskRequest(key=0, budget=50, payload=first.payload, output=list(first.output))
    worker.add(1, again)
    worker.run()
    assert again.output[:8] == first.output[:8]
    check(vocabulary, again, schema)


def test_a_canvas_whose_guidance_is_not_finished_is_restored(compiler, vocabulary):
    schema = SCHEMAS["references"]
    compiled = compiler.compile(JsonSchema(schema))
    worker = worker_of(Compiler(vocabulary), 2, work=10, steps=4)
    request = MaskRequest(key=0, budget=40, payload=payload_for(compiled))
    worker.add(0, request)
    worker.add(1, MaskRequest(key=1, budget=8))
    held = 0
    while not worker.states.step[0]:
        worker.step()
        if not worker.states.step[0]:
            held += 1
            assert (worker.states.canvas[0] == MASK).all()
            assert (worker.sampler.req_states.draft_tokens[0, :16] == MASK).all()
            assert not worker.states.unmask_logprobs[0].any()
        assert held < 200
    assert held
    assert worker.requests[1].output or worker.states.step[1]
    worker.run()
    check(vocabulary, request, schema)


def failing(compiler, **broken):
    """Return the reasons and the first answer of a request that fails between two others."""
    compiled = compiler.compile(JsonSchema(SCHEMAS["tuple"]))
    worker = worker_of(compiler, 3, steps=4)
    worker.add(0, MaskRequest(key=0, budget=40, payload=payload_for(compiled)))
    worker.add(1, MaskRequest(key=1, budget=40, payload=payload_for(compiled, **broken)))
    worker.add(2, MaskRequest(key=2, budget=8))
    slot = worker.slots.get(1)
    worker.run()
    return worker, slot


@pytest.mark.parametrize("rules", [b"", b"no pickle", b"\x80\x04N."])
def test_a_forged_payload_ends_one_request(compiler, vocabulary, rules):
    worker, slot = failing(compiler, rules=rules)
    first, broken, free = (worker.requests[i] for i in range(3))
    assert slot.error is not None
    assert (broken.reason, broken.output) == ("error", [])
    assert free.reason in ("length", "stop")
    check(vocabulary, first, SCHEMAS["tuple"])


def test_a_request_whose_guidance_never_finishes_fails_alone(compiler, vocabulary, monkeypatch):
    guide = Frontier.guide

    def never(self, scores, fixed):
        if self._budget == 40:
            raise Unfinished("more time")
        return guide(self, scores, fixed)

    monkeypatch.setattr(Frontier, "guide", never)
    compiled = compiler.compile(JsonSchema(SCHEMAS["tuple"]))
    worker = worker_of(compiler, 2, steps=4)
    worker.add(0, MaskRequest(key=0, budget=40, payload=payload_for(compiled)))
    other = MaskRequest(key=1, budget=41, payload=payload_for(compiled))
    worker.add(1, other)
    worker.run()
    assert worker.requests[0].reason == "error"
    check(vocabulary, other, SCHEMAS["tuple"])


@pytest.mark.parametrize("phase", ["before", "after"])
def test_a_bug_in_a_step_fails_all_constrained_requests_and_no_others(
    compiler, monkeypatch, caplog, phase
):
    name = "_committed" if phase == "before" else "_correct"

    def broken(*_):
        raise RuntimeError("a bug")

    monkeypatch.setattr(MaskedSampler, name, broken)
    compiled = compiler.compile(JsonSchema(SCHEMAS["tuple"]))
    worker = worker_of(compiler, 2, steps=4)
    worker.add(0, MaskRequest(key=0, budget=40, payload=payload_for(compiled)))
    worker.add(1, MaskRequest(key=1, budget=8))
    monkeypatch.setattr(MaskedSampler, name, broken)
    worker.run()
    assert worker.requests[0].reason == "error"
    assert worker.requests[1].reason in ("length", "stop")
    assert "a bug" in caplog.text


def test_a_sampler_that_takes_other_tokens_without_end_ends_the_request(compiler):
    """The plugin does not trust that vLLM takes the likeliest token of a row."""
    compiled = compiler.compile(JsonSchema(SCHEMAS["tuple"]))
    worker = worker_of(compiler, 1, steps=4)
    inner = worker.sampler._inner
    worker.add(0, MaskRequest(key=0, budget=40, payload=payload_for(compiled)))
    worker.sampler._inner = lambda logits, batch: inner(torch.ones_like(logits).cumsum(-1), batch)
    while not worker.requests[0].reason:
        worker.step()
        has_masks = MASK in worker.states.canvas[0].tolist()
        assert not (has_masks and worker.states.is_encoder_phase[0])
        assert worker.passes < 200
    assert worker.requests[0].reason == "error"


def test_a_step_takes_few_copies_however_many_requests_there_are(compiler):
    compiled = compiler.compile(JsonSchema(SCHEMAS["tuple"]))
    most = []
    for count in (1, 4):
        worker = worker_of(compiler, count, steps=4)
        for slot in range(count):
            worker.add(slot, MaskRequest(key=slot, budget=40, payload=payload_for(compiled)))
        before, steps = worker.sampler.copies, []
        while not all(request.reason for request in worker.requests.values()):
            worker.step()
            steps.append(worker.sampler.copies - before)
            before = worker.sampler.copies
        most.append(max(steps))
    assert max(most) <= 5


def test_states_without_a_name_that_a_step_needs_are_refused(compiler):
    for name in ("canvas", "unmask_ranks", "mask_token_id", "max_denoising_steps"):
        states = MaskStates(1, 4, 4, MASK)
        sampler = MaskSampler(states)
        delattr(states, name)
        with pytest.raises(Exception, match=name):
            MaskedSampler(sampler, states, Slots(compiler, Policy()), LogitsGuide(V), "joint")


def test_the_double_unmasks_by_its_policies():
    """Rules that vLLM tests of its sampler."""
    logits = torch.zeros(4, 8)
    logits[0, 2] = 10.0
    counts = {}
    for policy in POLICIES:
        states = MaskStates(1, 4, 4, 7)
        sampler = MaskSampler(states, policy)
        sampler._denoise(0, logits, logits.argmax(-1))
        counts[policy] = states.canvas[0].tolist()
    assert counts == {policy: [2, 7, 7, 7] for policy in POLICIES}
    spiked = logits.clone()
    spiked[3, 5] = 50.0
    order = np.zeros(4)
    states = MaskStates(1, 4, 4, 7)
    sampler = MaskSampler(states, "leftmost")
    for step in range(1, 5):
        sampler._denoise(0, spiked, spiked.argmax(-1))
        order[(states.canvas[0] != 7).numpy() & (order == 0)] = step
    assert order.tolist() == [1, 2, 3, 4]
    assert states.is_encoder_phase[0]
