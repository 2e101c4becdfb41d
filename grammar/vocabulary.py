"""The bytes of a tokenizer's tokens, its control tokens, and the tokens that may end a JSON key."""

import re
from collections.abc import Callable, Collection, Sequence
from functools import cached_property, lru_cache
from itertools import groupby, takewhile
from typing import Any

import numpy as np
import xgrammar as xgr
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from dlm.grammar.errors import GrammarError
from dlm.grammar.masks import Trie, packed, token_words
from dlm.grammar.tokens import CallMarkers, Markers

THOUGHT = ("<|channel>", "<channel|>")  # around reasoning, in Gemma 4's chat format
CALL = ("<|tool_call>", "<tool_call|>", '<|"|>')  # around a call and its strings, in the same
_NEVER = 1 << 40  # tokens: no tokens spell the text
_LOOK_BACK = 4  # tokens before a forced text that may merge with it
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
        self.packed = {name: token_words(tokens, len(pieces)) for name, tokens in kinds.items()}


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
        has them. Tokens from `size` on are ignored: Gemma's tokenizer has some for images.
        """
        known = tokenizer.get_vocab()
        info = xgr.TokenizerInfo.from_huggingface(
            tokenizer, vocab_size=max(size, len(known)), stop_token_ids=list(stops)
        )
        special = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}

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
        return all(bytes([byte]) in self._by_byte for byte in range(256))

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

    @cached_property
    def _by_byte(self) -> dict[bytes, int]:
        """The tokens of single bytes."""
        return {piece: token for token, piece in enumerate(self.pieces) if len(piece) == 1}

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
