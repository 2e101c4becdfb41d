"""The base class of constraints that a user may choose.

A spec does not depend on a vocabulary.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from typing import Any, ClassVar

from dlm.grammar.rules.rules import Rules
from dlm.grammar.vocabulary.pieces import CallMarkers, TokenPieces

WRITTEN = "_written"  # the attribute with rules that are written, until they are taken


class Spec(ABC):
    """A constraint that a user may choose. Frozen, and validated by its constructor."""

    kind: ClassVar[str]  # the name in error messages

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy and another process get: all but rules, which one of them takes."""
        state = dict(vars(self))
        state.pop(WRITTEN, None)
        return state

    def take_written(self) -> Any:
        """Return what is written of the rules, and forget it; None: nothing. Another process, or a
        copy, that gets it by `put_written` does not write it again."""
        return vars(self).pop(WRITTEN, None)

    def put_written(self, written: Any) -> None:
        """Use what an equal spec had written, which nothing else may use."""
        if written is not None:
            vars(self)[WRITTEN] = written

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
        """Whether answers may hold calls of tools."""
        return False

    def in_form(self, form: str | None) -> "Spec":
        """Return the spec for a model that writes calls in this form; None: in none that is known.
        Raises `InvalidGrammarError` if it cannot be written so."""
        return self

    @property
    def checked(self) -> bool:
        """Whether finished answers need a check by `value`, since the rules may allow more."""
        return False

    @property
    def enforced(self) -> bool:
        """Whether the rules allow nothing that `value` would refuse."""
        return not self.checked

    @property
    def opening(self) -> str:
        """Text with which a call begins; empty if a control token or nothing opens calls."""
        return ""

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

    @property
    def portable(self) -> "Spec":
        """Spec of the same rules without classes of the user: another process may be unable to load
        those of a script or of a notebook, and only `instance` needs them."""
        return self

    @abstractmethod
    def rules(self, markers: CallMarkers | None) -> Rules:
        """Return the rules. `markers` are the vocabulary's, for calls that begin with one of them.

        Raises `InvalidGrammarError` if rules can not express the spec, or take too much work.
        """

    def value(self, text: str) -> Any:
        """Return the value of a finished `text`. Raises `InvalidValueError` if it is refused."""
        return text

    def instance(self, value: Any, text: str) -> Any:
        """Return the object that the user gets for a finished `text` and its `value`.

        Raises `InvalidValueError` if the user's class refuses the value.
        """
        return value

    def read(self, tokens: Sequence[int], vocabulary: TokenPieces) -> Any:
        """Return the value of finished `tokens`. Raises `InvalidValueError` if it is refused."""
        return self.value(vocabulary.text(tokens))
