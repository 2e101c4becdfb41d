"""The bytes of a tokenizer's tokens, its control tokens, and the markers around reasoning.

Markers are control tokens, or words of text, each of one or several tokens. Text is matched by its
bytes, so a marker is found in every spelling. The module knows no grammar.
"""

import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import groupby, takewhile
from typing import Any

import numpy as np
import xgrammar as xgr
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from dlm.grammar.calls import CallMarkers
from dlm.grammar.errors import GrammarError
from dlm.grammar.masks import Trie, packed, token_words

THOUGHT = ("<|channel>", "<channel|>")  # around reasoning, in Gemma 4's chat format
CALL = ("<|tool_call>", "<tool_call|>", '<|"|>')  # around a call and its strings, in the same
_NEVER = 1 << 40  # tokens: no tokens spell the text
_MOST_MISSING = 0.1  # share of a model's tokens: the sizes of embeddings are rounded up
_MOST_OUTSIDE = 64  # added tokens beyond a model's, such as marks of images
_LOOK_BACK = 4  # tokens before a forced text that may merge with it
_ENDS_STRING, _STRUCTURES = re.compile(rb'["\\]'), re.compile(rb'[",{}\[\]]')
_STRUCTURE = re.compile(rb"[],}0-9\\-]|\".*\"")  # outside of strings: the end of an item, or digits
_SPACE = re.compile(rb"[ \t\r\n]")  # outside of strings: the end of a number


@dataclass(frozen=True, slots=True)
class Markers:
    """The tokens that open reasoning, and those that close it."""

    open: tuple[int, ...]
    close: tuple[int, ...]


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
        spaced = {t for t, piece in enumerate(pieces) if _SPACE.search(piece)}
        kinds = {  # tokens that may end an item, by the position in the text
            "opening": opening,
            "joining": self.joining,
            "ending": self.pieces.keys() | self.escapes,
            "structural": structural,
            "after a digit": structural | spaced,  # white space ends a number
        }
        self.packed = {name: token_words(tokens, len(pieces)) for name, tokens in kinds.items()}
        # Tokens that change no keys, within a string and outside of strings.
        self.within = np.array([not _ENDS_STRING.search(piece) for piece in pieces], bool)
        self.outside = np.array([not _STRUCTURES.search(piece) for piece in pieces], bool)


