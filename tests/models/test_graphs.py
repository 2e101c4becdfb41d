"""Replayed passes have the results of eager ones, and the status says why passes are eager."""

import interpreter
import paged
import pytest
import torch
from recorded import Operators, Recorder
from torch.utils._pytree import tree_leaves

from dlm.kernels import attention
from dlm.models import DiffusionGemma, KVCache, checkpoint, graphs
from dlm.models.graphs import PassGraphs, pass_graphs

CPU, GPU = torch.device("cpu"), torch.device("cuda")
E4M3 = torch.float8_e4m3fn
SYSTEM = [i % 7 for i in range(17)]  # a beginning that prompts share
BY_KERNELS = {"experts": "triton", "attention": "triton", "vocabulary": "torch"}


class Both:
    """Equal requests over two caches; passes over the first one are replayed."""

    def __init__(self, model: DiffusionGemma, stored: torch.dtype):
        self.model, self.rng = model, torch.Generator().manual_seed(0)
        self.caches = [model.new_cache(4, stored, capacity=256, segment=64) for _ in range(2)]
        self.logits: list[list[torch.Tensor]] = [[], []]
        self.alone = 0  # passes that encoded nothing

    def encode(self, slot: int, prompt: list[int]) -> int:
        """Encode a prompt, and return the number of its tokens that were cached."""
        found = [cache.attach(slot, prompt) for cache in self.caches]
        for cache, there in zip(self.caches, found, strict=True):
            self.model.encode([prompt[there:]], cache, [slot])
        return found[0]

    def denoise(self, slots: list[int], encode: dict[int, list[int]] | None = None) -> None:
        L, hidden = self.model.canvas_length, self.model.config.hidden_size
        canvas = torch.randint(64, (len(slots), L), generator=self.rng).to(self.model.device)
        soft = torch.randn(len(slots), L, hidden, generator=self.rng).to(canvas.device)
        for cache, kept in zip(self.caches, self.logits, strict=True):
            logits = self.model.denoise(
                canvas, soft.to(self.model.dtype), cache, slots, encode or {}
            )
            kept.append(logits)
        self.alone += not encode

    def run(self) -> None:
        """Run two groups in turn, with commits, a rewind, shared pages, and slots used again. Then
        compare all logits, when the memory of graphs was poisoned."""
        assert self.encode(0, [*SYSTEM, 1]) == 0
        assert self.encode(1, [*SYSTEM, 2, 2, 2]) == 16
        self.encode(2, [5])
        self.encode(3, [6] * 12)
        for _ in range(2):
            self.denoise([0, 1])
            self.denoise([2, 3])
        self.denoise([2, 3], {1: [8] * 8, 2: [9] * 8})
        self.denoise([3, 2])
        self.denoise([0, 1])
        for cache in self.caches:
            assert cache.rewind(1, len(SYSTEM) + 3) == len(SYSTEM) + 3
            cache.release(3)
        self.denoise([1, 0])
        assert self.encode(3, [*SYSTEM, 4]) == 16
        self.denoise([2, 3])
        for replayed, eager in zip(*self.logits, strict=True):
            assert torch.equal(replayed, eager)


def small(reference, directory, device: torch.device = CPU) -> DiffusionGemma:
    """Return a model of a layer of each kind, computed by kernels."""
    sizes = {"hidden_size": 64, "moe_intermediate_size": 64, "num_experts": 2, "top_k_experts": 1}
    kinds = {"layer_types": reference.KINDS[:2], "num_hidden_layers": 2}
    reference.make(directory, **sizes, **kinds)
    return checkpoint.load(directory, torch.bfloat16, device, kernels="triton")


