"""Modules with weights in NVFP4: matrices, stacks of them and linear layers. They do not know which
tensors of a file fill them."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from dlm.kernels.nvfp4 import NVFP4, dequantize, matmul_w4a4, rounded
from dlm.kernels.tiles import Tiles, matmul_w4a16, tiled, tiled_matrix
from dlm.models import CheckpointError
from dlm.models.backends import Backend


class NVFP4Weight(nn.Module):
    """Matrix `[R, C]` of four bits per number, or a stack `[E, R, C]` of one for each expert. A
    matrix has one tensor scale; a stack has `parts` of them for each expert, for equal parts of its
    rows. Raises `CheckpointError` if rows are not whole blocks of 16 numbers."""

    def __init__(self, *shape: int, parts: int = 1):
        super().__init__()
        *stack, R, C = shape
        if C % 16:
            raise CheckpointError(f"NVFP4 has blocks of 16 numbers, and rows of {C} are none")
        scales = (*stack, parts) if stack else ()
        self.packed = nn.Buffer(torch.empty(*stack, R, C // 2, dtype=torch.uint8))
        self.scale = nn.Buffer(torch.empty(*stack, R, C // 16, dtype=torch.float8_e4m3fn))
        self.scale_2 = nn.Buffer(torch.empty(scales, dtype=torch.float32))
        self._tiled = False

    @property
    def value(self) -> NVFP4 | Tiles:
        """Numbers in the order in which they are kept."""
        kind = Tiles if self._tiled else NVFP4
        return kind(self.packed, self.scale, self.scale_2)

    def tile(self) -> None:
        """Keep the numbers in tiles from now on, the order for kernels with activations of 16 bits.
        They take no more memory, except to fill a matrix up to a multiple of 64 rows."""
        if not self._tiled:
            rows = NVFP4(*self.value)
            tiles = tiled(rows) if self.scale_2.ndim else tiled_matrix(rows)
            self.packed, self.scale, self.scale_2 = tiles
            self._tiled = True


class NVFP4Linear(nn.Module):
    """Linear layer without bias. Its activations stay as they are (W4A16), or are quantised by
    `input_scale` as the weights are (W4A4). Torch decodes the matrix for each product, which is
    computed in fp32. The kernel of W4A16 takes it in tiles (`weight.tile`)."""

    def __init__(self, in_features: int, out_features: int):
        super().__init__()
        self.in_features, self.out_features = in_features, out_features
        self.weight = NVFP4Weight(out_features, in_features)
        # NaN if the file has none.
        self.input_scale = nn.Buffer(torch.empty((), dtype=torch.float32))
        self.backend: Backend = "torch"
        self.activation_bits = 16  # or 4

    def prepare(self) -> None:
        """Make a loaded matrix ready: in tiles for kernels of W4A16; block-scaled products take it
        in rows."""
        if self.backend == "triton" and self.activation_bits == 16:
            self.weight.tile()

    def forward(self, x: Tensor) -> Tensor:
        rows, w = x.flatten(0, -2), self.weight.value
        if isinstance(w, Tiles):
            y = matmul_w4a16(rows, w, by_kernel=True, rows=self.out_features)
        elif self.backend == "triton":
            y = matmul_w4a4(rows, w, self.input_scale, by_kernel=True)
        else:
            rows = rows.float()
            if self.activation_bits == 4:
                rows = rounded(rows, self.input_scale)
            y = F.linear(rows, dequantize(w)).type_as(x)
        return y.view(*x.shape[:-1], self.out_features)
