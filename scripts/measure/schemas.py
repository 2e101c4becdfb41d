"""Files of schemas and tokenizers, and the vocabularies that are read from them."""

import json
import lzma
from collections.abc import Collection
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from dlm.grammar import GrammarError, JsonSchema, Vocabulary

L = 256  # positions of a canvas
STOPS, PAD, MASK = (1, 106, 50), 0, 4  # Gemma's
GEMMA = 262_144  # tokens of Gemma's models; its tokenizer has one more


def read_text(path: Path) -> str:
    """Read a text file, compressed or not."""
    if path.suffix == ".xz":
        with lzma.open(path, "rt", encoding="utf-8") as file:
            return file.read()
    return path.read_text(encoding="utf-8")


def read_schemas(path: Path) -> list[dict[str, Any]]:
    """Read the JSON objects of a file, one a line."""
    return [json.loads(line) for line in read_text(path).split("\n") if line.strip()]


def array_of(entry: dict[str, Any]) -> tuple[JsonSchema, str] | None:
    """Return an array that repeats an entry's first valid instance past a canvas, and its schema.

    Returns None for an entry without a valid instance, and for a schema with references, which
    would point elsewhere within another schema.
    """
    schema = entry["schema"]
    valid = [test["data"] for test in entry["tests"] if test["valid"]]
    if not valid or not isinstance(schema, dict) or "$ref" in json.dumps(schema):
        return None
    item = json.dumps(valid[0], ensure_ascii=False)
    count = 16 * L // len(item) + 2
    try:
        return JsonSchema({"type": "array", "items": schema}), f"[{', '.join([item] * count)}]"
    except GrammarError:
        return None


def tokenizer_of(path: Path) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(read_text(path)))


def vocabulary_of(path: Path, control: Collection[int] = ()) -> Vocabulary:
    """Return the vocabulary of a tokenizer.json, with Gemma's stops and size at most. `control` are
    more tokens that no text may hold."""
    tokenizer = tokenizer_of(path)
    size = min(GEMMA, len(tokenizer))
    return Vocabulary.from_tokenizer(tokenizer, size, STOPS, PAD, control=control)


def of_bytes() -> Vocabulary:
    """Return a vocabulary of all bytes and a stop, to read texts without a tokenizer."""
    pieces = [*(bytes([byte]) for byte in range(256)), b"", b""]
    return Vocabulary(
        pieces,
        control=[256, 257],
        stops=[256],
        pad=257,
        thought=None,
        encode=lambda text: list(text.encode(errors="surrogatepass")),
    )
