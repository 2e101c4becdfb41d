"""The whole loop against the same loop, written for one request in one go."""

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from doubles import Dreamer, Random
from exhaustive import by_default
from full_rows import FullRows
from specs import checked
from values import PROMPT, V

from dlm import DecodeConfig, Draft, Finished, Grammar, JsonSchema, Policy, Regex, Request
from dlm.grammar import Fixed, Free, Frontier, InvalidValueError
from dlm.grammar.masks import unpacked
from dlm.replacement import alike_in, is_blank, outside_strings, token_to_replace, untried
from dlm.samplers import EntropyBound
from dlm.samplers.entropy_bound import surest

UNHURRIED = Policy(step_work=1 << 40)  # no pass is made again since a grammar took too long
SAMPLER = EntropyBound(max_steps=7, confidence=0.5, entropy_bound=2.0)
CONFIG = DecodeConfig(sampler=SAMPLER, patience=2, lost=0.2)
PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 9}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
TWICE = {"type": "array", "items": {"enum": [1, 2]}, "minItems": 2, "uniqueItems": True}
SPECS = {
    "free": None,
    "object": JsonSchema(PERSON, max_whitespace=1),
    "regex": Regex("[a-f]{3,40}-[0-9]{1,9}"),
    "grammar": Grammar('root ::= "(" root ")" | [a-z]+'),
    "array": JsonSchema({"type": "array", "items": {"type": "boolean"}, "maxItems": 40}),
}


@dataclass
class Decoded:
    """The events of a request, and its result."""

    drafts: list[tuple[Any, ...]] = field(default_factory=list)  # of drafts, all but the entropy
    tokens: list[int] = field(default_factory=list)
    calls: int = 0
    canvases: int = 0
    repairs: int = 0
    pins: int = 0
    rollbacks: int = 0
    reason: str = ""
    squeezed: bool = False


