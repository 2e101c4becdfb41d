"""The built-in model's vocabulary, and a compiler for it."""

import pytest
from values import V

from dlm.grammar import Compiler, Vocabulary


@pytest.fixture(scope="module")
def vocabulary(chat):
    return Vocabulary.from_tokenizer(chat.tokenizer, V, (1, 106, 50), 0)


@pytest.fixture(scope="module")
def compiler(vocabulary):
    return Compiler(vocabulary)
