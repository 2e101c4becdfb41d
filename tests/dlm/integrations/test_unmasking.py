"""Corrections of what a sampler makes of a canvas of masks."""

import pytest

from dlm.errors import DlmError
from dlm.grammar import Guidance
from dlm.integrations.unmasking import Corrections, standing

M = 9  # the mask


def guidance(guess, read):
    return Guidance(
        guess=guess, bitmask=None, rows=[], suspect=read, repaired=True, stop=len(guess),
        scored=len(guess), read=read,
    )  # fmt: skip


def test_tokens_that_are_no_masks_stand():
    assert standing([M, 4, M, 5], M) == {1: 4, 3: 5}


@pytest.mark.parametrize(
    ("before", "after", "joint", "prefix"),
    [
        ([M, M, M, M], [1, M, 3, M], {}, {2: M}),  # one stands right of a mask
        ([M, M, M, M], [M, 2, M, M], {}, {0: 1, 1: M}),  # no token would be left
        ([M, M, M, M], [1, 7, M, M], {1: M}, {1: M}),  # another token than the guess
        ([1, M, M, M], [1, M, M, 4], {3: M}, {1: 2, 3: M}),  # one of a position that was not read
        ([1, 2, M, M], [1, 2, 3, M], {}, {}),
        ([1, M, M, M], [1, M, M, M], {}, {}),  # a pass that changes nothing
    ],
)
def test_changes_are_what_the_order_and_the_guess_ask_for(before, after, joint, prefix):
    read = guidance([1, 2, 3, 4], 3)
    assert Corrections().after(read, before, after, M, "joint") == joint
    assert Corrections().after(read, before, after, M, "prefix") == prefix


def test_a_sampler_that_goes_on_to_unmask_suspect_positions_is_refused():
    corrections, read = Corrections(), guidance([1, 2], 2)
    for _ in range(4):
        assert corrections.after(read, [M, M], [M, 7], M, "joint") == {1: M}
    with pytest.raises(DlmError, match="goes on to unmask positions that are suspect"):
        corrections.after(read, [M, M], [M, 7], M, "joint")


def test_a_pass_without_a_misplaced_token_is_a_new_beginning():
    corrections, read = Corrections(), guidance([1, 2], 2)
    for _ in range(20):
        corrections.after(read, [M, M], [M, 7], M, "joint")
        assert corrections.after(read, [M, M], [1, M], M, "joint") == {}
        assert corrections.passes == 0
