"""Sentences of a grammar, byte by byte: the smallest vocabulary there is."""

import random

import numpy as np
import xgrammar as xgr

from dlm.grammar import Spec, Vocabulary

STOP = 256
SURROGATE = 0xED  # the first byte of all of them: no UTF-8, though xgrammar lets them through
BYTES = Vocabulary(
    [*(bytes([i]) for i in range(256)), b""],
    control=[],
    stops=[STOP],
    pad=STOP,
    thought=None,
    encode=lambda text: list(text.encode()),
)
BACKEND = xgr.GrammarCompiler(BYTES.info(), cache_enabled=False, max_threads=1)


def compiled(spec: Spec) -> xgr.CompiledGrammar:
    return BACKEND.compile_grammar(spec.grammar(BYTES))


def accepts(spec: Spec, text: str) -> bool:
    matcher = xgr.GrammarMatcher(compiled(spec))
    return matcher.accept_string(text) and matcher.is_completed()


def walk(grammar: xgr.CompiledGrammar, rng: random.Random, steps: int = 300) -> str | None:
    """A sentence of `grammar`, or None if it does not end in time. It hurries more and more."""
    matcher, row, text = xgr.GrammarMatcher(grammar), xgr.allocate_token_bitmask(1, 257), b""
    hurry = rng.choice([1, 3, 10])
    for step in range(steps):
        matcher.fill_next_token_bitmask(row)
        allowed = np.unpackbits(row.numpy().view(np.uint8), bitorder="little")[:257]
        tokens = [int(t) for t in np.flatnonzero(allowed)]
        if STOP in tokens and (len(tokens) == 1 or rng.random() < 0.6):
            return text.decode()
        weights = [
            0
            if t in (STOP, SURROGATE)
            else 0.02
            if t <= 32 or t > 127
            else hurry + step / 10
            if t in b'"]},:'
            else 1
            for t in tokens
        ]
        token = rng.choices(tokens, weights)[0]
        matcher.accept_token(token)
        text += bytes([token])
    return None