@pytest.mark.exhaustive
@pytest.mark.interpreted
def test_replayed_passes_have_the_logits_of_eager_ones_and_these_may_be_kept(
    reference, tmp_path, monkeypatch
):
    """Keys are split from 24 on, so that launches differ within a few tokens."""
    interpreter.install()
    monkeypatch.setattr(attention, "_KEYS", 12)
    both, recorder = Both(small(reference, tmp_path), E4M3), Recorder()
    both.model.backends["layers"] = "torch"  # in the interpreter they would take minutes
    both.model.graphs = made = PassGraphs(both.caches[0], recorder, between=0)
    both.run()
    assert made.status == "captured"
    assert recorder.graphs == len(made) == 2, "for long slots and for short ones"
    assert made.replays == both.alone - 2, "all but those whose key was new"


@pytest.mark.exhaustive
@pytest.mark.interpreted
def test_after_a_warm_up_all_passes_over_canvases_alone_are_replayed(
    reference, tmp_path, monkeypatch
):
    """No pass over canvases is captured or eager."""
    interpreter.install()
    monkeypatch.setattr(attention, "_KEYS", 12)
    # More rows take the interpreter minutes.
    monkeypatch.setattr("dlm.models.diffusion_gemma.model._ROWS", (32,))
    both, recorder = Both(small(reference, tmp_path), E4M3), Recorder()
    both.model.backends["layers"] = "torch"
    both.model.graphs = made = PassGraphs(both.caches[0], recorder)
    for part in both.model.warm_up(both.caches[0], 2):
        part()
    captured = recorder.graphs
    assert captured == len(made) >= 4, "for one slot and for two, long and short"
    assert [cache.length(slot) for cache in both.caches for slot in range(4)] == [0] * 8
    both.run()
    assert recorder.graphs == captured
    assert made.replays == both.alone


@pytest.mark.gpu
@pytest.mark.parametrize("stored", [torch.bfloat16, E4M3], ids=str)
def test_a_gpu_s_replays_have_the_logits_of_eager_passes(stored, reference, tmp_path, monkeypatch):
    monkeypatch.setattr(attention, "_KEYS", 12)
    both = Both(small(reference, tmp_path, GPU), stored)
    both.model.use_graphs(both.caches[0])
    for part in both.model.warm_up(both.caches[0], 4):
        part()
    captured = len(both.model.graphs)
    both.run()
    assert both.model.graphs.status == "captured"
    assert both.model.graphs.replays == both.alone
    assert len(both.model.graphs) == captured > 0


def test_a_captured_pass_reads_no_number_and_no_tensor_of_the_host(reference, tmp_path):
    """A replay would not read them again."""
    model, cache = reference.model_without_data(tmp_path)
    with torch.device("meta"):
        model.encode([[5] * 30], cache, [0])
        x = torch.zeros(2 * 8, 64, dtype=torch.bfloat16)
    plan = cache.plan({}, [0, 1], 8)
    with torch.inference_mode(), Operators() as operators:
        states = model._states(x, plan, cache)
    assert states.shape == (16, 64)
    leaves = tree_leaves([call[1:] for call in operators.calls])
    devices = [leaf.device.type for leaf in leaves if isinstance(leaf, torch.Tensor)]
    assert len(devices) > 100
    assert {*devices} == {"meta"}


def filled() -> KVCache:
    """Return a cache whose slots hold 3, 10, 40 and 100 tokens."""
    cache = KVCache(paged.config(), 4, torch.bfloat16, CPU, 400, page=paged.PAGE)
    for slot, length in enumerate((3, 10, 40, 100)):
        cache.advance(cache.plan({slot: [1] * length}, [], 0))
    return cache


def sums(x, plan):
    """Return states that depend on all numbers of a pass."""
    numbers = sum(one.numbers.sum() + one.table.sum() for one in plan.paging.values())
    return x + plan.positions[:, None] + numbers


class Passes:
    """Passes of `sums` over one cache, each compared with an eager one."""

    def __init__(self, capture=None, most=graphs.MOST, run=sums, between=0):
        self.cache, self._run = filled(), run
        self.recorder = Recorder()
        capture = capture or self.recorder
        self.graphs = PassGraphs(self.cache, capture, most=most, between=between)

    def __call__(self, *slots: int, encode=None, length: int = 8) -> torch.Tensor | None:
        """Return the states of a pass, or None if the graphs do not accept it."""
        plan = self.cache.plan(encode or {}, slots, length)
        if not self.graphs.accepts(plan, self.cache):
            return None
        x = torch.randn(len(plan.positions), 1)
        states = self.graphs.states(self._run, x, plan)
        assert torch.equal(states, self._run(x, plan))
        return states