class Vocabulary:
    """The pieces of a tokenizer, by token id.

    A control token has no bytes, although its name is ASCII: grammars match text, and a JSON
    string must not contain `<turn|>`.
    """

    def __init__(
        self,
        pieces: Sequence[bytes],
        *,
        control: Collection[int],
        stops: Sequence[int],
        pad: int,
        thought: Markers | None,
        encode: Callable[[str], list[int]],
        call: CallMarkers | None = None,
    ):
        """`pieces[i]` holds the bytes of token `i`; `encode` maps text to canonical token ids.

        Raises `GrammarError` if `pad` or a stop is not a token.
        """
        for name, token in (("pad", pad), *(("stop", stop) for stop in stops)):
            if not 0 <= token < len(pieces):
                raise GrammarError(f"{name} token {token} is outside of {len(pieces)} tokens")
        self.control = frozenset(control) | {pad, *stops}
        self.pieces = [b"" if i in self.control else bytes(p) for i, p in enumerate(pieces)]
        self.stops, self.pad, self.thought, self.call = tuple(stops), pad, thought, call
        self.encode = encode
        self._canonical = lru_cache(maxsize=4096)(self._tokenize_after)

    @classmethod
    def from_tokenizer(
        cls,
        tokenizer: PreTrainedTokenizerBase,
        size: int,
        stops: Sequence[int],
        pad: int,
        thought: tuple[str, str] | None = None,
    ) -> "Vocabulary":
        """Return the vocabulary of a Hugging Face tokenizer, for a model with `size` logits.

        `thought` holds the texts that open and close reasoning; None: Gemma 4's, if the tokenizer
        has them. Added tokens from `size` on are ignored: Gemma's tokenizer has some for images.
        An id without a piece has no bytes, so that no grammar allows it. Raises `GrammarError` for
        a tokenizer of another model: one with other tokens from `size` on, or with too few.
        """
        known = tokenizer.get_vocab()
        special = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
        _check_pieces(known, tokenizer.added_tokens_decoder, size)
        info = xgr.TokenizerInfo.from_huggingface(
            tokenizer, vocab_size=size, stop_token_ids=list(stops)
        )

        def encode(text: str) -> list[int]:
            if isinstance(tokenizer, PreTrainedTokenizerFast):  # takes a tenth of the time
                return tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids
            return tokenizer.encode(text, add_special_tokens=False)

        if thought is None and known.keys() >= set(THOUGHT):
            thought = THOUGHT
        has_calls = known.keys() >= set(CALL)
        return cls(
            info.decoded_vocab[:size],
            control={i for i in special | set(tokenizer.all_special_ids) if i < size},
            stops=stops,
            pad=pad,
            thought=thought and Markers(*(tuple(encode(text)) for text in thought)),
            encode=encode,
            call=CallMarkers(*(known[name] for name in CALL)) if has_calls else None,
        )

    def __len__(self) -> int:
        return len(self.pieces)

    def index(self) -> None:
        """Compute all cached properties now, which takes 1 s at 262,144 tokens."""
        _ = self.trie, self.quoted, self.spells_every_byte, self.longest, self._first_tokens

    @cached_property
    def text_words(self) -> np.ndarray:
        """The tokens that have bytes, as packed bits: bit `v % 32` of word `v // 32`."""
        return packed(np.array([bool(piece) for piece in self.pieces]))

    def text(self, tokens: Sequence[int]) -> str:
        """Return the text of `tokens` without control tokens; U+FFFD replaces invalid UTF-8."""
        return b"".join(self.pieces[token] for token in tokens).decode("utf-8", "replace")

    def fewest(self, text: Sequence[bytes | int]) -> list[int] | None:
        """Return the fewest tokens that spell `text`: bytes, and control tokens by their ids.

        None if the vocabulary can not spell it.
        """
        tokens: list[int] = []
        for kind, group in groupby(text, key=type):
            parts: list[Any] = list(group)
            found = parts if kind is int else self._fewest(b"".join(parts))
            if found is None:
                return None
            tokens += found
        return tokens

    def _fewest(self, raw: bytes) -> list[int] | None:
        first, counts = self._first_tokens
        best: list[tuple[int, int, int]] = [(0, 0, 0)]  # by end: tokens, start and node of the last
        best += [(_NEVER, 0, 0)] * len(raw)
        for start in range(len(raw)):
            count = best[start][0] + 1
            if count > _NEVER:
                continue
            for end, node in enumerate(self.trie.along(raw, start), start + 1):
                if count < best[end][0] and counts[node]:
                    best[end] = count, start, node
        if best[-1][0] == _NEVER:
            return None
        tokens, end = [], len(raw)
        while end:
            _, end, node = best[end]
            tokens.append(int(self.trie.tokens[first[node]]))
        return tokens[::-1]

    @cached_property
    def _first_tokens(self) -> tuple[memoryview, memoryview]:
        """The index of the first token, and the number of tokens, of each trie node."""
        return self.trie.token_first.data, self.trie.token_count.data

    def beginnings(self, text: bytes) -> list[int]:
        """Return the tokens that are beginnings of `text`."""
        nodes = np.fromiter(self.trie.along(text), np.int32)
        return self.trie.tokens_at(nodes)[0].tolist()

    @cached_property
    def spells_every_byte(self) -> bool:
        """Whether each byte is a token, so that no text takes more tokens than bytes."""
        return len({piece for piece in self.pieces if len(piece) == 1}) == 256

    @cached_property
    def quoted(self) -> QuotedTokens:
        return QuotedTokens(self.pieces)

    @cached_property
    def trie(self) -> Trie:
        return Trie(self.pieces)

    @cached_property
    def longest(self) -> int:
        """The number of bytes of the longest token."""
        return max(map(len, self.pieces))

    def canonical(self, before: Sequence[int], text: str) -> list[int]:
        """Return the tokens of `text` after the tokens `before`, in the tokenizer's spelling.

        The last token is left out, since it may merge with the text after it. So are a control
        token and all after it, since `text` is plain text. Empty if the tokenizer would merge
        `text` with `before`.
        """
        return list(self._canonical(tuple(before[-_LOOK_BACK:]), text))

    def _tokenize_after(self, before: tuple[int, ...], text: str) -> tuple[int, ...]:
        while before and not self.pieces[before[0]]:
            before = before[1:]
        for start in range(len(before) or 1):
            context = before[start:]
            prefix = b"".join(self.pieces[token] for token in context).decode("utf-8", "replace")
            tokens = tuple(self.encode(prefix + text))
            if tokens[: len(context)] == context:
                spelled = takewhile(lambda t: t not in self.control, tokens[len(context) :])
                return tuple(spelled)[:-1]
        return ()


