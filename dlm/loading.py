"""Settings with which an engine is loaded, perhaps on another machine; and those of a process that
serves.
"""

import gc
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dlm.policy import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """Settings of `Engine.load`, which takes them as keyword arguments.

    The default device is a GPU with bf16 if there is one, otherwise the CPU with fp32; the built-in
    model, which is small, runs on the CPU. Passes that encode nothing are CUDA graphs if kernels
    compute them and the cache does not grow.
    """

    model: str | Path | None = None  # a directory in Hugging Face layout; None: the built-in model
    policy: Policy | None = None  # of requests; None: everything is served
    device: Any = None  # a name, or a `torch.device`
    dtype: Any = None  # a `torch.dtype`, of floats
    slots: int = 8  # requests that run at once
    kernels: Any = "auto"  # "triton", "torch", or Triton wherever it runs
    graphs: Any = "auto"  # "off": no pass is a CUDA graph
    activation_bits: int = 16  # or 4: those of products with NVFP4 weights are quantised too
    kv: str = "auto"  # type of stored keys and values, one of `KV_TYPES`; "auto": as computed
    cache_tokens: int | None = None  # of all requests; None: what is left of a GPU, else unbounded
    decoding: Any = None  # a `Decoding`, or a name of `Writes`; None: as the checkpoint says
    threads: int | None = None  # of torch on a CPU, in a step; None: see `dlm.threads`
    warm_up: bool = True  # on a GPU


_MIDDLE_COLLECTION = 0  # young collections that wait for a middle one: each second one is middle
_FULL_COLLECTION = 5000  # middle collections before a full one: some seven million new containers
_SWITCH = 0.0005  # seconds for which a thread may keep the interpreter while another one waits


def tune_process() -> None:
    """Set up this process to serve: a server calls it once, after everything is loaded.

    All existing objects are left out of collections, and full collections are rare. A full one
    visits every container of the process: 0.1 s for 300,000 of them, in the middle of some step,
    and the states of a few dozen grammars are that many. Requests and grammars are freed by
    reference counts alone. A middle collection visits what the young ones since the last one left:
    0.2 ms after one of them, 1.7 ms after ten, which is Python's default.

    Threads hand the interpreter over sooner than Python's 5 ms. A step of a small model takes it
    hundreds of times, and each time would wait that long for a thread that reads a large body.
    """
    young, *_ = gc.get_threshold()
    gc.collect()
    gc.freeze()
    gc.set_threshold(young, _MIDDLE_COLLECTION, _FULL_COLLECTION)
    sys.setswitchinterval(_SWITCH)
