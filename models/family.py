"""Declaration of a family of models: all that a loader, a loop or a chat has to know of it.

A family is plain data and functions. To import it takes no torch: functions import what they need
when they are called.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dlm.models.shape import Caching

JsonFile = Mapping[str, Any]
"""Parsed file of a model directory, such as its `config.json`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatMarkup:
    """Texts by which a chat format marks turns, reasoning and calls. Those of control tokens are
    the tokens' names."""

    turn: str = ""  # beginning of the model's turn; empty: nothing is added to a prompt
    thought: tuple[str, str] | None = None  # before and after reasoning; None: there is none
    channel: str = ""  # name that the model writes after the first of these
    call: tuple[str, str, str] | None = None  # before and after a call, and around its strings

    @property
    def empty_thought(self) -> str:
        """Text of reasoning that says nothing; empty without reasoning."""
        if self.thought is None:
            return ""
        begin, end = self.thought
        return f"{begin}{self.channel}\n{end}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """Options of a model that is loaded, checked already. A family may leave out those that mean
    nothing to it."""

    device: Any  # a `torch.device`
    dtype: Any  # a `torch.dtype`: of floats
    stored: Any  # a `torch.dtype`: of keys and values
    slots: int
    cache_tokens: int | None  # of all slots together; None: what is left of a GPU, or unbounded
    graphs: Any  # "auto" or "off"
    images: bool  # whether a vision tower is loaded
    read: Callable[[], Any]
    """Reads the weights with the shared loader, for a family that has a `layout`."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """Model of a directory, its cache and its vision tower."""

    model: Any
    cache: Any = None  # None: the model's own, made for the slots
    tower: Any = None  # None: requests have no images


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """Family of models, recognised by the `config.json` of a directory."""

    name: str
    architectures: tuple[str, ...]
    model_types: tuple[str, ...] = ()
    load: Callable[[Path, LoadOptions], Loaded]
    sampler: Callable[[JsonFile, JsonFile], tuple[str, Mapping[str, Any]]]
    """Name of the sampler and its settings, by `config.json` and `generation_config.json`."""
    stops: tuple[int, ...]  # unless a `generation_config.json` has them
    pad: int  # likewise
    excluded: Callable[[JsonFile], tuple[int, ...]] = lambda config: ()
    """Control tokens that are never written, by `config.json`; besides the sampler's mask."""
    markup: ChatMarkup = ChatMarkup()
    caches: Caching = "causally"  # how prompts and finished canvases are encoded
    layout: Callable[[], Any] | None = None
    """The `Layout` of its directories, if the shared loader reads, plans and quantises them."""

    def answers_to(self, config: JsonFile) -> bool:
        """Return whether a directory with this `config.json` is of the family."""
        architectures = config.get("architectures")
        listed = architectures if isinstance(architectures, list) else []
        return config.get("model_type") in self.model_types or any(
            name in self.architectures for name in listed
        )