def _check_pieces(known: Mapping[str, int], added: Collection[int], size: int) -> None:
    """Raise `GrammarError` unless the pieces `known` are those of a model with `size` tokens; a few
    `added` tokens may be more."""
    outside = [token for token in known.values() if not 0 <= token < size]
    if len(outside) > _MOST_OUTSIDE or not all(token in added for token in outside):
        raise GrammarError(
            f"tokenizer.json: {len(outside):,} of its {len(known):,} pieces have ids outside of "
            f"the model's {size:,} tokens (vocab_size in config.json), such as {outside[0]}; only "
            f"added tokens may, and at most {_MOST_OUTSIDE}"
        )
    missing = size - len({token for token in known.values() if token < size})
    if missing > size * _MOST_MISSING:
        raise GrammarError(
            f"tokenizer.json has no piece for {missing:,} of the model's {size:,} tokens "
            f"(vocab_size in config.json): at most {_MOST_MISSING:.0%} may be without one"
        )


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """Return the number of equal leading tokens."""
    shorter = min(len(one), len(other))
    if one[:shorter] == other[:shorter]:
        return shorter
    return next((i for i in range(shorter) if one[i] != other[i]), shorter)


_CONTROL = 256  # symbols below are bytes; from here on, control tokens


class Marker:
    """A sequence of symbols, searched for incrementally (Knuth, Morris and Pratt)."""

    def __init__(self, tokens: Sequence[int], vocabulary: Vocabulary):
        self._vocabulary, self.pieces = vocabulary, vocabulary.pieces
        self.symbols = [symbol for token in tokens for symbol in self._read(token)]
        self.size = sum(symbol < _CONTROL for symbol in self.symbols)  # bytes of its text
        self._rest = [self._spell(self.symbols[i:]) for i in range(len(self.symbols) + 1)]
        done = 0
        for i, token in enumerate(tokens):  # prefer the tokenizer's spelling if none is shorter
            if len(tokens) - i <= len(self._rest[done]) or not self._rest[done]:
                self._rest[done] = list(tokens[i:])
            done += len(self._read(token))
        self.longest = max(map(len, self._rest))  # the most tokens that `rest` returns
        self._allowed: dict[int, np.ndarray] = {}
        self._back = [0] * (len(self.symbols) + 1)  # the longest border of each beginning
        for i in range(1, len(self.symbols)):
            self._back[i + 1] = self._matched(self._back[i], self.symbols[i])

    def after(self, done: int, token: int) -> int | None:
        """Return the number of symbols matched after `token`, if `done` were matched before it.

        None if the marker would end within the token, or if the token is a control token with
        which the marker does not continue.
        """
        symbols = self._read(token)
        if symbols[0] >= _CONTROL and self.symbols[done : done + 1] != symbols:
            return None
        for symbol in symbols:
            if done == len(self.symbols):
                return None
            done = self._matched(done, symbol)
        return done

    def find(self, tokens: Sequence[int]) -> tuple[int, int] | None:
        """Return start and end of the marker's first occurrence in `tokens`; None if absent."""
        done, total, starts = 0, 0, []
        begin = self._begin(tokens)
        for at in range(begin, len(tokens)):
            starts.append(total)
            total += len(self._read(tokens[at]))
            done = self.after(done, tokens[at]) or 0
            if self.complete(done):
                return begin + bisect_right(starts, total - len(self.symbols)) - 1, at + 1
        return None

    def _begin(self, tokens: Sequence[int]) -> int:
        """Return an index before which the marker does not begin."""
        first = self.symbols[0] - _CONTROL
        if first < 0:
            return 0
        return tokens.index(first) if first in tokens else len(tokens)

    def begun(self, tokens: Sequence[int]) -> int:
        """Return the number of bytes at the end of `tokens` that may be the marker's beginning."""
        done = 0
        if self.symbols[0] >= _CONTROL:  # it can not have begun further back
            tokens = tokens[-len(self.symbols) :]
        for token in tokens:
            done = self.after(done, token) or 0
        return sum(symbol < _CONTROL for symbol in self.symbols[:done])

    def complete(self, done: int) -> bool:
        return done == len(self.symbols)

    def rest(self, done: int) -> list[int]:
        """Return the tokens that complete the marker after `done` of its symbols."""
        return self._rest[done]

    def allowed(self, done: int) -> np.ndarray:
        """Return the tokens for which `after` is not None, as packed bits. The result is cached."""
        if done not in self._allowed:
            self._allowed[done] = self._compute_allowed(done)
        return self._allowed[done]

    def _compute_allowed(self, done: int) -> np.ndarray:
        next_, last, size = self.symbols[done], self.symbols[-1], len(self.pieces)
        words = self._vocabulary.text_words
        if next_ >= _CONTROL:
            words = words | token_words([next_ - _CONTROL], size)
        refused = [
            token
            for token, piece in enumerate(self.pieces if last < _CONTROL else ())
            if last in piece[:-1] and self.after(done, token) is None
        ]
        return words & ~token_words(refused, size)

    def _matched(self, done: int, symbol: int) -> int:
        while done and (done == len(self.symbols) or self.symbols[done] != symbol):
            done = self._back[done]
        return done + (self.symbols[done] == symbol)

    def _read(self, token: int) -> list[int]:
        piece = self.pieces[token]
        return list(piece) if piece else [_CONTROL + token]

    def _spell(self, symbols: Sequence[int]) -> list[int]:
        text = [s - _CONTROL if s >= _CONTROL else bytes([s]) for s in symbols]
        return self._vocabulary.fewest(text) or []


