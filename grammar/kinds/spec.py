"""What every kind of constraint has in common, before it meets a vocabulary."""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from typing import Any, ClassVar

import xgrammar as xgr

from dlm.grammar.vocabulary import Vocabulary


class Spec(ABC):
    """What a user may ask the output to be. Frozen, and checked when it is made."""

    kind: ClassVar[str]  # as errors name it

    @property
    @abstractmethod
    def key(self) -> Hashable:
        """Equal for specs that mean the same grammar, and only for those."""

    @property
    @abstractmethod
    def source(self) -> Any:
        """What the user wrote: text, or JSON data; None if there was nothing to write."""

    @property
    def calls(self) -> bool:
        """The control tokens of tool calls are part of its alphabet."""
        return False

    @property
    def checked(self) -> bool:
        """Its grammar may be wider than what it means: `value` decides."""
        return False

    @abstractmethod
    def grammar(self, vocabulary: Vocabulary) -> xgr.Grammar:
        """Raises xgrammar's own `RuntimeError` where it cannot express the spec."""

    @abstractmethod
    def value(self, text: str) -> Any:
        """What a finished `text` means; `InvalidValueError` if the spec refuses it after all."""

    def read(self, tokens: Sequence[int], vocabulary: Vocabulary) -> Any:
        """What a finished answer means; `InvalidValueError` if the spec refuses it after all."""
        return self.value(vocabulary.text(tokens))
