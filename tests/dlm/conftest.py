"""Engines around denoiser doubles, with the built-in model's real tokenizer."""

from collections.abc import Callable
from typing import Any

import pytest
from doubles import Double

from dlm import DecodeConfig, Engine
from dlm.chat import Chat
from dlm.engine import BUILT_IN

CONFIG = DecodeConfig(max_steps=6, confidence=0.02, patience=3)


@pytest.fixture(scope="session")
def chat() -> Chat:
    return Chat.load(BUILT_IN)


@pytest.fixture(scope="session")
def engine_of(chat: Chat) -> Callable[..., Engine]:
    def build(model: Double, config: DecodeConfig = CONFIG, **more: Any) -> Engine:
        return Engine(model, chat, config, **more)

    return build


@pytest.fixture(scope="session")
def tokens_of(chat: Chat) -> Callable[[str], list[int]]:
    """Text with control tokens by name, tokenized."""
    return lambda text: chat.tokenizer.encode(text, add_special_tokens=False)
