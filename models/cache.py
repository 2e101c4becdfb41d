"""Paged cache of the keys and values of committed tokens, for all slots and layers.

Layers of one kind keep the same tokens, in a page pool of their own. Full layers keep all tokens;
sliding layers keep their window and one canvas more, so that `rewind` can take a canvas back. Slots
whose prompts begin alike share the pages of that beginning.

`PrefixIndex` finds these pages. It is a trie over full pages of tokens: a node stands for all
tokens from the beginning of a text to the end of its page. Children are found by comparing tokens:
no hash is trusted.
"""

from array import array
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from jaxtyping import Float, Float32
from torch import Tensor

from dlm.kernels.attention import Launch, attention, key_counts, launch_of
from dlm.kernels.paging import CANVAS, Pages, append_
from dlm.models import CacheFullError
from dlm.models.backends import Backend
from dlm.models.image_tokens import within_image
from dlm.models.pages import (
    Held,
    PagePool,
    Pass,
    Stretch,
    capacity_of,
    encoded,
    lay_out,
    page_of,
    pages_of,
)
from dlm.models.shape import LayerConfig, LayerType, ModelShape


class PrefixNode:
    """Page of tokens after those of its parents, and the page of each pool that stores it."""

    __slots__ = ("children", "pages", "parent", "tokens")

    def __init__(self, parent: "PrefixNode | None", tokens: tuple[int, ...]):
        self.parent, self.tokens = parent, tokens
        self.children: dict[tuple[int, ...], PrefixNode] = {}
        self.pages: dict[str, int] = {}  # by pool; without pools whose page was reused


class PrefixIndex:
    """Index over pools of pages. `spans` has for each pool how many tokens before a position must
    be stored to continue from it; None: all."""

    def __init__(self, page: int, spans: Mapping[str, int | None]):
        self.root = PrefixNode(None, ())
        self._page, self._spans = page, spans
        self._nodes: dict[tuple[str, int], PrefixNode] = {}  # by pool and page

    def __contains__(self, place: tuple[str, int]) -> bool:
        """Whether a page of a pool stores a known text."""
        return place in self._nodes

    def add(
        self, parent: PrefixNode, tokens: Sequence[int], pages: Mapping[str, int]
    ) -> PrefixNode:
        """Return the node of `tokens` after `parent`. Pools that have no page for it yet get that
        of `pages`."""
        key = tuple(tokens)
        node = parent.children.get(key)
        if node is None:
            node = parent.children[key] = PrefixNode(parent, key)
        for pool, page in pages.items():
            if pool not in node.pages:
                node.pages[pool] = page
                self._nodes[pool, page] = node
        return node

    def forget(self, pool: str, page: int) -> None:
        """Remove a page that will store something else."""
        node = self._nodes.pop((pool, page))
        del node.pages[pool]
        while not (node.pages or node.children) and node.parent is not None:
            del node.parent.children[node.tokens]
            node = node.parent

    def find(self, tokens: Sequence[int]) -> list[PrefixNode]:
        """Return the nodes of the longest beginning of `tokens` from which one can continue. It
        does not end within an image, which is encoded whole."""
        node, found, best = self.root, [], 0
        stored = dict.fromkeys(self._spans, 0)  # adjacent pages before here
        for start in range(0, len(tokens) - self._page + 1, self._page):
            node = node.children.get(tuple(tokens[start : start + self._page]))
            if node is None:
                break
            found.append(node)
            end = start + self._page
            for pool in self._spans:
                stored[pool] = stored[pool] + 1 if pool in node.pages else 0
            enough = (self._suffices(stored[pool], end, span) for pool, span in self._spans.items())
            if not within_image(tokens, end) and all(enough):
                best = len(found)
        return found[:best]

    def _suffices(self, stored: int, end: int, span: int | None) -> bool:
        """Whether `stored` pages before position `end` are all that is needed of a pool."""
        first = 0 if span is None else max(0, end - span) // self._page
        return stored >= end // self._page - first


@dataclass(slots=True)
class _Slot:
    held: dict[LayerType, Held]
    tokens: list[int] = field(default_factory=list)  # committed
    prompt: list[int] = field(default_factory=list)  # to be shared as soon as it is encoded


