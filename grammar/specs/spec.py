"""What every kind of constraint has in common, before it meets a vocabulary."""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from dlm.grammar.rules.rules import Rules
from dlm.grammar.tokens import CallMarkers, VocabularySlice

if TYPE_CHECKING:
    from dlm.grammar.vocabulary import Vocabulary


class Spec(ABC):
    """What a user may ask the output to be. Frozen, and checked when it is made."""

    kind: ClassVar[str]  # as errors name it

    @property
    @abstractmethod
    def key(self) -> Hashable:
        """Equal for specs that mean the same rules, and only for those."""

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
        """Its rules may be wider than what it means: `value` decides."""
        return False

    @property
    def opens_free(self) -> bool:
        """The answer may begin with any text, up to its first tool call: `value` never refuses that
        text, and a request may say what ends it."""
        return False

    @property
    def parts(self) -> "tuple[Spec, ...]":
        """Other specs that the user wrote within this one."""
        return ()

    @abstractmethod
    def rules(self, markers: CallMarkers | None) -> Rules:
        """What it means as rules; `markers` are the vocabulary's, for specs with `calls`.

        Raises `InvalidGrammarError` for what cannot be expressed, or takes too much work.
        """

    @abstractmethod
    def value(self, text: str) -> Any:
        """What a finished `text` means; `InvalidValueError` if the spec refuses it after all."""

    def instance(self, value: Any, text: str) -> Any:
        """What the caller gets for the `value` of a finished `text`; `InvalidValueError` where a
        class of the caller's refuses it."""
        return value

    def read(self, tokens: Sequence[int], vocabulary: "Vocabulary | VocabularySlice") -> Any:
        """What a finished answer means; `InvalidValueError` if the spec refuses it after all."""
        return self.value(vocabulary.text(tokens))
