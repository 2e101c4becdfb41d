"""Plans of passes: chunks of prompts, finished canvases, canvases as soon as they can be."""

from dataclasses import dataclass, field

import pytest
from doubles import Dreamer, Ledger
from hypothesis import given
from hypothesis import strategies as st
from values import V

from dlm import Choice, Policy, Request
from dlm.loop.canvas_grid import CanvasGrid
from dlm.loop.pass_plan import plan_pass
from dlm.models.pages import CHUNK

BUDGET = 2 * CHUNK
GRID = CanvasGrid(16)


@dataclass
class Running:
    """The part of a sequence that a plan reads."""

    prompt: list[int]
    tokens: list[int] = field(default_factory=list)
    checking: object = None

    @property
    def ready(self):
        return self.checking is None

    def unencoded(self, encoded):
        return (self.prompt + self.tokens)[encoded:]


def turns(running, cache, budget=BUDGET, grid=GRID):
    """The turns until nothing is left to encode; each is taken."""
    while True:
        turn = plan_pass(running, cache, budget, grid)
        yield turn
        for slot, tokens in turn.encode.items():
            cache.tokens[slot] += tokens
        if not turn.encode:
            return


def test_a_short_prompt_is_encoded_in_the_pass_that_denoises_its_canvas():
    running = {1: Running([5] * 9)}
    turn = plan_pass(running, Ledger(2), BUDGET, GRID)
    assert turn.encode == {1: [5] * 9}
    assert list(turn.canvases) == [1]


@pytest.mark.parametrize("length", [CHUNK, CHUNK + 1, 3 * CHUNK + 7])
def test_a_long_prompt_takes_passes_and_its_canvas_the_last_of_them(length):
    cache, prompt = Ledger(1), list(range(length))
    taken = list(turns({0: Running(prompt)}, cache))
    chunks = [turn.encode[0] for turn in taken[:-1]]
    assert [token for chunk in chunks for token in chunk] == prompt
    assert [len(chunk) for chunk in chunks[:-1]] == [CHUNK] * (len(chunks) - 1)
    assert [list(turn.canvases) for turn in taken[:-2]] == [[]] * (len(chunks) - 1)
    assert [list(turn.canvases) for turn in taken[-2:]] == [[0], [0]]


def test_a_long_prompt_holds_up_neither_canvases_nor_short_prompts():
    running = {0: Running([1] * 9 * CHUNK), 1: Running([2], [3] * 256), 2: Running([4] * 20)}
    cache = Ledger(3)
    cache.tokens[1] = [2]
    turn = plan_pass(running, cache, BUDGET, GRID)
    assert {slot: len(tokens) for slot, tokens in turn.encode.items()} == {0: CHUNK, 1: 256, 2: 20}
    assert set(turn.canvases) == {1, 2}


def test_a_budget_that_is_less_than_a_chunk_still_lets_prompts_go_on():
    running = {0: Running([1] * CHUNK), 1: Running([2] * CHUNK), 2: Running([3], [4])}
    first, second, *_ = turns(running, Ledger(3), budget=1)
    assert set(first.encode) == {0, 2}
    assert set(second.encode) == {1}


def test_an_answer_that_is_being_checked_takes_no_part():
    running = {0: Running([1] * 9, [2] * 7, checking=object()), 1: Running([3])}
    turn = plan_pass(running, Ledger(2), BUDGET, GRID)
    assert set(turn.encode) == set(turn.canvases) == {1}


@given(
    st.lists(st.tuples(st.integers(1, 5 * CHUNK), st.integers(0, 600)), min_size=1, max_size=6),
    st.integers(1, 3 * CHUNK),
)
def test_everything_is_encoded_once_in_order_and_cut_where_it_is_cut_alone(shapes, budget):
    running = {
        slot: Running(list(range(prompt)), list(range(10_000, 10_000 + tokens)))
        for slot, (prompt, tokens) in enumerate(shapes)
    }
    cache = Ledger(len(shapes))
    chunks = {slot: [] for slot in running}
    for turn in turns(running, cache, budget):
        assert turn
        new = [len(t) for slot, t in turn.encode.items() if not running[slot].tokens]
        assert sum(new) <= max(budget, CHUNK)
        for slot, tokens in turn.encode.items():
            chunks[slot].append(tokens)
    for slot, sequence in running.items():
        alone = [
            turn.encode[slot] for turn in turns({slot: sequence}, Ledger(slot + 1)) if turn.encode
        ]
        assert chunks[slot] == alone
        assert cache.tokens[slot] == sequence.prompt + sequence.tokens


def test_a_long_prompt_beside_others_gives_what_it_gives_alone(engine_of):
    """Through the engine: the answers, and how many passes it took to begin."""
    requests = [
        Request(
            token_ids=[2] + [20 + i % 50 for i in range(length)],
            constraint=spec,
            seed=length,
            max_tokens=24,
        )
        for length, spec in [(1300, Choice(["north", "south"])), (3, None), (700, None)]
    ]
    model, policy = Dreamer(V, 3, canvas_length=4), Policy(encode_tokens=CHUNK)
    together = engine_of(model, policy=policy, slots=3).generate(requests)
    for request, result in zip(requests, together, strict=True):
        alone = engine_of(model, policy=policy, slots=1).generate(request)
        assert alone.token_ids == result.token_ids
        assert alone.stats.denoiser_calls == result.stats.denoiser_calls


def test_a_new_request_with_a_long_prompt_lets_others_step(engine_of):
    engine = engine_of(Dreamer(V, 3, canvas_length=4), slots=2)
    quick = engine.add(Request(token_ids=[2], max_tokens=40))
    engine.step()
    engine.add(Request(token_ids=[2] * (4 * CHUNK), max_tokens=4))
    drafts = [{event.request for event in engine.step()} for _ in range(3)]
    assert all(quick in slots for slots in drafts)