class KVCache:
    """Cache of all slots, changed only by `attach`, `advance`, `rewind` and `release`.

    A pass is planned, run and committed: `plan`, `attend` in each layer, `advance`. With a
    capacity, memory is allocated at once, and each slot reserves its maximum as if it shared
    nothing: a page is always available when it is needed.
    """

    def __init__(
        self,
        config: ModelShape,
        slots: int,
        dtype: torch.dtype,
        device: torch.device,
        capacity: int | None = None,  # tokens of all slots together; None: the cache grows
        segment: int | None = None,  # maximum number of tokens that a pass encodes in a slot
        page: int | None = None,  # its tokens; None: `page_of(config)`
        backend: Backend = "torch",  # of attention
    ):
        page = page_of(config) if page is None else page
        self._config, self._page, self._segment, self._device = config, page, segment, device
        kinds: dict[LayerType, list[LayerConfig]] = {}
        self._layers: list[tuple[LayerType, int]] = []  # kind of each, and its index among those
        for layer in config.layers:
            same = kinds.setdefault(layer.kind, [])
            self._layers.append((layer.kind, len(same)))
            same.append(layer)
        self._windows = {kind: config.window_of(kind) for kind in kinds}
        spans = {kind: window and window - 1 for kind, window in self._windows.items()}
        self._index = PrefixIndex(page, spans)
        self._pools: dict[LayerType, PagePool] = {}
        for kind, layers in kinds.items():
            pages = capacity and capacity_of(config, kind, capacity, slots, segment, page)
            forget = partial(self._index.forget, kind)
            self._pools[kind] = PagePool(layers, page, dtype, device, pages, forget)
        self._capacity, self._kernels = capacity, backend == "triton"
        self._bytes = dtype.itemsize  # bytes of a stored number
        self._slots = [_Slot({kind: Held() for kind in kinds}) for _ in range(slots)]
        self._one = torch.ones((), device=device)
        self._planned: tuple[object, Pass] | None = None  # the last plan, and its inputs

    @property
    def capacity(self) -> int | None:
        """Number of tokens of all slots together; None: it grows."""
        return self._capacity

    @property
    def usage(self) -> float:
        """Share of its memory that requests hold, for the kind of layers with the least left. Idle
        pages, which would be given up, do not count."""
        return max(pool.held / max(1, len(pool)) for pool in self._pools.values())

    @property
    def most_pages(self) -> dict[str, int]:
        """Maximum number of pages that a slot can hold, by kind of layer."""
        longest = -(-self._config.max_positions // self._page)
        return {kind: min(len(pool), longest) for kind, pool in self._pools.items()}

    def length(self, slot: int) -> int:
        """Return the number of tokens committed in `slot`."""
        return len(self._slots[slot].tokens)

    def fits(self, tokens: int) -> bool:
        """Whether a slot without a reservation could reserve `tokens`."""
        return all(
            pool.capacity is None
            or self._reserved(kind) + self._need(kind, tokens) <= pool.capacity
            for kind, pool in self._pools.items()
        )

    def reserve(self, slot: int, tokens: int) -> None:
        """Reserve memory for `tokens` in `slot` until it is released. Raises `CacheFullError` if
        there is not enough."""
        self._reserve({slot: tokens})

    def attach(self, slot: int, tokens: Sequence[int]) -> int | None:
        """Begin the prompt `tokens` in an empty slot; returns how many of them are cached already.

        At least one token is left to be encoded. Returns None, and does nothing, while another slot
        is about to encode a canvas or more of the same beginning: it is cached after the next pass.
        Raises `CacheFullError` if nothing was reserved and there is no memory for the prompt.
        """
        mine = self._slots[slot]
        if mine.tokens:
            raise ValueError(f"slot {slot} holds {len(mine.tokens)} tokens: release it first")
        nodes = self._index.find(tokens[:-1])
        found = len(nodes) * self._page
        for other in self._slots:
            if len(other.tokens) < len(other.prompt) and (
                _common_prefix(other.prompt, tokens) >= found + self._config.canvas_length
            ):
                return None
        self._reserve({slot: len(tokens)}, extend=True)
        self._share(mine, nodes)
        mine.prompt = list(tokens)
        return found

    def plan(
        self, encode: Mapping[int, Sequence[int]], canvases: Sequence[int], length: int
    ) -> Pass:
        """Plan a pass that encodes `encode[slot]` after the cached tokens of slots, and denoises a
        canvas of `length` positions after each slot of `canvases`. Raises `CacheFullError` before
        any change if the cache is too small."""
        rows = [(slot, list(tokens)) for slot, tokens in encode.items() if len(tokens)]
        most = max((len(tokens) for _, tokens in rows), default=0)
        if self._segment is not None and most > self._segment:
            raise ValueError(
                f"a slot must have at most {self._segment} tokens in one pass, got {most}"
            )
        stretches = [
            each
            for slot, tokens in rows
            for each in encoded(slot, self.length(slot), tokens, self._config)
        ]
        after = {slot: self.length(slot) for slot in canvases}
        after |= {slot: self.length(slot) + len(tokens) for slot, tokens in rows}
        self._reserve({slot: after[slot] for slot, _ in rows}, extend=True)
        for slot, _ in rows:
            for kind, held in self._slots[slot].held.items():
                missing = -(-after[slot] // self._page) - held.end
                held.pages.extend(self._pools[kind].take() for _ in range(missing))
        stretches += [Stretch(slot, after[slot], length, CANVAS) for slot in canvases]
        held = {kind: [slot.held[kind] for slot in self._slots] for kind in self._pools}
        laid_out = partial(lay_out, rows, stretches, held, self._page, self._device)
        if rows:
            return laid_out()
        # Canvases are denoised repeatedly after the same tokens: the plan is reused
        pages = [(one.first, bytes(one.pages)) for kind in held.values() for one in kind]
        if self._planned is None or self._planned[0] != (stretches, pages):
            self._planned = (stretches, pages), laid_out()
        return self._planned[1]

    def imagined(self, canvases: int, length: int, position: int) -> Pass:
        """Return a pass over canvases of `length` positions after `position` tokens each, which no
        slot has to hold: it reads the first page again and again. Nothing is stored. A captured
        pass like this one serves all that have its launches."""
        held: dict[str, list[Held]] = {}
        for kind, window in self._windows.items():
            first = 0 if window is None else max(0, position - window + 1) // self._page
            pages = array("i", [0]) * (-(-position // self._page) - first)
            held[kind] = [Held(first, pages)] * canvases
        stretches = [Stretch(slot, position, length, CANVAS) for slot in range(canvases)]
        return lay_out([], stretches, held, self._page, self._device)

    def imagined_passes(self, slots: int, length: int) -> list[Pass]:
        """Return a pass over canvases of each number of slots with each launch that its context may
        lead to, the most canvases first: what all passes that encode nothing are like."""
        last = self._config.max_positions - length
        last = max(0, last if self._capacity is None else min(self._capacity, last))
        found: dict[Hashable, Pass] = {}
        for canvases in range(slots, 0, -1):
            for keys in key_counts():
                position = min(max(0, keys - length), last)
                plan = self.imagined(canvases, length, position)
                found.setdefault((canvases, *self.launches(plan)), plan)
        return [*found.values()]

    def attend(
        self,
        layer: int,
        q: Float[Tensor, "N H D"],
        k: Float[Tensor, "N h D"],
        v: Float[Tensor, "N h D"],
        plan: Pass,
        k_scale: Float32[Tensor, ""] | None = None,
        v_scale: Float32[Tensor, ""] | None = None,
    ) -> Float[Tensor, "N H D"]:
        """Store the keys and values of encoded tokens, and attend to all that each token sees. A
        stored number times its scale is the key or value; None: 1."""
        kind, index = self._layers[layer]
        scales = (self._one if scale is None else scale for scale in (k_scale, v_scale))
        pages, paging = Pages(*self._pools[kind].layer(index), *scales), plan.paging[kind]
        if len(paging.rows):
            append_(pages, k, v, paging, self._kernels)
        window, block = self._windows[kind], self._config.block
        return attention(q, k, v, pages, paging, window, self._kernels, block=block)

    def launches(self, plan: Pass) -> list[Launch]:
        """Return the launch parameters of attention kernels, for each distinct shape of layers."""
        H, size = self._config.heads, self._bytes
        return [
            launch_of(
                plan.paging[c.kind],
                self._windows[c.kind],
                H,
                c.kv_heads,
                c.head_dim,
                size,
                self._device,
            )
            for c in dict.fromkeys(self._config.layers)
        ]

    def advance(self, plan: Pass) -> None:
        """Commit the tokens that a pass encoded."""
        for slot, tokens in plan.encode:
            mine = self._slots[slot]
            new = len(mine.tokens) < len(mine.prompt)
            mine.tokens += tokens
            if new:
                self._remember(mine, min(len(mine.prompt), len(mine.tokens)))
            for kind, held in mine.held.items():
                window = self._windows[kind]
                if window is not None:
                    kept = len(mine.tokens) - (window - 1) - self._config.canvas_length
                    self._release_before(kind, held, max(0, kept) // self._page)

    def rewind(self, slot: int, length: int) -> int:
        """Keep the first `length` tokens of `slot`; returns how many are kept. Fewer are kept if
        sliding layers no longer hold the tokens before that. The others have to be encoded again.
        After the prompt, a canvas back from the furthest position is always possible."""
        mine = self._slots[slot]
        if not 0 <= length <= len(mine.tokens):
            raise ValueError(f"cannot rewind to {length}: {len(mine.tokens)} tokens are cached")
        if self._holds(mine, length):
            del mine.tokens[length:]
            for kind, held in mine.held.items():
                self._release_from(kind, held, -(-length // self._page))
            return length
        nodes = self._index.find(mine.tokens[:length])
        self._drop(mine)
        self._share(mine, nodes)
        return len(mine.tokens)

    def release(self, slot: int) -> None:
        """Empty a slot and end its reservation. Its pages may be shared until they are needed."""
        mine = self._slots[slot]
        self._remember(mine, len(mine.tokens))
        self._drop(mine)
        mine.prompt = []
        for held in mine.held.values():
            held.reserved = 0

    def _need(self, kind: LayerType, tokens: int) -> int:
        return pages_of(self._config, kind, tokens, self._segment, self._page)

    def _reserved(self, kind: LayerType) -> int:
        return sum(slot.held[kind].reserved for slot in self._slots)

    def _reserve(self, tokens: Mapping[int, int], extend: bool = False) -> None:
        """Reserve for all slots in `tokens`, or for none."""
        wanted: dict[tuple[LayerType, int], int] = {}
        for kind, pool in self._pools.items():
            for slot, number in tokens.items():
                now = self._slots[slot].held[kind].reserved
                need = self._need(kind, number)
                wanted[kind, slot] = max(now, need) if extend else need
            more = sum(
                number - self._slots[slot].held[kind].reserved
                for (each, slot), number in wanted.items()
                if each == kind
            )
            if pool.capacity is not None and self._reserved(kind) + more > pool.capacity:
                left = pool.capacity - self._reserved(kind)
                raise CacheFullError(
                    f"{sum(tokens.values())} tokens need {more} more pages of {self._page} "
                    f"for {kind}: {left} of {pool.capacity} are left"
                )
        for (kind, slot), number in wanted.items():
            self._slots[slot].held[kind].reserved = number

    def _holds(self, mine: _Slot, length: int) -> bool:
        """Whether a slot can continue from `length` with its pages, and shares none of them beyond
        that."""
        at = length // self._page
        for kind, held in mine.held.items():
            window = self._windows[kind]
            if window is not None and max(0, length - (window - 1)) // self._page < held.first:
                return False
            if length % self._page and (kind, held.pages[at - held.first]) in self._index:
                return False
        return True

    def _share(self, mine: _Slot, nodes: Sequence[PrefixNode]) -> None:
        """Put the tokens of `nodes` into an empty slot."""
        mine.tokens = [token for node in nodes for token in node.tokens]
        for kind, held in mine.held.items():
            window = self._windows[kind]
            out_of_sight = 0 if window is None else max(0, len(mine.tokens) - (window - 1))
            held.first = out_of_sight // self._page
            held.pages = array("i", (node.pages[kind] for node in nodes[held.first :]))
            for page in held.pages:
                self._pools[kind].hold(page)

    def _remember(self, mine: _Slot, length: int) -> None:
        """Index the full pages of the first `length` tokens, so that other slots can share them."""
        node = self._index.root
        for i in range(length // self._page):
            pages = {
                kind: held.pages[i - held.first]
                for kind, held in mine.held.items()
                if held.first <= i
            }
            node = self._index.add(node, mine.tokens[i * self._page :][: self._page], pages)

    def _release_before(self, kind: LayerType, held: Held, first: int) -> None:
        """Release the pages before `first`."""
        gone = max(0, first - held.first)
        for page in held.pages[:gone]:
            self._pools[kind].release(page, idle=(kind, page) in self._index)
        held.first, held.pages = held.first + gone, held.pages[gone:]

    def _release_from(self, kind: LayerType, held: Held, end: int) -> None:
        """Release the pages from `end` on, the last one first: it is then reused first."""
        while held.pages and held.end > end:
            page = held.pages.pop()
            self._pools[kind].release(page, idle=(kind, page) in self._index)

    def _drop(self, mine: _Slot) -> None:
        mine.tokens = []
        for kind, held in mine.held.items():
            self._release_from(kind, held, 0)
            held.first = 0


def _common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Return how many leading tokens are the same."""
    for i, (one, other) in enumerate(zip(a, b, strict=False)):
        if one != other:
            return i
    return min(len(a), len(b))
