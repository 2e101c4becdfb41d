"""Passes as CUDA graphs: thousands of launches are recorded once, then replayed by one call.

A pass over canvases alone, which encodes nothing, always runs the same operations, from the
embedded canvases and their slots' pages to the last states. On the host it depends only on its
shapes and on `KVCache.launches`: these are the key of its graph. Its other inputs are on the
device, and are copied into the graph's own memory before each replay.

Graphs are best made before the first request (`TextStack.warm_up`): a capture takes as long as
an eager pass and more, and the requests of all slots wait for it. A pass whose key was not foreseen
is captured when it occurs for the second time. Its kernels are compiled then, so that it is
recorded without further runs, and between two such captures there are `BETWEEN` passes: many new
keys in a row never stop requests for longer than one capture takes.

States are copied out of it, and logits are computed outside, so that a result may be kept while
further passes run. All of it runs on the current stream, in the order of the calls: a replay ends
before the next one's input is written.

This module does not know the operations of a pass. Tests use a recorder of operators in place of a
GPU's graphs, and interpreted kernels.
"""

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from dlm.models.cache import KVCache
from dlm.models.pages import Pass

Graphs = Literal["auto", "off"]
"""Whether passes are captured: wherever possible, or never."""

MOST = 32
"""Number of keys that are kept beside those of a warm-up, and so of graphs; the least recently used
is dropped. All share memory for canvases and results; each has page tables of its own."""
BETWEEN = 16
"""Number of passes between two captures while requests run, at least."""
_LOG = logging.getLogger("dlm")
_WARM_UPS = 3  # passes before the first capture, as torch's documentation recommends
_CAPTURED = "experts", "nvfp4", "attention"  # operations of a pass


class Captured(NamedTuple):
    replay: Callable[[], None]
    states: Tensor  # results of a replay, until another graph is replayed


RunPass = Callable[[Tensor, Pass], Tensor]
"""Function from packed embeddings and their pass to states, without reading from the device."""
Capture = Callable[[Callable[[], Tensor]], Captured]
"""Recorder of the operations of a function that has run before on the same shapes. Raises
`RuntimeError` if a capture fails."""


class PassGraphs:
    """Graphs of passes over one cache, which must have a capacity: they hold its addresses."""

    def __init__(
        self,
        cache: KVCache,
        capture: Capture | None,
        obstacle: str = "",
        most: int = MOST,
        between: int = BETWEEN,
    ):
        """`obstacle` is the reason if there is no `capture`."""
        self._cache, self._capture, self._obstacle = cache, capture, obstacle
        self._most, self._between = most, between
        self._graphs: OrderedDict[Hashable, _Graph | None] = OrderedDict()  # None: seen once
        self._wait = 0  # passes until another may be captured
        self._memory: Tensor | None = None  # inputs of the largest captured pass, then its results
        self.replays = 0

    @property
    def status(self) -> str:
        """Status of passes: "captured", or "eager" and why."""
        return f"eager: {self._obstacle}" if self._capture is None else "captured"

    def __len__(self) -> int:
        """Number of graphs."""
        return sum(graph is not None for graph in self._graphs.values())

    @property
    def captures(self) -> bool:
        """Whether passes are captured."""
        return self._capture is not None

    def captures_of(
        self, run: RunPass, inputs: Callable[[Pass], Tensor], plans: Sequence[Pass]
    ) -> list[Callable[[], None]]:
        """Return for each of `plans` a function that runs it once, with the embeddings `inputs` of
        it, and captures it. Nothing happens after a capture that failed."""
        self._most += len(plans)
        return [partial(self._prepare, run, inputs, plan) for plan in plans]

    def _prepare(self, run: RunPass, inputs: Callable[[Pass], Tensor], plan: Pass) -> None:
        key = self._key(plan)
        if self._capture is None or self._graphs.get(key) is not None:
            return
        run(x := inputs(plan), plan)  # compiles its kernels
        if (graph := self._record(self._capture, run, x, plan)) is not None:
            self._store(key, graph)

    def accepts(self, plan: Pass, cache: KVCache) -> bool:
        """Whether `states` can run this pass: one over the graphs' own cache, of canvases alone."""
        return self._capture is not None and cache is self._cache and _canvases_alone(plan)

    def states(
        self, run: RunPass, x: Float[Tensor, "N hidden"], plan: Pass
    ) -> Float[Tensor, "N hidden"]:
        """Return the states that `run` computes from the embedded canvases `x` of an accepted pass.
        A pass is captured when its key occurs for the second time, or after that once `BETWEEN`
        passes have followed the last capture: rare ones cost nothing."""
        key = self._key(plan)
        graph = self._graphs.get(key)
        self._wait = max(0, self._wait - 1)
        due = graph is None and key in self._graphs and self._wait == 0
        if due and self._capture is not None:
            graph, self._wait = self._record(self._capture, run, x, plan), self._between
        if self._capture is not None:
            self._store(key, graph)
        if graph is None:
            return run(x, plan)
        self.replays += 1
        return graph(x, plan)

    def _key(self, plan: Pass) -> Hashable:
        """Return all that the host decides of a pass: numbers of canvases and rows, and launch
        parameters. Each kind of layers has the same segments."""
        canvases = len(next(iter(plan.paging.values())).segments)
        return canvases, len(plan.positions), *self._cache.launches(plan)

    def _record(self, capture: Capture, run: RunPass, x: Tensor, plan: Pass) -> "_Graph | None":
        """Capture a pass; returns None if that fails: then there are no more graphs, and `status`
        says why."""
        try:
            if self._memory is None or len(self._memory) < len(x):
                self._memory = torch.empty_like(x)
            memory = self._memory[: len(x)]
            return _Graph(memory, x, plan, self._cache.most_pages, run, capture)
        except RuntimeError as error:
            why = str(error).partition("\n")[0]
            self._capture, self._obstacle = None, f"a capture failed: {why}"
            _LOG.warning("passes are not captured: %s", why)
            self._graphs.clear()
            return None

    def _store(self, key: Hashable, graph: "_Graph | None") -> None:
        self._graphs[key] = graph
        self._graphs.move_to_end(key)
        if len(self._graphs) > self._most:
            self._graphs.popitem(last=False)


