"""The plugin's sampler around a double of vLLM's: answers are valid and errors are contained."""

import re

import pytest
import torch
from native_calls import answer_tokens
from values import V
from vllm_double import Sampler, States, batch_of
from vllm_params import payload_of

from dlm import JsonSchema, Regex
from dlm.config import DecodeConfig
from dlm.grammar import Compiler, Frontier, ToolCall, Tools, Unfinished, Vocabulary
from dlm.integrations.vllm.noise import NoiseSampler
from dlm.integrations.vllm.slots import Slots
from dlm.logits.canvas_logits import most_copies
from dlm.logits.guided import LogitsGuide
from dlm.policy import Policy
from dlm.samplers import EntropyBound

L, STEPS, STOPS, PAD, MARKS = 16, 6, (1, 106, 50), 0, (2, 3, 4)
PAIRS = JsonSchema(
    {
        "type": "array",
        "items": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
        "minItems": 2,
    }
)


@pytest.fixture(scope="module")
def vocabulary(chat):
    return Vocabulary.from_tokenizer(chat.tokenizer, V, STOPS, PAD)


@pytest.fixture(scope="module")
def compiler(vocabulary):
    return Compiler(vocabulary)


class Worker:
    """Slots, a sampler, and a model whose logits are random."""

    def __init__(self, compiler, seed=0, work=10**6, slots=4, **limits):
        self.talkative = False  # the model never wants to end
        self.size = len(compiler.vocabulary.pieces)
        self.compiler, self.rng = compiler, torch.Generator().manual_seed(seed)
        policy = Policy(max_unfinished_steps=50, **limits)
        self.slots = Slots(Compiler(compiler.vocabulary), policy)
        self.states = States(slots, L, STEPS)
        self.inner = Sampler(self.states)
        self.sampler = self.made(LogitsGuide(self.size, work))

    def made(self, guide):
        config = DecodeConfig(sampler=EntropyBound(max_steps=STEPS))
        return NoiseSampler(self.inner, self.states, self.slots, guide, config)

    def payload(self, spec, **more):
        compiled = self.compiler.compile(spec)
        return payload_of(compiled, PAD, STOPS, **{"squeezed": [*MARKS]} | more)

    def add(self, slot, spec, budget=60, written=(), **more):
        self.slots.add(slot, self.payload(spec, **more), budget, written)

    def step(self, lengths):
        rows = sum(lengths.values())
        logits = 20 * torch.randn(rows, self.size, generator=self.rng)
        if self.talkative:
            logits[:, [*STOPS]] -= 1000
        self.sampler(logits, batch_of(lengths))
        return logits

    def run(self, lengths, passes=200):
        """Step until every constrained answer has ended."""
        for _ in range(passes):
            self.step(lengths)
            if all(self.ended(slot) or self.slots.get(slot) is None for slot in lengths):
                return
        raise AssertionError("an answer does not end")

    def ended(self, slot):
        emitted = self.inner.emitted.get(slot, [])
        return bool({*STOPS, *MARKS, PAD} & {*emitted})

    def answer(self, slot):
        """Return the tokens up to the stop token, as a scheduler does."""
        emitted = self.inner.emitted[slot]
        ends = {*STOPS, *MARKS}
        return emitted[: next(i for i, token in enumerate(emitted) if token in ends) + 1]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("cuts", [{}, {"top_k": 1}, {"top_p": 0.4}])
def test_answers_of_a_random_model_are_valid(compiler, vocabulary, seed, cuts):
    worker = Worker(compiler, seed)
    specs = {0: PAIRS, 2: Regex("[a-f]{3,40}")}
    for slot, spec in specs.items():
        worker.add(slot, spec, **cuts)
    worker.run({0: L, 1: L, 2: L})
    for slot, spec in specs.items():
        tokens = worker.answer(slot)
        assert len(tokens) <= 60
        spec.value(vocabulary.text(tokens))


def test_steps_without_constraints_leave_the_logits_unchanged(compiler):
    worker = Worker(compiler)
    logits = worker.step({1: L, 3: L})
    assert worker.inner.seen[-1] is logits
    worker.add(0, Regex("a"))
    before = worker.rng.get_state()
    logits = worker.step({0: 0, 1: L})
    worker.rng.set_state(before)
    assert torch.equal(logits, 20 * torch.randn(L, V, generator=worker.rng))


def test_a_preempted_request_continues_after_its_tokens(compiler, vocabulary):
    worker = Worker(compiler)
    written = vocabulary.encode('[{"a":')
    worker.add(0, PAIRS, written=written)
    worker.run({0: L})
    PAIRS.value(vocabulary.text([*written, *worker.answer(0)]))


def test_a_canvas_whose_guidance_is_not_finished_is_restored(compiler, vocabulary):
    worker = Worker(compiler, work=20)
    worker.add(0, PAIRS)
    held, before = 0, worker.states.canvas.clone()
    while worker.states.step[0] == 0:
        worker.step({0: L, 1: L})
        held += 1
        assert held < 200
        if worker.states.step[0] == 0:
            assert torch.equal(worker.states.canvas[0], before[0])
            assert worker.inner.req_states.draft_tokens[0].sum() == 0
    assert held > 1
    assert worker.states.step[1] != 0


