"""A vocabulary without a tokenizer: to read texts byte by byte."""

from dlm.grammar import Vocabulary


def of_bytes() -> Vocabulary:
    """A vocabulary of all bytes, and a stop."""
    pieces = [*(bytes([byte]) for byte in range(256)), b"", b""]
    return Vocabulary(
        pieces,
        control=[256, 257],
        stops=[256],
        pad=257,
        thought=None,
        encode=lambda text: list(text.encode(errors="surrogatepass")),
    )