class _Graph:
    """Captured pass, with the memory that it reads and writes. Its results replace its inputs."""

    def __init__(
        self,
        memory: Tensor,
        x: Tensor,
        plan: Pass,
        pages: Mapping[str, int],
        run: RunPass,
        capture: Capture,
    ):
        """`memory` is for inputs and results; other graphs may use it too. `pages` is the maximum
        that a slot can hold of each kind: the width of page tables."""
        self._x = memory
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
        self._captured = capture(partial(_run_in_place, run, self._x, self._plan))

    def __call__(self, x: Tensor, plan: Pass) -> Tensor:
        self._fill(x, plan)
        self._captured.replay()
        return self._captured.states.clone()

    def _fill(self, x: Tensor, plan: Pass) -> None:
        """Copy the inputs of a pass. Tables keep older pages after those of this pass, which are
        not read."""
        self._x.copy_(x)
        if plan is self._filled:
            return
        self._filled = plan
        self._plan.positions.copy_(plan.positions)
        for kind, one in plan.paging.items():
            mine = self._plan.paging[kind]
            mine.numbers.copy_(one.numbers)
            mine.table[:, : one.table.shape[1]].copy_(one.table)


def _run_in_place(run: RunPass, x: Tensor, plan: Pass) -> Tensor:
    return x.copy_(run(x, plan))


class CudaCapture:
    """Captures on a stream of its own, into memory that all its graphs share. Other threads may use
    the device at the same time, on other streams. A capture waits for the device."""

    def __init__(self, device: torch.device):
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()
        self._first: torch.cuda.CUDAGraph | None = None  # keeps the shared memory alive

    def __call__(self, run: Callable[[], Tensor]) -> Captured:
        current = torch.cuda.current_stream(self._stream.device)
        with torch.cuda.stream(current):  # a failed capture would not restore the current stream
            self._stream.wait_stream(current)
            with torch.cuda.stream(self._stream):
                for _ in range(_WARM_UPS if self._first is None else 0):
                    run()
            current.wait_stream(self._stream)
            graph = torch.cuda.CUDAGraph()
            try:
                with torch.cuda.graph(graph, self._pool, self._stream, "thread_local"):
                    states = run()
            except RuntimeError:
                self._leave_capture()
                raise
        self._first = self._first or graph
        return Captured(graph.replay, states)

    def _leave_capture(self) -> None:
        """End a failed capture in torch's allocator, which would otherwise never free cached memory
        again."""
        with suppress(RuntimeError):  # the capture was ended
            torch._C._cuda_endAllocateToPool(self._stream.device_index, self._pool)


def pass_graphs(
    cache: KVCache, wanted: Graphs, backends: Mapping[str, str], device: torch.device
) -> PassGraphs:
    """Return the graphs of a model on `device`, whose operations `backends` compute."""
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
