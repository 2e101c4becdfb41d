"""Engines around doubles of denoisers, with the tokenizer of the built-in model."""

from collections.abc import Callable
from typing import Any

import pytest
from decodings import DECODINGS
from doubles import CANVAS, Double, Scripted
from native_calls import answer_tokens
from values import PROMPT, V

from dlm import DecodeConfig, Engine
from dlm.chat import Chat
from dlm.engine import BUILT_IN
from dlm.grammar import ToolCall
from dlm.samplers import EntropyBound

DRAFTED = DECODINGS["drafted"]
CONFIG = DecodeConfig(sampler=EntropyBound(max_steps=6, confidence=0.02), patience=3)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave two of three cases of a test to `make test-all` where answers are drafted: the loop is
    that of left to right, where all cases run, and another test has the same tokens of both."""
    for item in items:
        case = getattr(item, "callspec", None)
        if case is not None and any(value is DRAFTED for value in case.params.values()):
            others = [i for name, i in case.indices.items() if case.params[name] is not DRAFTED]
            if sum(others) % 3:
                item.add_marker(pytest.mark.exhaustive)


@pytest.fixture(scope="session")
def chat() -> Chat:
    return Chat.load(BUILT_IN)


@pytest.fixture(scope="session")
def engine_of(chat: Chat) -> Callable[..., Engine]:
    def build(
        model: Double, config: DecodeConfig = CONFIG, chat: Chat = chat, **more: Any
    ) -> Engine:
        return Engine(model, chat, config, **more)

    return build


@pytest.fixture(scope="session")
def tokens_of(chat: Chat) -> Callable[[str], list[int]]:
    """Tokenize texts in which control tokens stand by name."""
    return lambda text: chat.tokenizer.encode(text, add_special_tokens=False)


@pytest.fixture
def scripted(
    engine_of: Callable[..., Engine], tokens_of: Callable[[str], list[int]]
) -> Callable[..., Engine]:
    """Build engines whose model is sure of one text after `PROMPT`, then of padding."""

    def build(text: str, canvas_length: int = CANVAS, **more: Any) -> Engine:
        script = tokens_of(text)
        return engine_of(Scripted(V, len(PROMPT), script, canvas_length=canvas_length), **more)

    return build


@pytest.fixture
def calling(engine_of: Callable[..., Engine]) -> Callable[..., Engine]:
    """Build engines whose model is sure of texts and calls after `PROMPT`, then of its end."""

    def build(*parts: str | ToolCall, canvas_length: int = CANVAS) -> Engine:
        vocabulary = engine_of(Scripted(V, len(PROMPT), [])).vocabulary
        script = [*answer_tokens(vocabulary, *parts), 106]
        return engine_of(Scripted(V, len(PROMPT), script, canvas_length=canvas_length))

    return build
