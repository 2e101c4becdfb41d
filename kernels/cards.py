"""Known cards: GPUs with their rates, for floors below which no kernel and no step gets."""

from dataclasses import dataclass


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
    ),
    Card(
        name="RTX 5090",
        device="NVIDIA GeForce RTX 5090",
        sm=120,
        processors=170,
        clock=2.4e9,
        bandwidth=1.792e12,
        bf16=209.5e12,
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
