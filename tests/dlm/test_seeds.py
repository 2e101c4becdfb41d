"""Seeds: any integer; a refused draw never uses its random number twice."""

import numpy as np
import pytest
import torch
from doubles import Double, Dreamer
from values import PROMPT, V

from dlm import Autoregressive, Regex, Request, RequestError
from dlm.left_to_right_state import DrawNumbers
from dlm.logits.sampling import generator

CPU = torch.device("cpu")
SEEDS = [0, 1, -1, 2**32 - 1, 2**32, 2**63, -(2**63), 2**64 - 1, 2**64, 10**5000, -(10**5000)]


def drawn(seed: int, part: int = 0) -> list[float]:
    return torch.rand(4, generator=generator(seed, CPU, part)).tolist()


def test_different_seeds_draw_different_numbers():
    found = [drawn(seed) for seed in SEEDS]
    assert found == [drawn(seed) for seed in SEEDS]
    assert len({tuple(one) for one in found}) == len(SEEDS)
    assert len({tuple(drawn(seed, part)) for seed in SEEDS for part in range(3)}) == 3 * len(SEEDS)


def test_a_small_seed_draws_the_numbers_of_torch():
    assert drawn(7) == torch.rand(4, generator=torch.Generator().manual_seed(7)).tolist()


@pytest.mark.parametrize("seed", [-1, -(2**70), 2**63, 2**64 + 5, np.int64(-3), np.uint8(200)])
def test_an_answer_repeats_with_the_same_seed(seed, engine_of):
    def tokens(seed):
        request = Request(token_ids=PROMPT, max_tokens=12, seed=seed)
        return engine_of(Dreamer(V, 1, scale=1.0)).generate(request).token_ids

    assert tokens(seed) == tokens(int(seed))
    assert tokens(seed) != tokens(int(seed) + 1)


def test_without_a_seed_every_answer_is_new(engine_of):
    for more in ({}, {"decoding": Autoregressive(temperature=1.0)}):
        request = Request(token_ids=PROMPT, max_tokens=12, seed=None)
        engines = [engine_of(Dreamer(V, 1, scale=1.0), **more) for _ in range(3)]
        assert len({tuple(engine.generate(request).token_ids) for engine in engines}) == 3


@pytest.mark.parametrize("seed", [True, 0.5, 1.0, np.float64(1), "7", [1]])
def test_a_seed_that_is_no_integer_is_refused(seed):
    with pytest.raises(RequestError, match=r"seed must be an integer, or None, got .*"):
        Request(prompt="Hi.", seed=seed)


def test_a_refused_position_and_those_after_it_get_new_numbers():
    near, far = DrawNumbers(3, CPU), DrawNumbers(3, CPU)
    first = near.between(0, 5)
    assert far.between(0, 200)[:5] == first
    for numbers in (near, far):
        numbers.renew(70)  # one of them has drawn fewer numbers
    assert near.between(0, 300) == far.between(0, 300)
    before = near.between(0, 300)
    for numbers in (near, far):
        numbers.renew(2)
    assert near.between(0, 2) == first[:2]
    assert not set(near.between(2, 300)) & set(before)
    assert near.between(0, 300) == far.between(0, 300)


class Even(Double):
    """Model under which all tokens are equally likely."""

    def wish(self, committed, canvas, soft_embedding):
        return torch.zeros(self.canvas_length, self.vocab_size)


def test_a_refused_token_is_replaced_by_a_fair_draw_of_the_rest(engine_of):
    """A drawn `b` is refused, since its answer would exceed `max_tokens`. If the random number that
    drew it were used again, no `d` could follow: the number lies between those of `a` and `c`."""
    engine = engine_of(Even(V), decoding=Autoregressive(temperature=1.0), slots=8)
    spec = Regex("a|c|d|b{90}")
    n = 300
    requests = [
        Request(token_ids=PROMPT, constraint=spec, max_tokens=60, seed=seed) for seed in range(n)
    ]
    texts = [result.text for result in engine.generate(requests)]
    counts = [texts.count(letter) for letter in "acd"]
    assert sum(counts) == n
    assert sum((count - n / 3) ** 2 / (n / 3) for count in counts) < 6  # chi-square, p = .05


def test_refused_tokens_are_drawn_again_alike_with_and_without_drafts(engine_of):
    spec = Regex("((a|c)(a|c|d|b{90}))+")
    plain, drafted = (
        engine_of(Even(V), decoding=Autoregressive(temperature=1.0, drafts=drafts)).generate(
            [Request(token_ids=PROMPT, constraint=spec, max_tokens=50, seed=s) for s in range(12)]
        )
        for drafts in (False, True)
    )
    assert [one.token_ids for one in plain] == [one.token_ids for one in drafted]


@pytest.mark.parametrize("drafts", [False, True])
def test_a_request_s_temperature_takes_the_place_of_the_decoding_s(engine_of, drafts):
    texts = {}
    for of_decoding, of_request in [(0.0, None), (1.0, 0), (1.0, None), (0.0, 1)]:
        decoding = Autoregressive(temperature=of_decoding, drafts=drafts)
        engine = engine_of(Even(V), decoding=decoding)
        request = Request(token_ids=PROMPT, seed=1, max_tokens=24, temperature=of_request)
        texts[of_decoding, of_request] = engine.generate([request])[0].token_ids
    assert texts[0.0, None] == texts[1.0, 0] != texts[1.0, None] == texts[0.0, 1]


@pytest.mark.parametrize("drafts", [False, True])
@pytest.mark.parametrize("cut", [{"top_k": 4}, {"top_p": 0.9}, {"min_p": 0.1}])
def test_a_cut_without_a_temperature_draws_at_1(engine_of, drafts, cut):
    engine = engine_of(Even(V), decoding=Autoregressive(drafts=drafts))
    base = {"token_ids": PROMPT, "seed": 1, "max_tokens": 24}

    def written(**more):
        return engine.generate([Request(**base, **more)])[0].token_ids

    assert written(**cut) == written(**cut, temperature=1) != written()
    assert written(**cut, temperature=0) == written()
    assert written(top_k=-1, top_p=1, min_p=0) == written(), "that cuts nothing"