@torch.inference_mode()
def decoded(model, constraint, request, config, check=lambda tokens: None) -> Decoded:
    """The loop of docs/design.md for one request. `check` raises for an answer that is wrong."""
    sampler = config.sampler
    L, N, out = model.canvas_length, sampler.max_steps, Decoded()
    rng, cache = torch.Generator().manual_seed(request.seed), model.new_cache(1)
    constraint.work = 1 << 40
    model.encode([list(request.token_ids)], cache, [0])
    pinned, barred, refused, turned, refusals = [], {}, {}, None, 0
    while True:
        out.canvases += 1
        canvas = torch.randint(V, (L,), generator=rng)
        soft_embedding = model.no_soft_embedding()
        step, guess, banned, farthest, waited, retries, settled = 0, None, {}, -1, 0, 0, False
        while not settled:
            last = step + 1 >= N
            heat = sampler.t_min + (sampler.t_max - sampler.t_min) * max(1, N - step) / N
            logits = model.denoise(canvas[None], soft_embedding[None], cache, [0])[0]
            logits = logits / torch.tensor(heat)
            bans = barred if last else banned | barred
            read = constraint.guide(FullRows(logits), Fixed(pinned=pinned, banned=bans, last=last))
            for position, row in enumerate(read.rows):
                allowed = torch.zeros(V, dtype=torch.bool)
                if row >= 0:
                    words = read.bitmask[row].numpy().view(np.uint32)
                    allowed |= torch.tensor(unpacked(words)[:V]).bool()
                else:
                    allowed[~row] = True
                logits[position, ~allowed] = -torch.inf
            p = logits.softmax(-1)
            entropies = torch.special.entr(p).sum(-1)
            accepted = surest(entropies, sampler.entropy_bound)
            accepted[read.suspect :] = False
            uniform = torch.rand(L, generator=rng)
            canvas = torch.randint(V, (L,), generator=rng)
            mass = p.cumsum(-1)
            drawn = torch.searchsorted(mass, uniform[:, None] * mass[:, -1:], right=True)[:, 0]
            canvas[accepted] = drawn[accepted]
            soft_embedding = p @ model.table
            step, out.calls, out.repairs = step + 1, out.calls + 1, out.repairs + read.repaired
            stable, guess, late = read.guess == guess, read.guess, step - N
            sure = entropies[: read.scored].mean().item() < sampler.confidence
            if read.suspect >= read.scored:
                settled = late >= 0 or (stable and sure)
            else:
                waited = 0 if read.suspect > farthest else waited + 1
                farthest = max(farthest, read.suspect)
                hopeless = read.mass < config.lost and read.choice >= 0
                if late >= 0:
                    pinned = guess[: max(read.suspect, len(pinned) + 2**late)]
                    banned, waited, out.pins = {}, 0, out.pins + 1
                    settled = len(pinned) >= read.scored
                elif waited >= config.patience and hopeless and retries < config.retries:
                    banned = {at: some for at, some in banned.items() if at <= read.choice}
                    banned.setdefault(read.choice, set()).add(guess[read.choice])
                    farthest, waited, retries = read.choice, 0, retries + 1
                    out.rollbacks += 1
                elif waited >= config.patience and banned:
                    banned, waited = {}, 0
                elif waited >= config.patience:
                    pinned, banned, waited = guess[: read.suspect], {}, 0
                    out.pins += 1
            seen = read.suspect, out.calls, out.repairs
            out.drafts.append((step, guess, accepted.tolist(), len(pinned), *seen))
        room = request.max_tokens - len(out.tokens)
        tokens = guess[: read.stop + 1][:room]
        constraint.commit(tokens)
        out.tokens += tokens
        pinned, barred = [], {}
        if read.stop < len(tokens):
            try:
                check(out.tokens[:-1])
            except InvalidValueError as error:
                if refusals == config.refusals:
                    out.reason = "refused"
                    return out
                pieces = [model.pieces[token] for token in out.tokens[:-1]]
                turned = token_to_replace(pieces, error.path, turned)
                outside = outside_strings(pieces)
                idle = [i for i, piece in enumerate(pieces) if outside[i] and is_blank(piece)]
                turned = untried(out.tokens, turned, 0, refused, idle)
                led, begin = tuple(out.tokens[:turned]), turned // L * L
                wrong = model.pieces[out.tokens[turned]]
                if wrong:
                    alike = alike_in(model.pieces, wrong, outside[turned])
                    refused.setdefault(led, set()).update(alike)
                refused.setdefault(led, set()).add(out.tokens[turned])
                constraint.rollback(len(out.tokens) - begin)
                cache.rewind(0, len(request.token_ids) + begin)
                out.tokens = out.tokens[:begin]
                pinned, barred = list(led[begin:]), {turned - begin: refused[led]}
                refusals, out.rollbacks = refusals + 1, out.rollbacks + 1
                continue
            out.reason, out.squeezed = "stop", constraint.squeezed
            return out
        if len(tokens) == room:
            out.reason = "length"
            return out
        model.encode([tokens], cache, [0])


def by_engine(engine, requests) -> list[Decoded]:
    numbers = [engine.add(request) for request in requests]
    found = {number: Decoded() for number in numbers}
    while engine.busy:
        for event in engine.step():
            out = found[event.request]
            if isinstance(event, Draft):
                seen = event.suspect, event.passes, event.repairs
                drawn = event.step, event.tokens, event.accepted, event.pinned
                out.drafts.append((*drawn, *seen))
            elif isinstance(event, Finished):
                stats = asdict(event.result.stats)
                out.calls, out.canvases = stats["denoiser_calls"], stats["canvases"]
                out.repairs, out.pins = stats["repairs"], stats["pins"]
                out.rollbacks, out.squeezed = stats["rollbacks"], event.result.squeezed
                out.reason = "stop" if event.result.complete else "length"
                out.tokens = event.result.token_ids
    return [found[number] for number in numbers]


def constraint_of(engine, spec, max_tokens):
    if spec is None:
        return Free(engine.config.stops)
    return Frontier(engine._compiler.compile(spec), max_tokens)


