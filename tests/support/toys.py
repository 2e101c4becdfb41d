"""Vocabularies so small that every spelling of a text can be written down."""

from collections.abc import Iterable

from dlm.grammar import Vocabulary

PAD, STOP = 0, 1


def toy_vocabulary(pieces: Iterable[bytes]) -> Vocabulary:
    """Return a vocabulary of padding, the stop and `pieces`, which encodes a text byte by byte."""
    known = [b"", b"", *pieces]
    return Vocabulary(
        known,
        control=[PAD, STOP],
        stops=[STOP],
        pad=PAD,
        thought=None,
        encode=lambda text: [known.index(bytes([byte])) for byte in text.encode()],
    )
