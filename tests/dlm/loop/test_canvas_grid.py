"""Beginnings of canvases, counted from the end of the prompt or from position 0."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlm import DlmError
from dlm.loop.canvas_grid import CanvasGrid
from dlm.models.pages import CHUNK

NUMBERS = st.integers(1, 40), st.integers(0, 90), st.integers(0, 90)


@given(*NUMBERS)
def test_blocks_that_are_cached_whole_count_from_position_0(length, prompt, at):
    grid = CanvasGrid(length, "whole")
    blocks = [*range(0, prompt + at + length + 1, length)]
    assert grid.encodable(prompt) == max(b for b in blocks if b <= prompt)
    assert grid.begin(prompt, at) == max(b for b in blocks if b <= prompt + at)
    assert grid.first_room(prompt) == min(b for b in blocks if b > prompt) - prompt


@given(*NUMBERS)
def test_canvases_that_are_cached_causally_count_from_the_end_of_the_prompt(length, prompt, at):
    grid = CanvasGrid(length)
    assert grid.encodable(prompt) == prompt
    assert grid.begin(prompt, at) == prompt + at - at % length
    assert grid.first_room(prompt) == length


@pytest.mark.parametrize("caches", ["causally", "whole"])
@given(*NUMBERS)
def test_an_answer_of_full_capacity_ends_within_the_model_s_positions(caches, length, prompt, more):
    grid, most = CanvasGrid(length, caches), prompt + more
    capacity = grid.capacity(more, most)
    begin = grid.begin(prompt, 0)
    ends = range(begin, most + 1, length)  # of canvases
    assert capacity == max(0, max(ends) - prompt)


@pytest.mark.parametrize("length", [4, 24, 32])
def test_a_pass_encodes_whole_blocks(length):
    assert CanvasGrid(length, "whole").chunk % length == 0
    assert 0 <= CHUNK - CanvasGrid(length, "whole").chunk < length
    assert CanvasGrid(length).chunk == CHUNK


def test_blocks_that_no_pass_can_encode_whole_are_refused():
    assert CanvasGrid(CHUNK, "whole").chunk == CHUNK
    assert CanvasGrid(CHUNK + 1).chunk == CHUNK
    with pytest.raises(DlmError, match=f"must have at most {CHUNK} tokens, got {CHUNK + 1}"):
        CanvasGrid(CHUNK + 1, "whole")
