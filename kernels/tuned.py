"""Measured configurations of kernels: files of `dlm tune`, and the choice at a launch.

A file holds the fastest configuration of each kernel at each measured shape of one card. It is read
once, when a model is loaded, and then passed to the launchers: nothing here is global.
"""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import torch
from pydantic import BaseModel, ConfigDict, PositiveFloat, ValidationError

from dlm.kernels.configurations import KERNELS, Configuration, Shape, TunableKernel, target_of
from dlm.root_error import DlmError

FILE = "dlm_tuned.json"  # beside a model's weights
MEASURED = Path(__file__).parent / "measured"  # files of cards that are part of this package
_LOG = logging.getLogger("dlm")
_Key = tuple[str, tuple[int, ...]]  # a kernel's name, and the key of a shape


class TunedError(DlmError):
    """File of configurations that cannot be used."""


@dataclass(frozen=True, slots=True)
class Tuned:
    """Choice of configurations: the measured ones, and those of rules for all other shapes."""

    fastest: Mapping[_Key, Configuration] = field(default_factory=dict[_Key, Configuration])

    @classmethod
    def only(cls, kernel: TunableKernel, shape: Shape, configuration: Configuration) -> Self:
        """Return the choice of `configuration` for a kernel at a shape; all else is by rules."""
        return cls({(kernel.name, kernel.key(shape)): configuration})

    def choose(self, kernel: TunableKernel, device: torch.device, **shape: int) -> Configuration:
        """Return the configuration with which a kernel is launched at a shape."""
        if self.fastest and (found := self.fastest.get((kernel.name, kernel.key(shape)))):
            return found
        return kernel.by_rule(target_of(device), shape)


BY_RULE = Tuned()


class Timing(BaseModel):
    """Fastest configuration of a kernel at a shape, and its time."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    kernel: str
    shape: dict[str, int]
    configuration: dict[str, int]
    microseconds: PositiveFloat


class TunedFile(BaseModel):
    """Measured configurations of one card."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    card: str  # as torch names it
    sm: int  # 90 is SM 9.0
    date: str  # ISO 8601
    triton: str  # version
    dlm: str  # version, and the commit where it is known
    timings: list[Timing]

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a file. Raises `TunedError` unless all its configurations are those of kernels."""
        try:
            found = cls.model_validate(json.loads(path.read_text()))
        except OSError as error:
            raise TunedError(f"{path} cannot be read: {error.strerror}") from None
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "the whole"
            raise TunedError(f"{path}: {where}: {first['msg']}") from None
        except ValueError as error:
            raise TunedError(f"{path} holds no JSON: {error}") from None
        for at, timing in enumerate(found.timings):
            if problem := _problem(timing, found.sm):
                raise TunedError(f"{path}: timings.{at}: {problem}")
        return found

    def write(self, path: Path) -> None:
        path.write_text(json.dumps(self.model_dump(), indent=1) + "\n")

    def tuned(self) -> Tuned:
        keys = ((each.kernel, KERNELS[each.kernel].key(each.shape)) for each in self.timings)
        each = (timing.configuration for timing in self.timings)
        return Tuned(dict(zip(keys, each, strict=True)))


def tuned_for(
    device: torch.device, directory: Path, given: Path | None = None, measured: Path = MEASURED
) -> Tuned:
    """Return the configurations for a model in `directory` on a device.

    They are those of the file `given`; otherwise of `FILE` in the directory; otherwise of the
    package's own file of this card; otherwise all are by rules. A file that is `given` has to be
    one of this card, else it is a `TunedError`; a file that is found is ignored with a warning.
    """
    if given is not None:
        return _read(given, device)
    if (path := directory / FILE).exists():
        try:
            return _read(path, device)
        except TunedError as error:
            _LOG.warning("kernels are not tuned: %s", error)
            return BY_RULE
    own = file_of(card_name(device), measured)
    return _read(own, device) if own.exists() else BY_RULE


def card_name(device: torch.device) -> str:
    """Return the name of a GPU, as torch has it, or the type of another device."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def file_of(card: str, directory: Path = MEASURED) -> Path:
    """Return the path of a card's file in a directory of such files."""
    return directory / f"{card.replace(' ', '_').replace('/', '_')}.json"


def _read(path: Path, device: torch.device) -> Tuned:
    found, card = TunedFile.read(path), card_name(device)
    if found.card != card:
        raise TunedError(f"{path} is of another card: of {found.card}, and this one is {card}")
    return found.tuned()


def _problem(timing: Timing, sm: int) -> str | None:
    """Return why a timing is of no use; None if it is."""
    kernel = KERNELS.get(timing.kernel)
    if kernel is None:
        return f"there is no kernel {timing.kernel!r}: it takes one of {', '.join(KERNELS)}"
    try:
        kernel.key(timing.shape)
    except ValueError as error:
        return str(error)
    candidates = kernel.candidates(sm // 10, timing.shape)
    if timing.configuration not in candidates:
        return (
            f"{timing.kernel} has no configuration {timing.configuration} at {timing.shape} on SM "
            f"{sm // 10}.{sm % 10}: it takes one of {[*candidates]}"
        )
    return None
