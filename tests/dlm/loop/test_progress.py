"""Progress of one canvas: when its guess is ready to be committed."""

from dlm import DecodeConfig
from dlm.canvas import Progress
from dlm.grammar import Guidance
from dlm.request import Stats
from dlm.samplers import Reveal

L = 8


def guided(*, read: int = L, suspect: int = L) -> Guidance:
    return Guidance(
        guess=[*range(L)],
        bitmask=None,
        rows=[],
        suspect=suspect,
        repaired=suspect < L,
        stop=L,
        scored=L,
        read=read,
    )


def settled(progress: Progress, guidance: Guidance, entropy: float = 0.0) -> bool:
    return progress.settle(guidance, entropy, DecodeConfig())


def test_a_confident_guess_is_ready_when_a_second_pass_has_it_too():
    progress = Progress(stats=Stats())
    assert [settled(progress, guided()) for _ in range(2)] == [False, True]


def test_a_guess_that_is_not_confident_is_not_ready():
    progress = Progress(stats=Stats())
    assert [settled(progress, guided(), entropy=1.0) for _ in range(3)] == [False] * 3


def test_a_guess_that_was_read_in_part_counts_for_no_pass():
    """Its rest was the model's own, which the grammar may refuse."""
    progress = Progress(stats=Stats())
    assert not settled(progress, guided(read=3, suspect=2))
    assert [settled(progress, guided()) for _ in range(2)] == [False, True]


def test_a_masked_canvas_is_ready_when_all_its_tokens_stand_with_suspect_ones_among_them():
    """Another pass could not change them."""
    config = DecodeConfig(sampler=Reveal(mask=4))
    progress = Progress(stats=Stats())
    for standing, ready in ([True] * (L - 1) + [False], False), ([True] * L, True):
        guidance = guided(suspect=2)
        progress.keep(standing, guidance, edits=False)
        assert progress.settle(guidance, 0.0, config) == ready
