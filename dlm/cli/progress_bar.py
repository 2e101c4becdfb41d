"""Bar on a terminal's stderr for what takes seconds and has parts."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress


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
