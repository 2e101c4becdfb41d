"""The picture of a canvas shows the events of a run."""

import json
import xml.etree.ElementTree as ElementTree

import draw_canvas
import pytest
from invoices import SCHEMA

import dlm


@pytest.fixture(scope="module")
def drawn(built_in):
    request = dlm.Request(
        prompt=draw_canvas.PROMPT, constraint=dlm.JsonSchema(SCHEMA), seed=0, max_tokens=96
    )
    return draw_canvas.rows(built_in, request)


def test_a_row_has_the_styles_of_its_draft(built_in):
    tokens = built_in.vocabulary.encode("abcdef")
    draft = dlm.Draft(
        committed=0,
        request=0,
        step=3,
        entropy=0.5,
        tokens=[*tokens[:1] * 4, 0],
        accepted=[True, True, False, False, False],
        masked=[False] * 5,
        pinned=1,
        suspect=3,
        passes=3,
        repairs=1,
    )
    row = draw_canvas.row(built_in, draft)
    styles = [style for _, style in row.pieces]
    assert styles == ["pinned", "accepted", "noised again", "suspect", "suspect"]
    assert (row.label, row.frontier, row.pieces[-1][0]) == ("pass 3", 3, "·")


def test_committed_rows_are_the_answer(drawn):
    committed = "".join(text for row in drawn if row.label == "commit" for text, _ in row.pieces)
    answer = json.loads(committed.replace("␣", " ").replace("⏎", "\n").rstrip("·"))
    assert answer.keys() == {"invoice_id", "customer", "total", "paid"}
    assert sum(row.label == "commit" for row in drawn) >= 2


def test_the_picture_is_an_svg_with_a_line_at_each_frontier(drawn):
    picture = ElementTree.fromstring(draw_canvas.svg(drawn))
    lines = picture.findall("{http://www.w3.org/2000/svg}line")
    boxes = picture.findall("{http://www.w3.org/2000/svg}rect")
    suspect = sum(row.frontier is not None for row in drawn)
    assert suspect >= 1
    assert len(lines) == suspect + 1  # and one in the legend
    assert len(boxes) == 1 + len(draw_canvas.STYLES) + sum(len(row.pieces) for row in drawn)