@dataclass(frozen=True, slots=True)
class Reasoning:
    """The markers and the limits of reasoning, in tokens.

    `budget` bounds the reasoning, both markers included; None: it has no limit of its own.
    `reserve` is the part of the whole budget that is left to the answer and its stop.
    """

    open: Marker
    close: Marker
    budget: int | None = None
    reserve: int = 0

    @classmethod
    def of(cls, vocabulary: Vocabulary, budget: int | None = None) -> "Reasoning | None":
        """Return reasoning with the vocabulary's markers; None if it has none."""
        if vocabulary.thought is None:
            return None
        opens, closes = vocabulary.thought.open, vocabulary.thought.close
        return cls(Marker(opens, vocabulary), Marker(closes, vocabulary), budget)

    @property
    def limited(self) -> bool:
        """Whether anything but the answer's own needs limits it."""
        return self.budget is not None or self.reserve > 0

    def split(self, tokens: Sequence[int], ended: bool = True) -> tuple[bytes, list[int]]:
        """Return the text between the markers, and the tokens of the answer.

        An opening marker of text counts only at the beginning, since an answer may quote it. Until
        the answer has `ended`, a possible beginning of a marker belongs to neither.
        """
        opened = self.open.find(tokens)
        if opened is None or (self.open.size and opened[0]):
            held = not ended and opened is None
            if held:
                size = sum(map(len, map(self.open.pieces.__getitem__, tokens)))
                held = self.open.begun(tokens) == size
            return b"", [] if held else list(tokens)
        rest = tokens[opened[1] :]
        closed = self.close.find(rest)
        end = len(rest) if closed is None else closed[1]
        text = b"".join(self.close.pieces[token] for token in rest[:end])
        if closed is not None:
            text = text[: len(text) - self.close.size]
        elif not ended:
            text = text[: len(text) - self.close.begun(rest)]
        return text, [*tokens[: opened[0]], *rest[end:]]
