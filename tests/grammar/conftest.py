"""The vocabulary of the built-in model and a compiler for it."""

from pathlib import Path

import pytest
from transformers import AutoTokenizer

import dlm.models
from dlm.grammar import Compiler, Vocabulary

STOPS = [1, 106, 50]


@pytest.fixture(scope="session")
def vocabulary() -> Vocabulary:
    directory = Path(dlm.models.__file__).parent / "tiny"
    return Vocabulary.from_tokenizer(AutoTokenizer.from_pretrained(directory), 1536, STOPS, pad=0)


@pytest.fixture(scope="session")
def compiler(vocabulary: Vocabulary) -> Compiler:
    return Compiler(vocabulary)
