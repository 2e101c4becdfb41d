"""Passes as CUDA graphs: thousands of launches are recorded once, and then made by a single call.

A pass over canvases alone, which encodes nothing, always does the same: from the embedded canvases
and the places of what their slots hold to the last states. It depends on the host in nothing but
its shapes and `KVCache.launches`, which are the key of its graph. What varies beside them is on the
device, and is copied into memory of the graph's own before each replay.

States are copied out of it, and logits are computed outside: what a pass returns is nobody else's,
as in any other pass, and may be kept while further passes run. All of it happens on the stream that
is current, in the order of the calls: a replay is over before the next one's input is written.

What a pass computes is not known here. In tests, a recorder of operators stands in for the graphs
of a GPU, and interpreted kernels for those that are compiled.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from functools import partial
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from dlm.models.cache import KVCache
from dlm.models.passes import Pass

Graphs = Literal["auto", "off"]
"""Whether passes are captured: wherever they can be, or never."""

MOST = 32
"""Keys that are remembered, and so the most graphs; the least recently used one goes. Beside what
they share, each has memory for its canvases (1.4 MB for one of the 26B) and tables of pages."""
_WARM_UPS = 3  # passes before a capture, as torch's documentation of graphs has it
_CAPTURED = "experts", "nvfp4", "attention"  # what a pass computes, of what backends tell


class Captured(NamedTuple):
    replay: Callable[[], None]
    states: Tensor  # where a replay leaves them, until any graph is replayed


RunPass = Callable[[Tensor, Pass], Tensor]
"""Packed embeddings and their pass to states, without looking at a number on the device."""
Capture = Callable[[Callable[[], Tensor]], Captured]
"""Records what its argument does on the device. A capture that fails is a `RuntimeError`."""


class PassGraphs:
    """The graphs of passes over one cache, which must have a capacity: they hold its addresses."""

    def __init__(
        self, cache: KVCache, capture: Capture | None, obstacle: str = "", most: int = MOST
    ):
        """`obstacle` is why there is no `capture`."""
        self._cache, self._capture, self._obstacle, self._most = cache, capture, obstacle, most
        self._graphs: OrderedDict[Hashable, _Graph | None] = OrderedDict()  # None: seen once
        self.replays = 0

    @property
    def told(self) -> str:
        """What passes are: "captured", or "eager" and why."""
        return f"eager: {self._obstacle}" if self._capture is None else "captured"

    def __len__(self) -> int:
        """How many graphs there are."""
        return sum(graph is not None for graph in self._graphs.values())

    def take(self, plan: Pass, cache: KVCache) -> bool:
        """Whether a pass is for `states`: one over their own cache, of canvases alone."""
        return self._capture is not None and cache is self._cache and _canvases_alone(plan)

    def states(
        self, run: RunPass, x: Float[Tensor, "N hidden"], plan: Pass
    ) -> Float[Tensor, "N hidden"]:
        """What `run` makes of the embedded canvases `x` of a pass that is taken.

        A pass is captured when its key comes for the second time: what comes once costs nothing.
        """
        key = self._key(plan)
        graph = self._graphs.get(key)
        if graph is None and key in self._graphs and self._capture is not None:
            graph = self._recorded(self._capture, run, x, plan)
        if self._capture is not None:
            self._remember(key, graph)
        if graph is None:
            return run(x, plan)
        self.replays += 1
        return graph(x, plan)

    def _key(self, plan: Pass) -> Hashable:
        """All that the host decides of a pass: how many canvases, in how many rows, and how they
        attend. Each kind of layers has the same segments."""
        canvases = len(next(iter(plan.paging.values())).segments)
        return canvases, len(plan.positions), *self._cache.launches(plan)

    def _recorded(self, capture: Capture, run: RunPass, x: Tensor, plan: Pass) -> "_Graph | None":
        """None where the capture fails: then there are no more graphs, and `told` says why."""
        try:
            return _Graph(x, plan, self._cache.pages, run, capture)
        except RuntimeError as error:
            why = str(error).partition("\n")[0]
            self._capture, self._obstacle = None, f"a capture failed: {why}"
            self._graphs.clear()
            return None

    def _remember(self, key: Hashable, graph: "_Graph | None") -> None:
        self._graphs[key] = graph
        self._graphs.move_to_end(key)
        if len(self._graphs) > self._most:
            self._graphs.popitem(last=False)


class _Graph:
    """One captured pass, and the memory that it reads and writes."""

    def __init__(
        self, x: Tensor, plan: Pass, pages: Mapping[str, int], run: RunPass, capture: Capture
    ):
        """`pages` are the most that a slot can hold of each kind: tables are as wide."""
        self._x = torch.empty_like(x)
        paging = {
            kind: one._replace(
                numbers=torch.empty_like(one.numbers),
                table=one.table.new_zeros(len(one.table), pages[kind]),
            )
            for kind, one in plan.paging.items()
        }
        self._plan = Pass([], torch.empty_like(plan.positions), paging)
        self._filled: Pass | None = None
        self._fill(x, plan)
        self._captured = capture(partial(run, self._x, self._plan))

    def __call__(self, x: Tensor, plan: Pass) -> Tensor:
        self._fill(x, plan)
        self._captured.replay()
        return self._captured.states.clone()

    def _fill(self, x: Tensor, plan: Pass) -> None:
        """Behind the pages of this pass a table still has those of others, which nobody reads."""
        self._x.copy_(x)
        if plan is self._filled:
            return
        self._filled = plan
        self._plan.positions.copy_(plan.positions)
        for kind, one in plan.paging.items():
            mine = self._plan.paging[kind]
            mine.numbers.copy_(one.numbers)
            mine.table[:, : one.table.shape[1]].copy_(one.table)


class CudaCapture:
    """Captures on a stream of its own, into memory that all of its graphs share.

    Other threads may use the device meanwhile, on other streams. A capture waits for the device.
    """

    def __init__(self, device: torch.device):
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()
        self._first: torch.cuda.CUDAGraph | None = None  # while it is there, so is their memory

    def __call__(self, run: Callable[[], Tensor]) -> Captured:
        current = torch.cuda.current_stream(self._stream.device)
        with torch.cuda.stream(current):  # which a capture that fails would not come back to
            self._stream.wait_stream(current)
            with torch.cuda.stream(self._stream):
                for _ in range(_WARM_UPS):
                    run()
            current.wait_stream(self._stream)
            graph = torch.cuda.CUDAGraph()
            try:
                with torch.cuda.graph(graph, self._pool, self._stream, "thread_local"):
                    states = run()
            except RuntimeError:
                self._forsake()
                raise
        self._first = self._first or graph
        return Captured(graph.replay, states)

    def _forsake(self) -> None:
        """Torch leaves its allocator in the state of a capture where one fails to end: it would
        never again give back what is cached."""
        with suppress(RuntimeError):  # it is out of it
            torch._C._cuda_endAllocateToPool(self._stream.device_index, self._pool)


def pass_graphs(
    cache: KVCache, wanted: Graphs, backends: Mapping[str, str], device: torch.device
) -> PassGraphs:
    """Those of a model on `device`, whose operations `backends` compute."""
    by_torch = [name for name in _CAPTURED if backends.get(name) == "torch"]
    obstacle = ""
    if wanted == "off":
        obstacle = "graphs are off"
    elif device.type != "cuda":
        obstacle = f"{device.type} is no CUDA device"
    elif by_torch:
        obstacle = f"torch computes {' and '.join(by_torch)}, not kernels"
    elif cache.capacity is None:
        obstacle = "the cache grows, and would move: cache_tokens gives it a size"
    return PassGraphs(cache, None if obstacle else CudaCapture(device), obstacle)


def _canvases_alone(plan: Pass) -> bool:
    return not plan.encode and len(plan.positions) > 0