def test_a_request_whose_guidance_never_finishes_fails_alone(compiler, vocabulary, monkeypatch):
    worker = Worker(compiler, request_work=10**9)
    worker.add(0, PAIRS)
    worker.add(1, Regex("[a-f]{3,40}"), budget=50)
    guide = Frontier.guide

    def never(self, scores, fixed):
        if self._budget == 60:
            raise Unfinished("more time")
        return guide(self, scores, fixed)

    monkeypatch.setattr(Frontier, "guide", never)
    slot = worker.slots.get(0)
    worker.run({0: L, 1: L})
    assert worker.inner.emitted[0][:1] == [PAD]
    assert "over 100000 units of work" in str(slot.error)
    Regex("[a-f]{3,40}").value(vocabulary.text(worker.answer(1)))


def test_a_request_whose_looks_take_too_much_work_in_all_fails_alone(compiler, vocabulary):
    """Each look is within its limit, and together they are not."""
    worker = Worker(compiler, request_work=20, token_work=1)
    worker.talkative = True
    worker.add(0, Regex("([a-z]{3,9} )+"), budget=40)
    slot = worker.slots.get(0)
    worker.run({0: L, 1: L})
    assert worker.inner.emitted[0][-1] == PAD
    assert re.search(
        r"over 60 units of work for one answer.*for each of 40 tokens", str(slot.error)
    )
    easy = Worker(compiler)
    easy.add(0, Regex("([a-z]{3,9} )+"), budget=40)
    slot = easy.slots.get(0)
    easy.run({0: L})
    assert slot.error is None
    assert slot.total > 60


def test_work_before_a_preemption_counts(compiler):
    worker = Worker(compiler)
    payload = worker.payload(Regex("[a-f]{3,200}"))
    worker.slots.add(0, payload, 60, (), "one")
    worker.step({0: L})
    total = worker.slots.get(0).total
    assert total > 0
    worker.slots.remove(0)
    for slot, name, before in ((1, "two", 0), (2, "one", total)):
        worker.slots.add(slot, payload, 60, (), name)
        assert worker.slots.get(slot).total == before


def test_rules_that_cannot_be_read_fail_their_request_alone(compiler, vocabulary, caplog):
    worker = Worker(compiler)
    worker.add(0, PAIRS, rules=b"no pickle")
    worker.add(1, Regex("[a-f]{3,40}"))
    worker.run({0: L, 1: L})
    assert set(worker.inner.emitted[0][:L]) == {PAD}
    assert "failed by a bug" in caplog.text
    Regex("[a-f]{3,40}").value(vocabulary.text(worker.answer(1)))


def test_a_budget_that_is_too_small_in_the_worker_fails_the_request(compiler):
    worker = Worker(compiler)
    worker.add(0, Regex("[a-f]{9}"), budget=2)
    worker.run({0: L})
    assert worker.inner.emitted[0][0] == PAD


def test_a_commit_that_the_constraint_refuses_is_not_emitted(compiler):
    worker = Worker(compiler)
    worker.add(0, Regex("[a-f]{3,40}"))
    while not worker.states.is_encoder_phase[0]:
        worker.step({0: L})
    worker.states.argmax_canvas[0, 0] = 700
    worker.step({0: L})
    assert set(worker.inner.emitted[0]) == {PAD}


def test_a_bug_in_a_step_fails_all_constrained_requests_and_no_others(compiler, caplog):
    worker = Worker(compiler)
    worker.add(0, PAIRS)

    class Broken:
        def guide_(self, *_):
            raise RuntimeError("a bug")

    worker.sampler = worker.made(Broken())
    worker.run({0: L, 1: L})
    assert set(worker.inner.emitted[0]) == {PAD}
    assert "a bug" in caplog.text
    assert worker.states.step[1] != 0


def test_slots_are_empty_again_once_requests_are_gone(compiler):
    worker = Worker(compiler)
    for slot in range(3):
        worker.add(slot, Regex("a"))
    for slot in (0, 1, 2, 3, 0):
        worker.slots.remove(slot)
    assert len(worker.slots) == 0
    assert worker.slots.get(0) is None


def test_a_step_takes_at_most_ten_copies_however_many_requests_there_are(compiler):
    """Three of the sampler, one of them for held canvases, four of the guide, and three of it for
    refused rows; and those of the queries that no list answers, whose number a canvas bounds."""
    for slots in (1, 4):
        worker = Worker(compiler, work=40)
        for slot in range(slots):
            worker.add(slot, PAIRS)
        lengths, before, guide = dict.fromkeys(range(slots), L), 0, worker.sampler._guide
        for _ in range(30):
            worker.step(lengths)
            copies = worker.sampler.copies + guide.copies
            assert copies - before <= 10 + slots * most_copies(L)
            assert worker.sampler.copies > 0
            before = copies


