"""Texts that a reader should accept or refuse, and does not."""

from collections.abc import Callable, Iterable


def misread(
    accepts: Callable[[str], bool], taken: Iterable[str], refused: Iterable[str]
) -> list[str]:
    """Return the texts of `taken` that `accepts` refuses and those of `refused` that it accepts."""
    wrong = [text for text in taken if not accepts(text)]
    return wrong + [text for text in refused if accepts(text)]