def test_a_pass_is_captured_when_its_key_comes_for_the_second_time():
    passes = Passes()
    for made, slots in enumerate([(0,), (0,), (1,), (0, 1), (1, 0), (1, 2)]):
        passes(*slots)
        assert passes.recorder.graphs == [0, 1, 1, 1, 2, 2][made]
    assert passes.graphs.replays == 4


def test_states_are_kept_while_further_passes_run():
    passes = Passes()
    passes(0)
    kept = passes(0)
    before = kept.clone()
    passes(1)
    assert torch.equal(kept, before)


def test_passes_of_other_lengths_or_launches_have_graphs_of_their_own(monkeypatch):
    passes = Passes()
    for length in (8, 5, 8, 5):
        passes(2, length=length)
    assert len(passes.graphs) == 2
    monkeypatch.setattr(attention, "_KEYS", 16)
    for slot in (3, 3):
        passes(slot)
    assert len(passes.graphs) == 3


def test_the_least_recently_used_graph_is_dropped():
    passes = Passes(most=2)
    for slots in [(0,), (0,), (0, 1), (0, 1), (0,), (0, 1, 2)]:
        passes(*slots)
    assert len(passes.graphs) == 1
    assert len(passes.graphs._graphs) == 2
    assert passes.graphs.replays == 3
    passes(0)
    assert passes.graphs.replays == 4, "the graph of (0,) is still there"
    for _ in range(2):
        passes(0, 1)
    assert passes.recorder.graphs == 3


def warm_up(passes: Passes, slots: int) -> int:
    """Capture all imagined passes, and return their number."""
    plans = passes.cache.imagined_passes(slots, 8)
    zeros = [torch.zeros(len(plan.positions), 1) for plan in plans]
    inputs = dict(zip(map(id, plans), zeros, strict=True))
    parts = passes.graphs.captures_of(sums, lambda plan: inputs[id(plan)], plans)
    for part in parts:
        part()
    return len(parts)


def test_after_a_warm_up_no_pass_of_up_to_its_slots_is_captured(monkeypatch):
    monkeypatch.setattr(attention, "_KEYS", 16)
    passes = Passes(between=graphs.BETWEEN)
    count = warm_up(passes, 3)
    assert passes.recorder.graphs == len(passes.graphs) == count
    for slots in [(0,), (3,), (0, 1), (2, 3), (1, 2, 3), (0, 1, 2)]:
        passes(*slots)
    assert passes.recorder.graphs == count
    assert passes.graphs.replays == 6
    for _ in range(2):
        passes(0, 1, 2, 3)
    assert passes.recorder.graphs == count + 1, "with more slots than were warmed up"


def test_imagined_passes_have_every_launch_that_passes_over_canvases_have(monkeypatch):
    monkeypatch.setattr(attention, "_KEYS", 16)
    cache = KVCache(paged.config(), 3, torch.bfloat16, CPU, 400, page=paged.PAGE)
    known = {str(cache.launches(plan)) for plan in cache.imagined_passes(3, 8)}
    seen = set()
    for canvases in (1, 2, 3):
        for position in range(0, 393):
            seen.add(str(cache.launches(cache.imagined(canvases, 8, position))))
    assert seen == known
    assert len(seen) > 3
    assert [cache.length(slot) for slot in range(3)] == [0, 0, 0]
    assert cache.usage == 0


def test_graphs_of_a_warm_up_do_not_count_towards_the_most_graphs():
    passes = Passes(most=1)
    count = warm_up(passes, 3)
    for _ in range(2):
        passes(0, 1, 2, 3)
    for slots in [(0,), (0, 1), (0, 1, 2)]:
        passes(*slots)
    assert passes.recorder.graphs == len(passes.graphs) == count + 1