def test_held_canvases_take_one_copy_more(compiler, monkeypatch):
    def copies_of(worker):
        worker.step({0: L, 1: L})
        return worker.sampler.copies

    worker = Worker(compiler, work=1000)
    worker.add(0, PAIRS)
    worker.add(1, PAIRS)
    assert copies_of(worker) == 2

    def never(self, scores, fixed):
        raise Unfinished

    monkeypatch.setattr(Frontier, "guide", never)
    assert copies_of(worker) == 2 + 3


def test_an_answer_that_its_budget_cuts_short_says_so_in_place_of_its_stop(compiler, vocabulary):
    texts = Regex("[a-f]{3,200}")
    for budget in (8, L, 2 * L - 1, 2 * L):
        worker = Worker(compiler, seed=budget)
        worker.talkative = True
        worker.add(0, texts, budget=budget)
        worker.run({0: L})
        tokens = worker.inner.emitted[0]
        end = next(i for i, token in enumerate(tokens) if token in MARKS)
        assert end < budget
        texts.value(vocabulary.text(tokens[:end]))
        assert not {*STOPS} & {*tokens[:end]}


def test_an_answer_with_room_to_end_is_not_marked(compiler):
    for seed in range(4):
        worker = Worker(compiler, seed=seed)
        worker.add(0, Regex("[a-f]{3,9}"), budget=60)
        worker.run({0: L})
        assert not {*MARKS} & {*worker.inner.emitted[0]}


def test_what_a_budget_took_is_remembered_over_a_preemption(compiler, vocabulary):
    worker = Worker(compiler)
    payload = worker.payload(Regex("[a-f]{3,200}"))
    for name, squeezed in (("one", True), ("two", False)):
        worker.slots.add(0, payload, 60, (), name)
        slot = worker.slots.get(0)
        slot.squeezed = squeezed
        worker.slots.remove(0)
    for name, squeezed in (("two", False), ("one", True), ("one", True)):
        worker.slots.add(1, payload, 60, vocabulary.encode("ab"), name)
        assert worker.slots.get(1).squeezed == squeezed
        worker.slots.remove(1)


@pytest.mark.exhaustive
def test_a_vocabulary_of_262144_tokens_is_served(chat):
    few = Vocabulary.from_tokenizer(chat.tokenizer, len(chat.tokenizer), STOPS, PAD)
    others = [f"{number:x}".encode() for number in range(1 << 20, (1 << 20) + 262_144 - len(few))]
    vocabulary = Vocabulary(
        [*few.pieces, *others],
        control=few.control,
        stops=STOPS,
        pad=PAD,
        thought=None,
        encode=few.encode,
    )
    worker = Worker(Compiler(vocabulary), seed=1)
    assert worker.size == 262_144
    worker.add(0, PAIRS)
    worker.add(1, Regex("[a-f]{3,40}"), top_k=3)
    worker.run({0: L, 1: L, 2: L})
    for slot, spec in ((0, PAIRS), (1, Regex("[a-f]{3,40}"))):
        spec.value(vocabulary.text(worker.answer(slot)))


def written_by_wishes(compiler, spec, budget, wished):
    """Return a slot's answer of a model that wishes the same in every pass, its stop as it was, and
    whether it is marked as squeezed."""
    worker = Worker(compiler)
    size = len(compiler.vocabulary.pieces)
    worker.add(0, spec, budget=budget)
    for _ in range(200):
        begin = len(worker.inner.emitted.get(0, []))
        row = torch.tensor([*wished[begin:], *[STOPS[1]] * L][:L])
        logits = 20.0 * torch.nn.functional.one_hot(row, size).float()
        worker.sampler(logits, batch_of({0: L}))
        if worker.ended(0):
            break
    tokens = worker.answer(0)
    assert tokens[-1] != PAD
    return tokens[:-1], tokens[-1] in MARKS


@pytest.mark.parametrize("kind", ["call", "list", "text and call"])
def test_an_answer_is_marked_exactly_if_a_larger_budget_changes_it(compiler, vocabulary, kind):
    text = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
    tool = {"type": "function", "function": {"name": "note", "parameters": text}}
    call = ToolCall("note", {"text": "A long one, about the rain and the sea"})
    spec, wished = {
        "call": (Tools([tool]), answer_tokens(vocabulary, call)),
        "text and call": (Tools([tool]), answer_tokens(vocabulary, "Well. ", call)),
        "list": (JsonSchema({"type": "array"}), vocabulary.encode('["pears", ["plums", "and"]]')),
    }[kind]
    free, marked = written_by_wishes(compiler, spec, 1 << 16, wished)
    assert free == wished
    assert not marked
    marks = 0
    for budget in range(4, len(wished) + 4):
        tokens, marked = written_by_wishes(compiler, spec, budget, wished)
        assert len(tokens) < budget
        assert marked == (vocabulary.text(tokens) != vocabulary.text(wished)), budget
        marks += marked
    assert 0 < marks < len(wished)
