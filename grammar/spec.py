"""What every kind of constraint has in common, before it meets a vocabulary."""

from abc import ABC, abstractmethod
from collections.abc import Hashable
from typing import Any, ClassVar

import xgrammar as xgr


class Spec(ABC):
    """What a user may ask the output to be. Frozen, and checked when it is made."""

    kind: ClassVar[str]  # as errors name it

    @property
    @abstractmethod
    def key(self) -> Hashable:
        """Equal for specs that mean the same grammar, and only for those."""

    @abstractmethod
    def grammar(self) -> xgr.Grammar:
        """Raises xgrammar's own `RuntimeError` where it cannot express the spec."""

    @abstractmethod
    def value(self, text: str) -> Any:
        """What a finished `text` means; `InvalidValueError` if the spec refuses it after all."""
