"""What a terminal shows of a running request: the canvas as it denoises, or a line of progress."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from dlm import Committed, Draft, Event
from dlm.grammar import Vocabulary

PINNED, ACCEPTED, NOISE = "bold green", "cyan", "dim"


class CanvasView:
    """Follows the events of one request; draws on stderr, and only on a terminal."""

    def __init__(self, vocabulary: Vocabulary, live: Live | None, whole: bool):
        self._vocabulary, self._live, self._whole = vocabulary, live, whole
        self._committed: list[int] = []

    def show(self, event: Event) -> None:
        if isinstance(event, Committed):
            self._committed += event.tokens
        elif isinstance(event, Draft) and self._live is not None:
            self._live.update(self._canvas(event) if self._whole else self._line(event))

    def _line(self, draft: Draft) -> Text:
        accepted = sum(draft.accepted)
        return Text(
            f"{len(self._committed)} tokens committed; step {draft.step} of this canvas, "
            f"{accepted} of {len(draft.accepted)} positions accepted",
            style="dim",
        )

    def _canvas(self, draft: Draft) -> Group:
        canvas = Text(self._vocabulary.text(self._committed))
        for position, token in enumerate(draft.tokens):
            style = ACCEPTED if draft.accepted[position] else NOISE
            canvas.append(self._piece(token), PINNED if position < draft.pinned else style)
        legend = Text.assemble(
            f"step {draft.step}  entropy {draft.entropy:.3f} nats a position  ",
            ("pinned", PINNED),
            "  ",
            ("accepted", ACCEPTED),
            "  ",
            ("noise", NOISE),
        )
        return Group(canvas, legend)

    def _piece(self, token: int) -> str:
        if token in self._vocabulary.control:
            return "·"
        return self._vocabulary.text([token])


@contextmanager
def canvas_view(vocabulary: Vocabulary, watch: bool) -> Iterator[CanvasView]:
    """With `watch` the whole canvas, which stays on the screen; else one line, which goes away."""
    console = Console(stderr=True)
    if not (watch or console.is_terminal):
        yield CanvasView(vocabulary, None, whole=False)
        return
    with Live(console=console, transient=not watch, refresh_per_second=20) as live:
        yield CanvasView(vocabulary, live, whole=watch)
