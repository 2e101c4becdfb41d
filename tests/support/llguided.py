"""llguidance over our own vocabularies, and what we ask for as it writes it.

It forces nothing: where only one text can follow, it would allow one spelling of it.
"""

import json
import re
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

from dlm.grammar import Vocabulary, masks

_OPTIONS = '%llguidance {"no_forcing": true, "allow_initial_skip": true}\n'
_SPACES = r"\t\n\v\f\r \u{a0}\u{1680}\u{2000}-\u{200a}\u{2028}\u{2029}\u{202f}\u{205f}\u{3000}"
_NARROW = {"d": "0-9", "w": "0-9A-Za-z_", "s": _SPACES}  # for all readers of patterns
_WIDE = {  # for any of them
    "d": r"\p{Nd}",
    "w": r"\p{L}\p{N}\p{M}\p{Pc}\u{200c}\u{200d}",
    "s": rf"{_SPACES}\x1c-\x1f\u{{85}}\u{{feff}}",
}
_EVERY = r"\[(?:\^|\\d\\D|\\D\\d|\\s\\S|\\S\\s|\\w\\W|\\W\\w)\]"  # classes of all characters
_PART = re.compile(
    rf"(?P<every>{_EVERY})|"
    r"\\u(?P<code>[0-9a-fA-F]{4})|\\(?P<name>[dwsDWS])|\\.|(?P<lazy>[*+?}])\?|.",
    re.DOTALL,
)


class Oracle:
    """Makes matchers of llguidance's, and looks at their masks."""

    def __init__(self, vocabulary: Vocabulary):
        self._size = len(vocabulary)
        self._tokenizer = LLTokenizer(
            TokenizerWrapper(_Pieces(vocabulary)),
            self._size,
            eos_token=[*vocabulary.stops],
            slices=[],
        )

    def matcher(self, source: str) -> LLMatcher:
        """Return a matcher of a Lark grammar."""
        matcher = LLMatcher(self._tokenizer, _OPTIONS + source, log_level=0)
        if matcher.is_error():
            raise ValueError(matcher.get_error())
        return matcher

    def allowed(self, matcher: LLMatcher) -> np.ndarray:
        """A bool for each token."""
        words = np.frombuffer(matcher.compute_bitmask(), np.uint32)
        assert not matcher.is_error(), matcher.get_error()
        return masks.unpacked(words)[: self._size].astype(bool)


class _Pieces:
    """The part of a tokenizer that `TokenizerWrapper` uses."""

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary):
        self.tokens = [piece or b"<[%d]>" % i for i, piece in enumerate(vocabulary.pieces)]
        self.special_token_ids = [i for i, piece in enumerate(vocabulary.pieces) if not piece]
        self.eos_token_id = vocabulary.stops[0]
        self._encode = vocabulary.encode

    def __call__(self, text: str) -> list[int]:
        return self._encode(text)


def of_regex(pattern: str) -> str:
    """A whole match of an ECMAScript `pattern` that looks around at its two ends at most."""
    return f"start: /{_in_rust(pattern)}/"


def of_schema(schema: dict[str, Any], max_whitespace: int = 8) -> str:
    """Return a matcher of a schema, with whitespace bounded as ours, and escapes if possible."""
    most = max_whitespace
    line = rf"\x0D?\x0A([\x20\x09]{{0,{2 * most}}}|(\x20{{4}}){{0,{most}}})"
    options = {
        "whitespace_pattern": rf"[\x20\x09]{{1,{most}}}({line})?|{line}",
        "json_allow_general_unicode_escapes": True,
    }
    return f"start: %json {json.dumps({'x-guidance': options, **schema})}"


def _in_rust(pattern: str) -> str:
    """Return `pattern` in the syntax of Rust's regexes, whose `.` and classes are wider."""
    found, in_class, inverse = [], False, False
    for part in _PART.finditer(pattern.removeprefix("^").removesuffix("$")):
        text = part[0]
        if part["every"] and not in_class:
            text = r"[\d\D]"
        elif part["code"]:
            text = f"\\u{{{part['code']}}}"
        elif name := part["name"]:
            inside = (_WIDE if inverse != name.isupper() else _NARROW)[name.lower()]
            if not in_class or name.isupper():
                inside = f"[{'^' if name.isupper() else ''}{inside}]"
            text = inside
        elif in_class:
            in_class = text != "]"
            inverse = in_class and (inverse or (text == "^" and found[-1] == "["))
        elif part["lazy"]:
            text = part["lazy"]
        elif text == ".":
            text = r"[^\n\r\u{2028}\u{2029}]"
        else:
            in_class = text == "["
        found.append(r"\/" if text == "/" else text)
    return "".join(found)
