"""Keys and values of committed tokens: one growing buffer per slot and layer."""

import torch
from jaxtyping import Float
from torch import Tensor

from dlm.models.config import ModelConfig


class KVCache:
    """Slots of different lengths.

    `stage` writes keys and values behind a slot's committed ones without committing them: a pass
    stages what it encodes, and behind that the canvas; in the end it `advance`s past the former.
    Only `advance` and `rewind` move a slot's length.

    A buffer is `[kv_heads, capacity, head_dim]` and doubles when full. Sliding layers keep all
    their tokens too: `rewind` may need those that have left the window.
    """

    def __init__(self, config: ModelConfig, slots: int, dtype: torch.dtype, device: torch.device):
        self._layers = config.layers
        self._lengths = [0] * slots
        self._keys = [
            [
                torch.empty(c.kv_heads, 0, c.head_dim, dtype=dtype, device=device)
                for c in self._layers
            ]
            for _ in range(slots)
        ]
        self._values = [[keys.clone() for keys in slot] for slot in self._keys]

    def length(self, slot: int) -> int:
        """Tokens committed in `slot`."""
        return self._lengths[slot]

    def stage(
        self,
        slot: int,
        layer: int,
        start: int,
        keys: Float[Tensor, "n kv_heads D"],
        values: Float[Tensor, "n kv_heads D"],
    ) -> tuple[Float[Tensor, "kv_heads total D"], Float[Tensor, "kv_heads total D"]]:
        """Write from position `start` on; views of all tokens up to the new ones."""
        end = start + len(keys)
        return (
            _put(self._keys[slot], layer, keys, start, end),
            _put(self._values[slot], layer, values, start, end),
        )

    def advance(self, slot: int, tokens: int) -> None:
        """Commit the `tokens` last staged in every layer of `slot`."""
        self._lengths[slot] += tokens

    def rewind(self, slot: int, length: int) -> None:
        """Forget all but the first `length` tokens of `slot`."""
        if not 0 <= length <= self._lengths[slot]:
            raise ValueError(f"cannot rewind to {length}: {self._lengths[slot]} tokens are cached")
        self._lengths[slot] = length


def _put(buffers: list[Tensor], layer: int, rows: Tensor, start: int, end: int) -> Tensor:
    buffer = buffers[layer]
    if end > buffer.shape[1]:
        heads, capacity, dim = buffer.shape
        buffers[layer] = buffer.new_empty(heads, max(end, 2 * capacity), dim)
        buffers[layer][:, :start] = buffer[:, :start]
        buffer = buffers[layer]
    buffer[:, start:end] = rows.transpose(0, 1)
    return buffer[:, :end]
