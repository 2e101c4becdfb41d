"""Devices: what launchers and rules have to know of them, and known GPUs with their rates.

Rules and layouts name an SM by its major version: 9 stands for SM 9.0 and for the interpreter.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch

FOUR_BIT_SMS = ((10, 0), (12, 0))
"""SMs whose tensor cores multiply matrices of four bits with block scales (W4A4), by Triton from
3.6 on."""

ROWS = 16
"""Number of rows that a matrix product must have, or a multiple of it, so that a row's result does
not depend on their number. Otherwise libraries may take another path and add in another order, and
the last bits of a row would depend on the rest of its batch."""


class Target(NamedTuple):
    """GPU of a launch, as far as it matters to a rule."""

    sm: int
    processors: int


def target_of(device: torch.device) -> Target:
    """Return a GPU as a target; one of SM 9.0 for the interpreter, and while a pass is traced."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return Target(9, 1)
    properties = torch.cuda.get_device_properties(device)
    return Target(properties.major, properties.multi_processor_count)


def major(device: torch.device) -> int:
    """Return the major version of a GPU's SM, as `target_of` has it."""
    return target_of(device).sm


def capability(device: torch.device) -> tuple[int, int] | None:
    """Return the version of a GPU's SM; None for another device."""
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else None


def has_e4m3(device: torch.device) -> bool:
    """Whether kernels on a device know the type e4m3: on GPUs from SM 8.9, and interpreted."""
    sm = capability(device)
    return sm is None or sm >= (8, 9)


def multiplies_four_bits(device: torch.device) -> bool:
    """Whether a GPU's tensor cores multiply NVFP4 matrices."""
    return capability(device) in FOUR_BIT_SMS


def four_bit_obstacle(device: torch.device) -> str | None:
    """Return why a GPU computes no W4A4; None if it does, and for other devices, where torch or the
    interpreter does."""
    sm = capability(device)
    if sm is None or sm in FOUR_BIT_SMS:
        return None
    capable = " and ".join(map(dotted, FOUR_BIT_SMS))
    return f"takes a GPU of SM {capable}, this one is of SM {dotted(sm)}"


def dotted(version: Iterable[int]) -> str:
    """Return a version as it is written."""
    return ".".join(map(str, version))


def card_name(device: torch.device) -> str:
    """Return the name of a GPU, as torch has it, or the type of another device."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def runs_kernel(device: torch.device, by_kernel: bool | None) -> bool:
    """Whether a launcher runs its kernel on a device: on GPUs, unless `by_kernel` overrides it."""
    return device.type != "cpu" if by_kernel is None else by_kernel


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """GPU with the number of its SM, and with rates per second that it can reach."""

    name: str
    device: str  # as torch names it
    sm: int  # 90 is SM 9.0
    processors: int
    clock: float  # Hz
    bandwidth: float  # bytes
    bf16: float  # bf16 operations of matrices, summed in fp32
    four_bit: float | None = None  # operations of NVFP4 matrices; None: it does not multiply them


# Rates by their makers, except for the H100: its rates are those of a copy and of a large product,
# measured on one. The H200 has the H100's processors at the same clock.
CARDS = (
    Card(
        name="RTX PRO 6000",
        device="NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
        sm=120,
        processors=188,
        clock=2.6e9,
        bandwidth=1.792e12,
        bf16=503.8e12,
        four_bit=2015.2e12,
    ),
    Card(
        name="RTX 5090",
        device="NVIDIA GeForce RTX 5090",
        sm=120,
        processors=170,
        clock=2.4e9,
        bandwidth=1.792e12,
        bf16=209.5e12,
        four_bit=1676e12,
    ),
    Card(
        name="H100",
        device="NVIDIA H100 80GB HBM3",
        sm=90,
        processors=132,
        clock=1.75e9,
        bandwidth=3.0e12,
        bf16=750e12,
    ),
    Card(
        name="H200",
        device="NVIDIA H200",
        sm=90,
        processors=132,
        clock=1.75e9,
        bandwidth=4.8e12,
        bf16=989e12,
    ),
)


def card_of(device: str) -> Card | None:
    """Return the card that torch names `device`; None if it is not known."""
    return next((card for card in CARDS if card.device == device), None)