def test_a_capture_that_fails_ends_the_warm_up():
    def capture(run):
        raise RuntimeError("CUDA error: out of memory")

    passes = Passes(capture)
    assert warm_up(passes, 3) > 1
    assert passes.graphs.status == "eager: a capture failed: CUDA error: out of memory"
    assert passes(0) is None


def test_between_two_captures_some_passes_are_eager():
    """Keys that come meanwhile are captured later."""
    passes = Passes(between=3)
    for slots in [(0,), (0, 1), (0, 1, 2)]:
        passes(*slots)
    made = []
    for slots in [(0,), (0, 1), (0, 1, 2), (0, 1), (0, 1, 2), (0, 1, 2), (0, 1, 2)]:
        passes(*slots)
        made.append(passes.recorder.graphs)
    assert made == [1, 1, 1, 2, 2, 2, 3]


def test_more_keys_in_turn_than_are_remembered_are_not_captured():
    passes = Passes(most=2)
    for _ in range(3):
        for slots in [(0,), (0, 1), (0, 1, 2)]:
            passes(*slots)
    assert passes.recorder.graphs == 0


def test_passes_that_encode_are_empty_or_have_another_cache_are_not_accepted():
    passes = Passes()
    assert passes(0, encode={1: [3]}) is None
    assert passes(encode={1: [3]}) is None
    assert passes() is None
    plan = passes.cache.plan({}, [0], 8)
    assert passes.graphs.accepts(plan, passes.cache)
    assert not passes.graphs.accepts(plan, filled())


def test_after_a_failed_capture_all_passes_are_eager_and_the_status_says_why():
    calls = []

    def capture(run):
        calls.append(run)
        if len(calls) == 2:
            raise RuntimeError("CUDA error: out of memory\nCompile with ...")
        return Recorder()(run)

    passes = Passes(capture)
    for slots in [(0,), (0,), (0, 1), (0, 1)]:
        passes(*slots)
    assert passes.graphs.status == "eager: a capture failed: CUDA error: out of memory"
    assert len(passes.graphs) == 0
    assert [passes(0), passes(0)] == [None, None]
    assert len(calls) == 2
    assert passes.graphs.replays == 1


def test_a_pass_that_reads_a_number_back_is_not_captured():
    """The recorder refuses as a GPU does: otherwise its replays would prove little."""
    passes = Passes(run=lambda x, plan: x * plan.positions[0].item())
    passes(0)
    passes(1)
    assert passes.graphs.status == "eager: a capture failed: operation not permitted when stream " \
        "is capturing"  # fmt: skip


@pytest.mark.parametrize(
    ("wanted", "device", "backends", "capacity", "status"),
    [
        ("auto", GPU, BY_KERNELS, 100, "captured"),
        ("off", GPU, BY_KERNELS, 100, "eager: graphs are off"),
        ("auto", CPU, BY_KERNELS, 100, "eager: cpu is no CUDA device"),
        ("auto", GPU, BY_KERNELS, None, "eager: the cache grows, and would move: cache_tokens"),
        ("auto", GPU, BY_KERNELS | {"experts": "torch"}, 100, "eager: torch computes experts, not"),
        (
            "auto",
            GPU,
            BY_KERNELS | {"attention": "torch", "nvfp4": "torch"},
            100,
            "eager: torch computes nvfp4 and attention, not kernels",
        ),
    ],
)
def test_the_status_says_why_there_are_no_graphs(
    wanted, device, backends, capacity, status, monkeypatch
):
    monkeypatch.setattr(graphs, "CudaCapture", lambda _: Recorder())
    cache = KVCache(paged.config(), 1, torch.bfloat16, CPU, capacity)
    made = pass_graphs(cache, wanted, backends, device)
    assert made.status.startswith(status)
    assert made.accepts(cache.plan({}, [0], 8), cache) == (status == "captured")
