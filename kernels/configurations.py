"""Configurations of the kernels that have several, and the rules that choose among them.

A configuration is the constants of a launch that change its time: sizes of tiles, warps, stages.
The candidates of a kernel depend on the SM, and each is compiled offline (`offline.py`). A rule
chooses by the SM and the shape alone, never by a clock: some candidates add in another order, and
an answer must not depend on which of them a timer preferred. `scripts/bench_kernels.py
--configurations` times all candidates beside the one of the rule, for those who change a rule.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from dlm.kernels.gpus import Target, target_of

Configuration = dict[str, int]
Shape = Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class TunableKernel:
    """Kernel with several configurations, whose numbers have the names `options`."""

    name: str
    options: tuple[str, ...]
    candidates: Callable[[int, Shape], Sequence[Configuration]]  # of an SM, for a shape
    rule: Callable[[Target, Shape, Sequence[Configuration]], Configuration]

    def numbers(self, configuration: Configuration) -> list[int]:
        """Return the numbers of a configuration in the order of `options`, as operators take it."""
        return [configuration[name] for name in self.options]

    def configuration(self, numbers: Sequence[int]) -> Configuration:
        """Invert `numbers`."""
        return dict(zip(self.options, numbers, strict=True))

    def by_rule(self, target: Target, shape: Shape) -> Configuration:
        """Return the configuration of the rule for a shape."""
        return self.rule(target, shape, self.candidates(target.sm, shape))

    def choose(self, device: torch.device, **shape: int) -> Configuration:
        """Return the configuration with which the kernel is launched at a shape."""
        return self.by_rule(target_of(device), shape)


_MOST_ROWS = {10: 32}
"""Rows of activations that a warp's instruction takes, by SM, where weights of four bits are its
second operand (`tiles.py`)."""


def _fitting(tiles: Sequence[Configuration], sm: int, four_bit: bool) -> Sequence[Configuration]:
    """Return the tiles with BLOCK_N rows of activations that an SM supports."""
    if not four_bit or sm not in _MOST_ROWS:
        return tiles
    return [tile for tile in tiles if tile["BLOCK_N"] <= _MOST_ROWS[sm]]


# Experts: BLOCK_N slots by BLOCK_M rows of weights, by the bits of these. Measured on an H100.
_GATE_UP: dict[int, tuple[Configuration, ...]] = {
    4: (
        {"BLOCK_N": 32, "BLOCK_M": 128, "num_warps": 4, "num_stages": 3},
        {"BLOCK_N": 64, "BLOCK_M": 64, "num_warps": 4, "num_stages": 3},
    ),
    16: (
        {"BLOCK_N": 16, "BLOCK_M": 64, "num_warps": 4, "num_stages": 4},
        {"BLOCK_N": 32, "BLOCK_M": 64, "num_warps": 4, "num_stages": 3},
        {"BLOCK_N": 64, "BLOCK_M": 64, "num_warps": 8, "num_stages": 3},
    ),
}
_DOWN: dict[int, tuple[Configuration, ...]] = {
    4: (
        {"BLOCK_N": 32, "BLOCK_M": 128, "num_warps": 4, "num_stages": 4},
        {"BLOCK_N": 64, "BLOCK_M": 128, "num_warps": 4, "num_stages": 3},
    ),
    16: _GATE_UP[16],
}


def _of_experts(target: Target, shape: Shape, tiles: Sequence[Configuration]) -> Configuration:
    """Return the first tile that holds twice an average expert's slots, or the last. An expert of
    twice the mean then takes one tile, since its weights are decoded for each."""
    fits = (each for each in tiles if each["BLOCK_N"] * shape["experts"] >= 2 * shape["slots"])
    return next(fits, tiles[-1])


_TILE = "BLOCK_N", "BLOCK_M", "num_warps", "num_stages"


def _product_of_experts(name: str, tiles: dict[int, tuple[Configuration, ...]]) -> TunableKernel:
    """Return a kernel with the `tiles` of each number of bits."""
    return TunableKernel(
        name=name,
        options=_TILE,
        candidates=lambda sm, shape: _fitting(tiles.get(shape["bits"], ()), sm, shape["bits"] == 4),
        rule=_of_experts,
    )


GATE_UP = _product_of_experts("gate_up", _GATE_UP)
DOWN = _product_of_experts("down", _DOWN)

# W4A16: BLOCK_N rows of activations by BLOCK_M of weights per program, from the largest. UNROLL
# groups of 64 columns make an iteration: with few weights per lane, the other instructions in it
# matter.
_WIDE: tuple[Configuration, ...] = (
    {"BLOCK_N": 64, "BLOCK_M": 128, "UNROLL": 1, "num_warps": 4, "num_stages": 3},
    {"BLOCK_N": 32, "BLOCK_M": 128, "UNROLL": 1, "num_warps": 4, "num_stages": 4},
    {"BLOCK_N": 32, "BLOCK_M": 64, "UNROLL": 2, "num_warps": 4, "num_stages": 3},
    {"BLOCK_N": 16, "BLOCK_M": 64, "UNROLL": 2, "num_warps": 4, "num_stages": 3},
)
_W4A16: dict[int, Sequence[Configuration]] = {
    9: (
        {"BLOCK_N": 64, "BLOCK_M": 128, "UNROLL": 1, "num_warps": 4, "num_stages": 3},
        {"BLOCK_N": 64, "BLOCK_M": 64, "UNROLL": 2, "num_warps": 4, "num_stages": 3},
        {"BLOCK_N": 32, "BLOCK_M": 64, "UNROLL": 2, "num_warps": 4, "num_stages": 3},
        {"BLOCK_N": 16, "BLOCK_M": 64, "UNROLL": 2, "num_warps": 4, "num_stages": 3},
    ),
    10: _fitting(_WIDE, 10, True),
}


def _of_w4a16(target: Target, shape: Shape, tiles: Sequence[Configuration]) -> Configuration:
    """Return the largest tile with programs for two thirds of the GPU's processors, or the last.
    Rows of activations fill more than half of it."""
    for tile in tiles:
        programs = -(-shape["outputs"] // tile["BLOCK_M"]) * -(-shape["rows"] // tile["BLOCK_N"])
        if tile["BLOCK_N"] < 2 * shape["rows"] and 3 * programs >= 2 * target.processors:
            return tile
    return tiles[-1]


W4A16 = TunableKernel(
    name="w4a16",
    options=("UNROLL", *_TILE),
    candidates=lambda sm, shape: _W4A16.get(sm, _WIDE),
    rule=_of_w4a16,
)

# W4A4: BLOCK_N activations by BLOCK_M weights per program. Below 128 x 128, SM 10.0 has no
# instruction.
_W4A4: tuple[Configuration, ...] = (
    {"BLOCK_N": 128, "BLOCK_M": 128, "num_warps": 8, "num_stages": 3},
    {"BLOCK_N": 16, "BLOCK_M": 128, "num_warps": 4, "num_stages": 3},
)


W4A4 = TunableKernel(
    name="w4a4",
    options=_TILE,
    candidates=lambda sm, shape: _W4A4[:1] if sm == 10 else _W4A4,
    rule=lambda target, shape, tiles: tiles[0 if shape["rows"] > 64 else -1],
)

# Experts in W4A4: BLOCK_N slots by BLOCK_M rows of weights. None was timed on a card.
_EXPERTS_W4A4: tuple[Configuration, ...] = (
    {"BLOCK_N": 16, "BLOCK_M": 128, "num_warps": 4, "num_stages": 3},
    {"BLOCK_N": 64, "BLOCK_M": 128, "num_warps": 8, "num_stages": 3},
    {"BLOCK_N": 128, "BLOCK_M": 128, "num_warps": 8, "num_stages": 3},
)


def _product_in_w4a4(name: str) -> TunableKernel:
    return TunableKernel(
        name=name,
        options=_TILE,
        candidates=lambda sm, shape: _EXPERTS_W4A4[-1:] if sm == 10 else _EXPERTS_W4A4,
        rule=_of_experts,
    )


GATE_UP_W4A4 = _product_in_w4a4("gate_up_w4a4")
DOWN_W4A4 = _product_in_w4a4("down_w4a4")

# Attention, by head dim and bytes of a cached number: rows of a tile (queries times the heads of a
# group), cached keys and keys of the canvas at a time, numbers of a value per program.
_TILES: dict[tuple[int, int], Configuration] = {
    key: {"BLOCK_M": 64, "BLOCK_N": 64, "DV": min(key[0], 256), "num_stages": 2, **tile}
    for key, tile in {
        **{
            (D, size): {"OWN_N": 64, "num_warps": warps}
            for D, warps in ((16, 4), (32, 8), (64, 8), (128, 8))
            for size in (1, 2)
        },
        (256, 1): {"OWN_N": 32, "num_warps": 8},
        (256, 2): {"BLOCK_N": 32, "OWN_N": 32, "num_warps": 8},
        (512, 1): {"BLOCK_M": 32, "OWN_N": 32, "num_warps": 8},
        (512, 2): {"BLOCK_M": 32, "BLOCK_N": 32, "OWN_N": 32, "num_warps": 8},
    }.items()
}
# For SMs whose blocks may use 200 KB of shared memory and more; measured on an H100.
_LARGE_TILES: dict[tuple[int, int], Configuration] = {
    (256, 1): {**_TILES[256, 1], "BLOCK_M": 128, "OWN_N": 64},
    (256, 2): {**_TILES[256, 2], "BLOCK_M": 128, "BLOCK_N": 64, "OWN_N": 64},
    (512, 1): {**_TILES[512, 1], "BLOCK_M": 128, "OWN_N": 64, "num_stages": 1},
    (512, 2): {**_TILES[512, 2], "BLOCK_M": 128},
}
_LARGE = (9, 10)  # those SMs
HEADS = sorted(_TILES)  # head dims, and bytes of a cached number, of which there are kernels


_OPTIONS: tuple[str, ...] = ("BLOCK_M", "BLOCK_N", "OWN_N", "DV", "num_warps", "num_stages")
# Further candidates. With large shared memory, those of wide heads were among the fastest of a
# sweep of an H100, before the kernel had its present form. For heads of 128, and for SM 8.0 and
# 12.0, none was timed; they compile without spilled registers.
_NARROW = (16, 32, 32, 128, 4, 3), (32, 64, 32, 128, 4, 2)
_NARROW_LARGE = (16, 64, 32, 128, 4, 3), (64, 64, 64, 128, 4, 2), (128, 64, 64, 128, 8, 3)
_MORE: dict[bool, dict[tuple[int, int], tuple[tuple[int, ...], ...]]] = {  # by `sm in _LARGE`
    True: {
        (128, 1): _NARROW_LARGE,
        (128, 2): _NARROW_LARGE,
        (256, 1): ((64, 128, 64, 256, 4, 2), (64, 64, 64, 256, 8, 3)),
        (256, 2): ((64, 32, 32, 256, 8, 3), (128, 32, 32, 256, 8, 2)),
        (512, 1): ((128, 32, 32, 256, 8, 2),),
        (512, 2): ((128, 64, 64, 256, 8, 1),),
    },
    False: {
        (128, 1): _NARROW,
        (128, 2): _NARROW,
        (256, 1): ((64, 32, 32, 256, 8, 2),),
        (256, 2): ((64, 32, 32, 256, 8, 1), (32, 32, 32, 256, 4, 2)),
        (512, 1): ((32, 32, 32, 256, 8, 2),),
        (512, 2): ((32, 32, 32, 256, 4, 2), (32, 32, 32, 256, 8, 1)),
    },
}


def _all_tiles(large: bool, key: tuple[int, int]) -> tuple[Configuration, ...]:
    tables = (_LARGE_TILES, _TILES) if large else (_TILES,)
    more = (dict(zip(_OPTIONS, numbers, strict=True)) for numbers in _MORE[large].get(key, ()))
    return (*(table[key] for table in tables if key in table), *more)


_ATTENTION = {(large, *key): _all_tiles(large, key) for large in (False, True) for key in HEADS}
ATTENTION = TunableKernel(
    name="attention",
    options=_OPTIONS,
    candidates=lambda sm, shape: _ATTENTION.get(
        (sm in _LARGE, shape["head_dim"], shape["bytes"]), ()
    ),
    rule=lambda target, shape, tiles: tiles[0],
)

# Vocabulary pass, first kernel: tokens that a block reduces, eight a thread at once.
_CHUNKS: tuple[Configuration, ...] = (
    {"CHUNK": 4096, "num_warps": 4},
    {"CHUNK": 2048, "num_warps": 4},
    {"CHUNK": 4096, "num_warps": 8},
    {"CHUNK": 8192, "num_warps": 8},
)


VOCABULARY = TunableKernel(
    name="vocabulary",
    options=("CHUNK", "num_warps"),
    candidates=lambda sm, shape: _CHUNKS,
    rule=lambda target, shape, tiles: tiles[0],
)

_ALL = (GATE_UP, DOWN, GATE_UP_W4A4, DOWN_W4A4, W4A16, W4A4, ATTENTION, VOCABULARY)
KERNELS = {one.name: one for one in _ALL}
