"""The bytes of a tokenizer's tokens, and its control tokens."""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from itertools import groupby
from typing import Any

import numpy as np
import xgrammar as xgr
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from dlm.grammar.errors import GrammarError
from dlm.grammar.masks.bits import packed
from dlm.grammar.masks.trie import Trie
from dlm.grammar.vocabulary.pieces import (
    CallMarkers,
    GemmaMarkers,
    Markers,
    MistralListMarkers,
    MistralMarkers,
)
from dlm.grammar.vocabulary.quoted import QuotedTokens
from dlm.grammar.vocabulary.spelling import canonical_tokens, fewest_tokens

THOUGHT = ("<|channel>", "<channel|>")  # around reasoning, in Gemma 4's chat format
CALL = ("<|tool_call>", "<tool_call|>", '<|"|>')  # around a call and its strings, in the same
_MOST_MISSING = 0.1  # share of a model's tokens: the sizes of embeddings are rounded up
_MOST_OUTSIDE = 64  # added tokens beyond a model's, such as marks of images
_LOOK_BACK = 4  # tokens before a forced text that may merge with it


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
        calls: str | None = None,
    ):
        """`pieces[i]` holds the bytes of token `i`; `encode` maps text to canonical token ids.
        `call` are the control tokens of the model's calls, or `calls` is the name of a form that
        begins them with text (`MARKUPS`).

        Raises `GrammarError` if `pad` or a stop is not a token.
        """
        for name, token in (("pad", pad), *(("stop", stop) for stop in stops)):
            if not 0 <= token < len(pieces):
                raise GrammarError(f"{name} token {token} is outside of {len(pieces)} tokens")
        self.control = frozenset(control) | {pad, *stops}
        self.pieces = [b"" if i in self.control else bytes(p) for i, p in enumerate(pieces)]
        self.stops, self.pad, self.thought, self.call = tuple(stops), pad, thought, call
        self.calls = calls if call is None else call.form  # None: in no form that is known
        self.encode = encode
        self._canonical = lru_cache(maxsize=4096)(partial(canonical_tokens, self))

    @classmethod
    def from_tokenizer(
        cls,
        tokenizer: PreTrainedTokenizerBase,
        size: int,
        stops: Sequence[int],
        pad: int,
        thought: tuple[str, str] | None = None,
        channel: tuple[str, str] | None = THOUGHT,
        call: tuple[str, str, str] | None = CALL,
        control: Collection[int] = (),
        calls: str | None = None,
    ) -> "Vocabulary":
        """Return the vocabulary of a Hugging Face tokenizer, for a model with `size` logits.

        `thought` holds the texts that open and close reasoning; without them these are the tokens
        in `channel`, if the tokenizer has both. `call` are the tokens around a call and around its
        strings, likewise; without them, `calls` is the name of the form of calls. `control` are
        more tokens that no text may hold. Added tokens from `size` on are ignored: a tokenizer may
        have some for images. An id without a piece has no bytes, so that no grammar allows it.
        Raises `GrammarError` for a tokenizer of another model: one with other tokens from `size`
        on, or with too few.
        """
        ids = tokenizer.get_vocab()
        special = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
        _check_pieces(ids, tokenizer.added_tokens_decoder, size)
        info = xgr.TokenizerInfo.from_huggingface(
            tokenizer, vocab_size=size, stop_token_ids=list(stops)
        )

        def encode(text: str) -> list[int]:
            if isinstance(tokenizer, PreTrainedTokenizerFast):  # takes a tenth of the time
                return tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids
            return tokenizer.encode(text, add_special_tokens=False)

        if thought is None and channel is not None and ids.keys() >= set(channel):
            thought = channel
        markers = None
        if call is not None and ids.keys() >= set(call):
            markers = GemmaMarkers(*(ids[name] for name in call))
        for kind in (MistralMarkers, MistralListMarkers):
            if markers is None and calls == kind.form and ids.keys() >= set(kind.names):
                markers = kind(*(ids[name] for name in kind.names))
        return cls(
            info.decoded_vocab[:size],
            control={i for i in {*special, *tokenizer.all_special_ids, *control} if i < size},
            stops=stops,
            pad=pad,
            thought=thought and Markers(*(tuple(encode(text)) for text in thought)),
            encode=encode,
            call=markers,
            calls=calls,
        )

    def __len__(self) -> int:
        return len(self.pieces)

    def index(self) -> None:
        """Compute all cached properties now, which takes 1 s at 262,144 tokens."""
        _ = self.trie, self.quoted, self.spells_every_byte, self.longest

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
            spelled = parts if kind is int else fewest_tokens(b"".join(parts), self.trie)
            if spelled is None:
                return None
            tokens += spelled
        return tokens

    def beginnings(self, *texts: bytes) -> list[int]:
        """Return the tokens that are beginnings of one of `texts`."""
        nodes = np.fromiter({node for text in texts for node in self.trie.along(text)}, np.int32)
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


def _check_pieces(ids: Mapping[str, int], added: Collection[int], size: int) -> None:
    """Raise `GrammarError` unless the pieces `ids` are those of a model with `size` tokens; a few
    `added` tokens may be more."""
    outside = [token for token in ids.values() if not 0 <= token < size]
    if len(outside) > _MOST_OUTSIDE or not all(token in added for token in outside):
        raise GrammarError(
            f"tokenizer.json: {len(outside):,} of its {len(ids):,} pieces have ids outside of "
            f"the model's {size:,} tokens (vocab_size in config.json), such as {outside[0]}; only "
            f"added tokens may, and at most {_MOST_OUTSIDE}"
        )
    missing = size - len({token for token in ids.values() if token < size})
    if missing > size * _MOST_MISSING:
        raise GrammarError(
            f"tokenizer.json has no piece for {missing:,} of the model's {size:,} tokens "
            f"(vocab_size in config.json): at most {_MOST_MISSING:.0%} may be without one"
        )
