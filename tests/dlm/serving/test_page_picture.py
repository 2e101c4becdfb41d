"""The page's picture of a canvas has a row for each pass, made of the stream's drafts."""

import pytest
from page_scripts import needs_node, run

pytestmark = needs_node


def draft(committed, tokens, pinned=0, suspect=None, **more):
    """Return a draft as it is on the wire."""
    accepted = [i < pinned for i in range(len(tokens))]
    plain = {"committed": committed, "tokens": tokens, "pinned": pinned, "accepted": accepted}
    suspect = len(tokens) if suspect is None else suspect
    return plain | {"suspect": suspect, "masked": [False] * len(tokens)} | more


def test_a_picture_has_a_row_a_pass_whose_text_before_is_what_earlier_rows_have_fixed():
    drafts = [
        draft(0, ["a", "b", "c"], suspect=2, passes=1, entropy=0.5),
        draft(0, ["a", "d", ""], passes=2, entropy=0.1),
        draft(2, ["e", "\n", "", ""], pinned=1, passes=3, entropy=0.0),
    ]
    code = """(() => {
      const picture = new Picture();
      for (const draft of given[0]) picture.take({choices: [], draft}, draft.passes / 4);
      picture.take({choices: [], usage: {completion_tokens: 4}}, 9);
      return [picture.rows.map(({before, cells, frontier}) =>
        [before, cells.map(({text, kind}) => `${text} ${kind}`), frontier]),
        [0, 2, 3].map(i => picture.numbers(i)), widest(picture.rows)];
    })()"""
    rows, numbers, characters = run(code, drafts)
    assert rows == [
        ["", ["a noise", "b noise", "c suspect"], 2],
        ["", ["a noise", "d noise", "· noise"], None],
        ["ad", ["e pinned", "⏎ noise", "· noise"], None],
    ]
    assert numbers == [
        {"passes": 1, "tokens": 0, "rate": "0.0", "seconds": "0.3"},
        {"passes": 3, "tokens": 3, "rate": "1.0", "seconds": "0.8"},
        {"passes": 3, "tokens": 4, "rate": "1.3", "seconds": "0.8"},
    ]
    assert characters == 5


@pytest.mark.parametrize(
    ("drafts", "before"),
    [
        # A whole canvas: its last draft is shown, or was dropped.
        ([draft(0, ["a", "b"], 1, passes=1), draft(2, ["c"], passes=2)], "ab"),
        ([draft(0, ["a", "b"], 1, passes=1), draft(2, ["c"], passes=3)], "a…"),
        # Drafted: each row begins with what its pass wrote; the guess after it may be wrong.
        ([draft(0, ["a", "x", "y"], 1, passes=1), draft(1, ["b"], 1, passes=3)], "a"),
        ([draft(0, ["a", "x", "y"], 1, passes=1), draft(3, ["d"], 1, passes=4)], "a…"),
        ([draft(3, ["c"], 1, passes=3)], "…"),
        ([draft(2, ["c"], 1, passes=3), draft(3, ["d"], 1, passes=4)], "…c"),
        # Tokens were taken back.
        ([draft(0, ["a", "b"], 2, passes=1), draft(2, ["c"], passes=2)] * 2, "ab"),
        ([*(draft(i, ["a"], 1, passes=i + 1) for i in range(3)), draft(1, [""], passes=4)], "a"),
    ],
)
def test_a_picture_without_some_drafts_shows_no_guess_as_committed(drafts, before):
    code = """(() => {
      const picture = new Picture();
      for (const draft of given[0]) picture.take({choices: [], draft}, 1);
      return picture.rows.at(-1).before;
    })()"""
    assert run(code, [one | {"entropy": 0.0} for one in drafts]) == before


def test_a_masked_position_is_a_mask_until_its_token_stands():
    held = draft(0, ["a", "b", "c", "d"], pinned=1, suspect=3)
    held |= {"masked": [False, True, False, True], "accepted": [True, False, True, False]}
    assert run("kindsOf(given[0])", held) == ["pinned", "mask", "accepted", "mask"]
