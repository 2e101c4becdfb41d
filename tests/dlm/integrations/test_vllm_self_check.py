"""The check of the plugin's sampler at a worker's start, around doubles of vLLM's."""

import pytest
import torch
from values import V
from vllm_double import Sampler, States, batch_of

from dlm.config import DecodeConfig
from dlm.errors import DlmError
from dlm.grammar import Compiler, Frontier, Vocabulary
from dlm.integrations.vllm.noise import NoiseSampler
from dlm.integrations.vllm.self_check import check_sampler
from dlm.integrations.vllm.slots import Slots
from dlm.logits.guided import LogitsGuide
from dlm.policy import Policy
from dlm.samplers import EntropyBound

L, STEPS = 16, 6


@pytest.fixture(scope="module")
def compiler(chat):
    return Compiler(Vocabulary.from_tokenizer(chat.tokenizer, V, (1, 106, 50), 0))


def checked(compiler, states, sampler=None, count=4):
    slots = Slots(compiler, Policy())
    config = DecodeConfig(sampler=EntropyBound(max_steps=STEPS))
    inner = sampler or Sampler(states)
    return check_sampler(
        lambda guide: NoiseSampler(inner, states, slots, guide, config),
        LogitsGuide(V),
        slots,
        compiler,
        lambda count, length: batch_of(dict.fromkeys(range(count), length)),
    ), slots


@pytest.mark.parametrize("count", [1, 2, 4])
def test_a_sampler_that_works_is_returned_and_all_state_is_as_before(compiler, count):
    states = States(count, L, STEPS)
    states.canvas += 7
    before = {name: place.clone() for name, place in vars(states).items()}
    numbers = torch.get_rng_state()
    sampler, slots = checked(compiler, states)
    assert {name: place.tolist() for name, place in vars(states).items()} == {
        name: place.tolist() for name, place in before.items()
    }
    assert torch.equal(torch.get_rng_state(), numbers)
    assert sampler.moved["draft_tokens"].sum() == 0
    assert len(slots) == 0


@pytest.mark.parametrize("name", ["canvas", "argmax_canvas", "confident", "max_steps"])
def test_states_without_a_tensor_that_a_step_moves_are_refused(compiler, name):
    states = States(4, L, STEPS)
    inner = Sampler(states)
    moved = vars(states).pop(name)
    states.renamed = moved
    with pytest.raises((DlmError, AttributeError), match=name):
        checked(compiler, states, inner)


def test_a_sampler_without_draft_tokens_is_refused(compiler):
    states = States(4, L, STEPS)
    inner = Sampler(states)
    inner.req_states.drafts = vars(inner.req_states).pop("draft_tokens")
    with pytest.raises(DlmError, match="draft_tokens"):
        checked(compiler, states, inner)


class Counting(Sampler):
    """A newer sampler, whose steps move one more state."""

    def __call__(self, logits, batch):
        self.states.count += 1
        return super().__call__(logits, batch)


def test_a_new_state_with_a_row_for_each_slot_is_put_back_too(compiler):
    states = States(4, L, STEPS)
    states.count = torch.zeros(4)
    sampler, _ = checked(compiler, states, Counting(states))
    assert "count" in sampler.moved
    assert states.count.sum() == 0


class Deaf(Sampler):
    """A sampler that does not read the logits that the plugin has written."""

    def __call__(self, logits, batch):
        return super().__call__(torch.ones_like(logits).cumsum(-1), batch)


class Renamed(Sampler):
    def __call__(self, logits, batch):
        output = super().__call__(logits, batch)
        output.sampled = vars(output).pop("sampled_token_ids")
        return output


class Endless(Sampler):
    def __call__(self, logits, batch):
        output = super().__call__(logits, batch)
        self.states.is_encoder_phase[:] = False
        return output


@pytest.mark.parametrize("made", [Deaf, Renamed, Endless])
def test_a_sampler_that_yields_no_valid_answer_is_refused(compiler, made):
    states = States(4, L, STEPS)
    before = states.canvas.clone()
    with pytest.raises((DlmError, AttributeError)):
        checked(compiler, states, made(states))
    assert torch.equal(states.canvas, before)


def test_a_bug_of_the_grammar_fails_the_check(compiler, monkeypatch):
    def broken(*_):
        raise RuntimeError("a bug")

    monkeypatch.setattr(Frontier, "guide", broken)
    states = States(4, L, STEPS)
    with pytest.raises(DlmError, match="a bug"):
        checked(compiler, states)
