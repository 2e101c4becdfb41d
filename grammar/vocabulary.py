"""A tokenizer as a grammar sees it: the bytes of every token, and which tokens are not text."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import takewhile

import numpy as np
import xgrammar as xgr
from transformers import PreTrainedTokenizerBase

from dlm.grammar.errors import GrammarError

THOUGHT = ("<|channel>", "<channel|>")  # around reasoning, in Gemma 4's chat format
CALL = ("<|tool_call>", "<tool_call|>", '<|"|>')  # around a call and its strings, likewise
_LOOK_BACK = 4  # tokens before a forced text that may merge with it


@dataclass(frozen=True, slots=True)
class Markers:
    """Control tokens that open and close reasoning."""

    open: int
    close: int


@dataclass(frozen=True, slots=True)
class CallMarkers:
    """Control tokens that open and close a tool call, and quote a string within it."""

    open: int
    close: int
    quote: int


class Vocabulary:
    """The pieces of a tokenizer, by id.

    A control token has no bytes here, although its name is plain ASCII: a grammar's alphabet is
    text, and a JSON string must not be able to swallow `<turn|>`.
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
        """`pieces[i]` are the bytes of token `i`; `encode` maps text to canonical token ids."""
        for name, token in (("pad", pad), *(("stop", stop) for stop in stops)):
            if not 0 <= token < len(pieces):
                raise GrammarError(f"{name} token {token} is outside of {len(pieces)} tokens")
        self.control = frozenset(control) | {pad, *stops}
        self.pieces = [b"" if i in self.control else bytes(p) for i, p in enumerate(pieces)]
        self.stops, self.pad, self.thought, self.call = tuple(stops), pad, thought, call
        self._encode = encode
        self._canonical = lru_cache(maxsize=4096)(self._tokenize_after)

    @classmethod
    def from_tokenizer(
        cls, tokenizer: PreTrainedTokenizerBase, size: int, stops: Sequence[int], pad: int
    ) -> "Vocabulary":
        """Of a Hugging Face tokenizer, for a model with `size` logits a position.

        Tokens behind the model's last one, which Gemma's tokenizer has for images, do not count.
        """
        known = tokenizer.get_vocab()
        info = xgr.TokenizerInfo.from_huggingface(tokenizer, vocab_size=max(size, len(known)))
        special = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
        markers = [known.get(name) for name in THOUGHT]
        call = [known.get(name) for name in CALL]
        return cls(
            info.decoded_vocab[:size],
            control={i for i in special | set(tokenizer.all_special_ids) if i < size},
            stops=stops,
            pad=pad,
            thought=None if None in markers else Markers(*markers),
            encode=lambda text: tokenizer.encode(text, add_special_tokens=False),
            call=None if None in call else CallMarkers(*call),
        )

    def __len__(self) -> int:
        return len(self.pieces)

    def info(self, calls: bool = False) -> xgr.TokenizerInfo:
        """For xgrammar. It takes tokens without bytes for special, and never allows them.

        With `calls`, a grammar can name the markers of tool calls by their ids; no text spells
        them, since their bytes there are no UTF-8.
        """
        pieces = list(self.pieces)
        if calls and self.call is not None:
            for token in (self.call.open, self.call.close, self.call.quote):
                pieces[token] = b"\xff%d" % token
        return xgr.TokenizerInfo(pieces, vocab_size=len(self), stop_token_ids=list(self.stops))

    @cached_property
    def text_words(self) -> np.ndarray:
        """Every token but the control tokens, as packed bits: `v % 32` of word `v // 32`."""
        bits = np.ones(-(-len(self) // 32) * 32, dtype=bool)
        bits[list(self.control)] = False
        return np.packbits(bits, bitorder="little").view(np.uint32)

    def text(self, tokens: Sequence[int]) -> str:
        """What `tokens` say, without control tokens; U+FFFD stands for bytes that are no UTF-8."""
        return b"".join(self.pieces[token] for token in tokens).decode("utf-8", "replace")

    def canonical(self, before: Sequence[int], text: str) -> list[int]:
        """The tokens that certainly spell `text` after the tokens `before`, as the model would.

        The last piece of `text` is left out, since it may merge with what follows, and so is all
        from a control token on: `text` is to be spelled, whatever it reads like. Empty where the
        tokenizer would merge across the boundary behind `before`.
        """
        return list(self._canonical(tuple(before[-_LOOK_BACK:]), text))

    def _tokenize_after(self, before: tuple[int, ...], text: str) -> tuple[int, ...]:
        while before and not self.pieces[before[0]]:
            before = before[1:]
        for start in range(len(before) or 1):
            context = before[start:]
            prefix = b"".join(self.pieces[token] for token in context).decode("utf-8", "replace")
            tokens = tuple(self._encode(prefix + text))
            if tokens[: len(context)] == context:
                spelled = takewhile(lambda t: t not in self.control, tokens[len(context) :])
                return tuple(spelled)[:-1]
        return ()
