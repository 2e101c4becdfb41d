"""The base class of all constraints that a user may choose, independent of a vocabulary."""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from dlm.grammar.rules.rules import Rules
from dlm.grammar.tokens import CallMarkers, VocabularySlice

if TYPE_CHECKING:
    from dlm.grammar.vocabulary import Vocabulary


class Spec(ABC):
    """A constraint that a user may choose. Frozen, and validated by its constructor."""

    kind: ClassVar[str]  # the name in error messages

    @property
    @abstractmethod
    def key(self) -> Hashable:
        """A key that is equal for specs with equal rules, and only for those."""

    @property
    @abstractmethod
    def source(self) -> Any:
        """The text or JSON data that the user wrote; None if the spec takes none."""

    @property
    def calls(self) -> bool:
        """Whether the rules use the control tokens of tool calls."""
        return False

    @property
    def checked(self) -> bool:
        """Whether finished answers need a check by `value`, since the rules may allow more."""
        return False

    @property
    def opens_free(self) -> bool:
        """Whether the answer may begin with any text, up to its first tool call.

        `value` never refuses that text, and stop strings of a request apply to it.
        """
        return False

    @property
    def parts(self) -> "tuple[Spec, ...]":
        """Other specs that the user wrote within this one."""
        return ()

    @abstractmethod
    def rules(self, markers: CallMarkers | None) -> Rules:
        """Return the rules. `markers` are the vocabulary's, needed by specs with `calls`.

        Raises `InvalidGrammarError` if rules can not express the spec, or take too much work.
        """

    @abstractmethod
    def value(self, text: str) -> Any:
        """Return the value of a finished `text`. Raises `InvalidValueError` if it is refused."""

    def instance(self, value: Any, text: str) -> Any:
        """Return the object that the user gets for a finished `text` and its `value`.

        Raises `InvalidValueError` if the user's class refuses the value.
        """
        return value

    def read(self, tokens: Sequence[int], vocabulary: "Vocabulary | VocabularySlice") -> Any:
        """Return the value of finished `tokens`. Raises `InvalidValueError` if it is refused."""
        return self.value(vocabulary.text(tokens))
