"""Check of the plugin's sampler when a worker starts: one small constraint, on made-up logits.

vLLM's sampler is driven as the model runner drives it, for two slots that have no request yet: a
step that is held, the last step of a canvas, and its commit. Afterwards all state is as before.
Knows no class of vLLM's.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from dlm.errors import DlmError
from dlm.grammar import Choice, Compiler, Unfinished
from dlm.integrations.vllm.payload import Payload
from dlm.integrations.vllm.sampler import ConstrainedSampler
from dlm.integrations.vllm.slots import Slots
from dlm.logits.guided import LogitsGuide

_WORDS = ["yes", "no"]


class _NeverFinished:
    """Guide whose grammars all need another step."""

    def guide_(self, logits: Tensor, canvases: list[Any]) -> list[Exception]:
        return [Unfinished("a check") for _ in canvases]


def check_sampler(
    made: Callable[[Any], ConstrainedSampler],
    guide: LogitsGuide,
    slots: Slots,
    compiler: Compiler,
    batch_of: Callable[[int, int], Any],
) -> ConstrainedSampler:
    """Return the sampler around vLLM's own, after a check. Raises any error of it, and `DlmError`
    if its answer is wrong.

    `made` returns a sampler with a guide. `batch_of` returns a batch of vLLM's, of some first slots
    with a number of logits each.
    """
    sampler, holding = made(guide), made(_NeverFinished())
    states = sampler.states
    length, vocabulary = states.canvas.shape[1], compiler.vocabulary
    count = min(2, states.canvas.shape[0])  # the second text is free
    batch = batch_of(count, length)
    payload = Payload(
        rules=compiler.compile(Choice(_WORDS)).packed,
        thinking=False,
        thinking_budget=None,
        opened=False,
        top_k=0,
        top_p=1.0,
        failed=vocabulary.pad,
        stops=list(vocabulary.stops),
        squeezed=list(vocabulary.stops),
    )

    def step(by: ConstrainedSampler) -> Any:
        logits = torch.zeros(count * length, len(vocabulary.pieces), device=states.canvas.device)
        return by(logits, batch)

    with _restored(sampler.moved):
        try:
            slots.add(0, payload, length, ())
            slot = slots.get(0)
            if slot is None:
                raise DlmError("a constraint is lost")
            for number in range(count):
                states.add_request(number)
                states.is_encoder_phase[number] = False
            before = {name: place[0].clone() for name, place in sampler.moved.items()}
            step(holding)
            if moved := [n for n, place in sampler.moved.items() if not place[0].equal(before[n])]:
                raise DlmError(f"a held canvas changes {', '.join(moved)}")
            with sampler.ending(count):
                step(sampler)
            if slot.error is None and not states.is_encoder_phase[0]:
                raise DlmError("a canvas does not converge at its last step")
            output = step(sampler)
            if slot.error is not None:
                raise slot.error
            tokens = output.sampled_token_ids[0, : int(output.num_sampled[0])].tolist()
        finally:
            slots.remove(0)
            for number in range(count):
                states.remove_request(number)
    end = next((i for i, token in enumerate(tokens) if token in vocabulary.stops), None)
    if end is None or vocabulary.text(tokens[:end]) not in _WORDS:
        raise DlmError(f"tokens {tokens[:8]} are none of {', '.join(_WORDS)}")
    return sampler


@contextmanager
def _restored(places: dict[str, Tensor]) -> Iterator[None]:
    """Put the values of all `places`, and the random numbers, back at the end."""
    before = [place.clone() for place in places.values()]
    devices = {place.device for place in places.values() if place.device.type != "cpu"}
    kind = next(iter(devices)).type if devices else "cuda"
    with torch.random.fork_rng(devices=[d.index or 0 for d in devices], device_type=kind):
        try:
            yield
        finally:
            for place, values in zip(places.values(), before, strict=True):
                place.copy_(values)
