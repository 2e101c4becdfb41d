"""JSON without a grammar: tokens that can end a key or an array's item, and users' JSON data."""

import json
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from dlm.grammar.errors import InvalidGrammarError
from dlm.grammar.masks.bits import packed

_STRUCTURE = re.compile(rb"[],}0-9\\-]|\".*\"")  # outside of strings: the end of an item, or digits


class QuotedTokens:
    """The tokens that hold a double quote, a comma or a backslash, by their effect on keys."""

    def __init__(self, pieces: Sequence[bytes]):
        self.pieces = {token: piece for token, piece in enumerate(pieces) if b'"' in piece}
        self.commas = {token for token, piece in enumerate(pieces) if b"," in piece}
        self.escapes = {token for token, piece in enumerate(pieces) if b"\\" in piece}
        self.joining = {  # tokens that can end a string and begin the next key
            t for t, piece in self.pieces.items() if t in self.commas or piece.count(b'"') > 1
        }
        self.odd = [  # an escape may spell any key; three quotes end one key and hold another
            t for t, piece in self.pieces.items() if b"\\u" in piece or piece.count(b'"') > 2
        ]
        self.escaping = self.escapes & self.pieces.keys()
        self.ending: dict[bytes, list[int]] = {}  # by the bytes before the first quote
        self.whole: dict[bytes, list[int]] = {}  # by the bytes between two quotes
        for token, piece in self.pieces.items():
            first, *enclosed, _ = piece.split(b'"')
            self.ending.setdefault(first, []).append(token)
            for each in enclosed:
                self.whole.setdefault(each, []).append(token)
        opening = {t for t, piece in enumerate(pieces) if b"[" in piece and len(piece) > 1}
        structural = {t for t, piece in enumerate(pieces) if _STRUCTURE.search(piece)}
        kinds = {  # tokens that may end an item, by the position in the text
            "opening": opening,
            "joining": self.joining,
            "ending": self.pieces.keys() | self.escapes,
            "structural": structural,
        }
        self.packed = {name: _packed(tokens, len(pieces)) for name, tokens in kinds.items()}


def _packed(tokens: Iterable[int], size: int) -> np.ndarray:
    members = np.zeros(size, bool)
    members[[*tokens]] = True
    return packed(members)


def plain(kind: str, given: Any, where: str = "") -> Any:
    """Return a copy of JSON data, or the value of JSON text. Infinity and NaN are kept.

    Raises `InvalidGrammarError` of this `kind`, at `where` and the place in the text, if `given`
    is not JSON.
    """
    try:
        read = json.loads(given if isinstance(given, str) else json.dumps(given))
        json.dumps(read, ensure_ascii=False).encode()
    except json.JSONDecodeError as error:
        place = f"{where} line {error.lineno} column {error.colno}".strip()
        raise InvalidGrammarError(kind, f"not JSON: {error.msg}", place) from error
    except UnicodeEncodeError as error:
        raise InvalidGrammarError(kind, "half a surrogate pair is no text", where) from error
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidGrammarError(kind, f"not JSON data: {error}", where) from error
    return read