@pytest.mark.parametrize("kind", SPECS)
@pytest.mark.parametrize("slots", by_default([3, 1, 4]))
def test_the_engine_does_what_the_loop_does_whatever_runs_beside_it(engine_of, kind, slots):
    spec = SPECS[kind]
    requests = [
        Request(
            token_ids=[*PROMPT, *PROMPT[:1] * seed], constraint=spec, seed=seed, max_tokens=room
        )
        for seed, room in enumerate([40, 70, 23, 33])
    ]
    for dream in range(2):
        model = Dreamer(V, dream, scale=12.0 + 30 * dream)
        engine = engine_of(model, CONFIG, slots=slots, policy=UNHURRIED)
        found = by_engine(engine, requests)
        for request, ours in zip(requests, found, strict=True):
            constraint = constraint_of(engine, spec, request.max_tokens)
            expected = decoded(model, constraint, request, CONFIG)
            if expected.reason == "stop":
                expected.tokens.pop()
            assert ours == expected


def test_it_takes_back_what_the_loop_takes_back(engine_of):
    spec = checked(TWICE)
    for dream in range(3):
        model = Dreamer(V, dream, canvas_length=4)
        engine = engine_of(model, CONFIG, slots=1, policy=UNHURRIED)
        model.pieces = engine.vocabulary.pieces
        request = Request(token_ids=PROMPT, constraint=spec, seed=dream, max_tokens=24)

        def check(tokens):
            spec.value(engine.vocabulary.text(tokens))  # noqa: B023

        constraint = constraint_of(engine, spec, request.max_tokens)
        expected = decoded(model, constraint, request, CONFIG, check)
        (ours,) = by_engine(engine, [request])
        if expected.reason == "refused":
            assert ours.drafts == expected.drafts
            assert ours.reason == ""
        else:
            expected.tokens.pop()
            assert ours == expected


def test_the_loop_is_put_to_the_test(engine_of):
    """Every branch of it is taken somewhere above: repairs, pins, rollbacks, several canvases."""
    total = Decoded()
    for spec in SPECS.values():
        model = Dreamer(V, 1, scale=42.0)
        request = Request(token_ids=PROMPT, constraint=spec, seed=1, max_tokens=70)
        constraint = constraint_of(engine_of(model, CONFIG), spec, 70)
        found = decoded(model, constraint, request, CONFIG)
        for name in ("repairs", "pins", "rollbacks", "canvases"):
            setattr(total, name, getattr(total, name) + getattr(found, name))
    assert min(total.repairs, total.pins, total.rollbacks) > 0
    assert total.canvases > len(SPECS)


@pytest.mark.parametrize("wrong", ["lost", "stale"])
def test_a_soft_embedding_that_is_lost_or_stale_would_show(engine_of, wrong):
    model = Dreamer(V, 0)
    request = Request(token_ids=PROMPT, seed=0, max_tokens=40)
    right = decoded(model, Free(CONFIG.stops), request, CONFIG)
    original, kept = model.denoise, [model.no_soft_embedding()[None]]

    def denoise(canvas, soft_embedding, cache, slots):
        kept.append(soft_embedding)
        shown = torch.zeros_like(soft_embedding) if wrong == "lost" else kept[-2]
        return original(canvas, shown, cache, slots)

    model.denoise = denoise
    assert decoded(model, Free(CONFIG.stops), request, CONFIG) != right


def test_a_model_without_a_pattern_decides_the_same_with_the_same_random_numbers(engine_of):
    for seed in range(3):
        request = Request(token_ids=PROMPT, constraint=SPECS["object"], seed=seed, max_tokens=50)
        engine = engine_of(Random(V, seed), CONFIG, slots=1)
        (ours,) = by_engine(engine, [request])
        constraint = constraint_of(engine, SPECS["object"], 50)
        expected = decoded(Random(V, seed), constraint, request, CONFIG)
        expected.tokens.pop()
        assert ours == expected
