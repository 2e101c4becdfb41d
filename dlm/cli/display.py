"""Display on a terminal's stderr while a command works: a canvas as it denoises, or a progress bar.

It imports only what is quick to import, so that something is shown at once.
"""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import Progress
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from dlm import Draft, Event
    from dlm.grammar import Vocabulary

PINNED, ACCEPTED, NOISE = "bold green", "cyan", "dim"
MASK = "░"  # of a position without a token
FRAME = 0.1  # seconds that each step of a watched canvas stays visible, at the least


class CanvasView:
    """A view that follows the events of one request and draws them on a terminal's stderr."""

    def __init__(self, vocabulary: "Vocabulary", max_tokens: int, live: Live | None, watch: bool):
        self._vocabulary, self._max_tokens = vocabulary, max_tokens
        self._live, self._watch = live, watch
        self._committed: list[int] = []

    def show(self, event: "Event") -> None:
        from dlm import Committed, Draft

        if isinstance(event, Committed):
            self._committed += event.tokens
        elif isinstance(event, Draft) and self._live is not None:
            self._live.update(self._canvas(event) if self._watch else self._bar(event))
            if self._watch and self._live.console.is_terminal:
                self._live.refresh()
                time.sleep(FRAME)

    def _bar(self, draft: "Draft") -> RenderableType:
        done = len(self._committed)
        line = Table.grid(padding=(0, 1))
        line.add_row(
            ProgressBar(total=self._max_tokens, completed=done, width=40),
            f"{done} of at most {self._max_tokens} tokens, step {draft.step} of this canvas",
        )
        return line

    def _canvas(self, draft: "Draft") -> RenderableType:
        canvas = Text(self._vocabulary.text(self._committed[: draft.committed]))
        newest = len(canvas)
        for position, token in enumerate(draft.tokens):
            if draft.masked[position]:
                canvas.append(MASK, NOISE)
                continue
            style = ACCEPTED if draft.accepted[position] else NOISE
            canvas.append(self._piece(token), PINNED if position < draft.pinned else style)
            if position <= draft.suspect and token not in self._vocabulary.control:
                newest = len(canvas)
        legend = Text.assemble(
            f"step {draft.step}  entropy {draft.entropy:.3f} nats a position  ",
            ("pinned", PINNED),
            "  ",
            ("accepted", ACCEPTED),
            "  ",
            (f"{MASK} mask" if any(draft.masked) else "noise", NOISE),
        )
        return Group(self._visible(canvas, newest, legend), legend)

    def _visible(self, canvas: Text, newest: int, legend: Text) -> Text:
        """Return the lines of `canvas` that fit the terminal above `legend`.

        These are the lines around character `newest`, the end of the answer so far.
        """
        console = None if self._live is None else self._live.console
        if console is None or not console.is_terminal:
            return canvas
        width = console.width
        lines = canvas.wrap(console, width)
        height = max(1, console.height - len(legend.wrap(console, width)))
        if len(lines) <= height:
            return canvas
        reached = len(canvas[: max(1, newest)].wrap(console, width))
        end = min(len(lines), max(height, reached + height // 3))
        return Text("\n").join(lines[end - height : end])

    def _piece(self, token: int) -> str:
        return "·" if token in self._vocabulary.control else self._vocabulary.text([token])


@contextmanager
def canvas_view(vocabulary: "Vocabulary", max_tokens: int, watch: bool) -> Iterator[CanvasView]:
    """Show a request: with `watch` the canvas, which stays on the screen, else a passing bar."""
    console = Console(stderr=True)
    if not (watch or console.is_terminal):
        yield CanvasView(vocabulary, max_tokens, None, watch)
        return
    placeholder = Text("preparing the answer") if console.is_terminal else None
    with Live(placeholder, console=console, transient=not watch, auto_refresh=not watch) as live:
        yield CanvasView(vocabulary, max_tokens, live, watch)
    if not console.is_terminal:
        console.line()  # `Live` leaves it out


@contextmanager
def status(doing: str) -> Iterator[None]:
    """Show on a terminal's stderr what is being done, until it is done."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    with console.status(doing):
        yield


@contextmanager
def progress_bar(doing: str) -> Iterator[Callable[[int, int], None]]:
    """Yield a function that is given the number of finished parts and of all.

    The bar appears with its first call, and goes at the end. Where stderr is no terminal, one line
    is printed instead.
    """
    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal, transient=True) as progress:
        task = progress.add_task(doing, total=None, visible=False)

        def show(done: int, parts: int) -> None:
            if not console.is_terminal and done == 0:
                print(doing, file=sys.stderr, flush=True)
            progress.update(task, completed=done, total=parts, visible=True)

        yield show
