"""Denoisers without weights: each wants something, and none of them learns."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import torch
from torch import Tensor

from dlm.kernels.expectation import Distributions

CANVAS = 16


class Ledger:
    """The tokens of each slot, where a model would keep keys and values."""

    def __init__(self, slots: int):
        self.tokens: list[list[int]] = [[] for _ in range(slots)]

    capacity: int | None = None

    def length(self, slot: int) -> int:
        return len(self.tokens[slot])

    usage: float = 0.0

    def fits(self, tokens: int) -> bool:
        return True

    def reserve(self, slot: int, tokens: int) -> None:
        pass

    def attach(self, slot: int, tokens: Sequence[int]) -> int | None:
        return 0

    def rewind(self, slot: int, length: int) -> int:
        del self.tokens[slot][length:]
        return length

    def release(self, slot: int) -> None:
        self.tokens[slot] = []


class Double:
    """A denoiser whose logits are `wish(committed tokens of the slot, canvas, soft embedding)`."""

    softcap: float | None = None

    def __init__(self, vocab_size: int, canvas_length: int = CANVAS):
        self.vocab_size, self.canvas_length = vocab_size, canvas_length
        self.max_positions, self.device = 100_000, torch.device("cpu")
        self.table = torch.zeros(vocab_size, 1)

    def new_cache(self, slots: int) -> Ledger:
        return Ledger(slots)

    def encode(
        self, tokens: Sequence[Sequence[int]], cache: Ledger, slots: Sequence[int]
    ) -> Tensor:
        for row, slot in zip(tokens, slots, strict=True):
            cache.tokens[slot] += row
        return torch.zeros(sum(map(len, tokens)), 1)

    def denoise(
        self,
        canvas: Tensor,
        soft_embedding: Tensor,
        cache: Ledger,
        slots: Sequence[int],
        encode: Mapping[int, Sequence[int]] = MappingProxyType({}),
    ) -> Tensor:
        self.encode(list(encode.values()), cache, list(encode))
        return torch.stack(
            [
                self.wish(cache.tokens[slot], *one)
                for slot, *one in zip(slots, canvas, soft_embedding, strict=True)
            ]
        )

    def predict(
        self, tokens: Mapping[int, Sequence[int]], last: Mapping[int, int], cache: Ledger
    ) -> Tensor:
        """Left to right it wants what a canvas of zeros would begin with."""
        self.encode([list(some) for some in tokens.values()], cache, list(tokens))
        canvas = torch.zeros(self.canvas_length, dtype=torch.long), self.no_soft_embedding()
        rows = [
            self.wish(cache.tokens[slot][: len(cache.tokens[slot]) - back], *canvas)[0]
            for slot, count in last.items()
            for back in range(count - 1, -1, -1)
        ]
        return torch.stack(rows) if rows else torch.empty(0, self.vocab_size)

    def predict_and_denoise(
        self,
        tokens: Mapping[int, Sequence[int]],
        last: Mapping[int, int],
        canvas: Tensor,
        soft_embedding: Tensor,
        cache: Ledger,
    ) -> tuple[Tensor, Tensor]:
        logits = self.predict(tokens, last, cache)
        return logits, self.denoise(canvas, soft_embedding, cache, list(last))

    def no_soft_embedding(self) -> Tensor:
        return torch.zeros(self.canvas_length, self.table.shape[1])

    def expected_embedding(self, distributions: Distributions) -> Tensor:
        return distributions.expected(self.table)

    def wish(self, committed: list[int], canvas: Tensor, soft_embedding: Tensor) -> Tensor:
        raise NotImplementedError


class Random(Double):
    """New random logits at every pass."""

    def __init__(self, vocab_size: int, seed: int, scale: float = 3.0, **shape: int):
        super().__init__(vocab_size, **shape)
        self._rng, self._scale = torch.Generator().manual_seed(seed), scale

    def wish(self, committed: list[int], canvas: Tensor, soft_embedding: Tensor) -> Tensor:
        return self._scale * torch.randn(self.canvas_length, self.vocab_size, generator=self._rng)


class Fixed(Random):
    """Random `logits`, the same at every pass."""

    def __init__(self, vocab_size: int, seed: int, **shape: int):
        super().__init__(vocab_size, seed, **shape)
        no_canvas = torch.empty(0)
        self.logits = super().wish([], no_canvas, no_canvas)

    def wish(self, committed: list[int], canvas: Tensor, soft_embedding: Tensor) -> Tensor:
        return self.logits


class Obsessed(Double):
    """Model with all mass on some tokens, at every position of every pass."""

    def __init__(self, vocab_size: int, tokens: Sequence[int], **shape: int):
        super().__init__(vocab_size, **shape)
        self._tokens = list(tokens)

    def wish(self, committed: list[int], canvas: Tensor, soft_embedding: Tensor) -> Tensor:
        logits = torch.zeros(self.canvas_length, self.vocab_size)
        logits[:, self._tokens] = 100.0
        return logits


class Scripted(Double):
    """Model that is sure of one text, whatever its canvas, with padding after it."""

    def __init__(self, vocab_size: int, prompt: int, script: Sequence[int], **shape: int):
        super().__init__(vocab_size, **shape)
        self._prompt, self._script = prompt, list(script)

    def wish(self, committed: list[int], canvas: Tensor, soft_embedding: Tensor) -> Tensor:
        begun = len(committed) - self._prompt
        rest = self._script[begun : begun + self.canvas_length]
        wanted = torch.tensor(rest + [0] * (self.canvas_length - len(rest)))
        return 100.0 * torch.nn.functional.one_hot(wanted, self.vocab_size).float()


class Dreamer(Double):
    """Its logits follow from all that it is shown, and from nothing else.

    From the committed tokens, the canvas and the soft embedding: what is lost of these, or stale,
    shows in what it says. Like a model it becomes surer of what it has seen itself say.
    """

    WIDTH = 12

    def __init__(self, vocab_size: int, seed: int, scale: float = 12.0, **shape: int):
        super().__init__(vocab_size, **shape)
        rng = torch.Generator().manual_seed(seed)
        shapes = (vocab_size, self.WIDTH), (self.WIDTH, self.WIDTH), (self.WIDTH, self.WIDTH)
        self.table, self._carry, self._mix = (torch.randn(s, generator=rng) for s in shapes)
        self._scale = scale

    def wish(self, committed: list[int], canvas: Tensor, soft_embedding: Tensor) -> Tensor:
        seen = self.table[canvas]
        context = self.table[committed[-3:]].mean(0) + len(committed) % 7 / 7
        places = torch.linspace(-1, 1, self.canvas_length)[:, None]
        mixed = (seen + context + places + seen.roll(1, 0)) @ self._mix
        return self._scale * torch.tanh(mixed + 3 * soft_embedding @ self._carry) @ self.table.T
