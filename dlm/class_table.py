"""The classes of tokens of all automata in use, where the model is: each is sent there once."""

from typing import Any, NamedTuple

from jaxtyping import Int32, Int64
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from dlm.kernels.classes import Members
from dlm.link import Link


class Placed(NamedTuple):
    of: Int64[Tensor, " V"]  # the class of each token
    members: Members  # without class 0, whose tokens no automaton takes


class ClassTable:
    """An automaton's classes are known by the tensor that they came in, and forgotten with it."""

    def __init__(self):
        self._known: Any = WeakIdKeyDictionary()

    def place(self, classes: Int32[Tensor, " V"], link: Link) -> Placed:
        if classes not in self._known:
            tokens = classes.nonzero()[:, 0]
            of, tokens, members = link.to_device(classes.long(), tokens, classes[tokens].long())
            self._known[classes] = Placed(of, Members(tokens, members))
        return self._known[classes]


def check_size(classes: Tensor, vocab_size: int) -> None:
    """Raises `ValueError` for classes of another vocabulary."""
    if len(classes) != vocab_size:
        raise ValueError(f"classes of {len(classes)} tokens for a vocabulary of {vocab_size}")
