"""Progress on a terminal: a canvas that is taller than the terminal, and a bar."""

import io
import sys

import pytest
from rich.console import Console
from rich.live import Live

from dlm import Committed, Draft
from dlm.chat import Chat
from dlm.cli.display import CanvasView, progress_bar
from dlm.engine import BUILT_IN
from dlm.grammar import Vocabulary

WIDTH, HEIGHT = 80, 8


@pytest.fixture(scope="module")
def vocabulary():
    tokenizer = Chat.load(BUILT_IN).tokenizer
    return Vocabulary.from_tokenizer(tokenizer, len(tokenizer), stops=[1, 106], pad=0)


def draft(tokens, suspect, pinned=0, masked=(), after=0):
    return Draft(
        committed=after,
        request=0,
        step=1,
        entropy=0.5,
        tokens=tokens,
        accepted=[position not in masked for position in range(len(tokens))],
        masked=[position in masked for position in range(len(tokens))],
        pinned=pinned,
        suspect=suspect,
        passes=1,
        repairs=0,
    )


def shown(vocabulary, *events, terminal=True):
    """Return the lines on the screen after `events`."""
    out = io.StringIO()
    console = Console(
        file=out, force_terminal=terminal, width=WIDTH, height=HEIGHT, color_system=None
    )
    live = Live(console=console, auto_refresh=False)
    view = CanvasView(vocabulary, 1000, live, watch=True)
    for event in events:
        view.show(event)
    with console.capture() as capture:
        console.print(live.renderable)
    return capture.get().splitlines()


def lines(first, last):
    return "".join(f"line {number}\n" for number in range(first, last))


def committed(tokens):
    return Committed(request=0, tokens=tokens, answer=tokens, text="", reasoning="")


def test_an_answer_taller_than_the_terminal_shows_its_newest_part(vocabulary):
    tokens = vocabulary.encode(lines(20, 40))
    screen = shown(
        vocabulary, committed(vocabulary.encode(lines(0, 20))), draft(tokens, len(tokens))
    )
    assert len(screen) <= HEIGHT
    assert "line 39" in screen
    assert "line 34" in screen
    assert "line 0" not in screen
    assert screen[-1].startswith("step 1")


def test_the_frontier_is_shown_though_much_noise_follows_it(vocabulary):
    before, after = vocabulary.encode(lines(0, 30)), vocabulary.encode(lines(30, 60))
    screen = shown(vocabulary, draft(before + after, suspect=len(before) - 2, pinned=4))
    assert len(screen) <= HEIGHT
    assert "line 29" in screen
    assert "line 27" in screen
    assert "line 59" not in screen


def test_padding_after_the_answer_is_not_its_newest_part(vocabulary):
    tokens = vocabulary.encode(lines(0, 20)) + [106] + [0] * 2000
    screen = shown(vocabulary, draft(tokens, suspect=len(tokens)))
    assert len(screen) <= HEIGHT
    assert "line 19" in screen


def test_the_end_of_one_long_line_is_shown(vocabulary):
    tokens = vocabulary.encode(" ".join(f"word{number}" for number in range(300)))
    screen = shown(vocabulary, draft(tokens, suspect=len(tokens)))
    assert len(screen) <= HEIGHT
    assert "word299" in " ".join(screen)
    assert "word1 " not in " ".join(screen)


def test_a_mask_is_a_symbol_in_the_place_of_the_guess(vocabulary):
    tokens = [*vocabulary.encode("one two three"), 106, 0, 0]
    assert len(tokens) > 5
    masks = {1, len(tokens) - 1}
    picture, legend = shown(vocabulary, draft(tokens, len(tokens), masked=masks))
    spelled = ["·" if t in vocabulary.control else vocabulary.text([t]) for t in tokens]
    assert picture == "".join("░" if i in masks else text for i, text in enumerate(spelled))
    assert legend.endswith("pinned  accepted  ░ mask")
    assert shown(vocabulary, draft(tokens, len(tokens)))[-1].endswith("pinned  accepted  noise")


def test_the_committed_text_stays_in_sight_while_a_canvas_is_all_masks(vocabulary):
    tokens = vocabulary.encode(lines(20, 40))
    earlier, masks = committed(vocabulary.encode(lines(0, 20))), set(range(len(tokens)))
    after = len(earlier.tokens)
    screen = shown(vocabulary, earlier, draft(tokens, len(tokens), masked=masks, after=after))
    assert "line 19" in screen
    assert "line 0" not in screen
    assert "line 39" not in "".join(screen)


def test_tokens_that_a_drafted_pass_wrote_are_shown_once(vocabulary):
    earlier, newest = vocabulary.encode("abc\n"), vocabulary.encode("def\n")
    final, row = committed(earlier + newest), draft(newest, len(newest), after=len(earlier))
    assert shown(vocabulary, final, row)[:2] == ["abc", "def"]


@pytest.mark.parametrize("terminal", [True, False])
def test_a_short_answer_is_shown_whole_and_so_is_any_answer_without_a_terminal(
    vocabulary, terminal
):
    text = lines(0, 3 if terminal else 40)
    tokens = vocabulary.encode(text)
    screen = shown(vocabulary, draft(tokens, len(tokens)), terminal=terminal)
    assert screen[0] == "line 0"
    assert text.splitlines()[-1] in screen


@pytest.mark.parametrize("terminal", [True, False])
def test_a_bar_is_shown_on_a_terminal_and_a_line_elsewhere(terminal, monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    stderr = io.StringIO()
    stderr.isatty = lambda: terminal
    monkeypatch.setattr(sys, "stderr", stderr)
    with progress_bar("warming up") as progress:
        assert "warming up" not in stderr.getvalue()
        progress(0, 4)
        progress(1, 4)
    assert "warming up" in stderr.getvalue()
    assert terminal or stderr.getvalue() == "warming up\n"
    assert ("25%" in stderr.getvalue()) == terminal
