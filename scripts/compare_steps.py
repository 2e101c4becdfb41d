"""What a denoising step takes, of this engine under a JSON schema or of transformers' own loop.

    python scripts/compare_transformers.py --vocab 262144 --json

runs this for both sides, each in a process of its own, on the same random model. Time is the median
of a few steps. Memory is the peak of the process in them beyond what it had once the model was
loaded and had made a first canvas: all that steps and what lives between them take.
"""

import argparse
import ctypes
import gc
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from stall import Words
from stress import tokenizer_of
from transformers import DiffusionGemmaConfig, DiffusionGemmaForBlockDiffusion

import dlm
from dlm.chat import Chat
from dlm.engine import BUILT_IN
from dlm.models import checkpoint

L = 256  # positions of the canvas
_KINDS = ["sliding_attention", "full_attention"]
_PROMPT = [2]


def compare(
    vocab: int, steps: int, schema: Path, tokenizer: Path | None, folder: Path
) -> dict[str, dict[str, float]]:
    """Both sides, on a model that is made in `folder`."""
    torch.manual_seed(0)
    DiffusionGemmaForBlockDiffusion(config(vocab)).save_pretrained(folder)
    command = [sys.executable, __file__, "--model", folder, "--steps", steps, "--schema", schema]
    command += ["--tokenizer", tokenizer] if tokenizer else []
    found = {}
    for side in SIDES:
        output = subprocess.run(
            [*map(str, command), "--side", side], check=True, stdout=subprocess.PIPE, text=True
        ).stdout
        found[side] = json.loads(output)
    return found


def config(vocab: int) -> DiffusionGemmaConfig:
    """Two narrow layers, so that a step is what it does with the vocabulary."""
    vision = {"model_type": "gemma4_vision", "hidden_size": 16, "intermediate_size": 16}
    vision |= {"num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1}
    return DiffusionGemmaConfig(
        text_config={
            "vocab_size": vocab,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": len(_KINDS),
            "layer_types": _KINDS,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "global_head_dim": 32,
            "num_global_key_value_heads": 1,
            "sliding_window": 64,
            "num_experts": 4,
            "top_k_experts": 2,
            "moe_intermediate_size": 64,
            "max_position_embeddings": 4 * L,
        },
        vision_config=vision | {"head_dim": 16},
        canvas_length=L,
    )


class Meter:
    """Times and the memory of steps; `step` is called behind each."""

    def __init__(self) -> None:
        gc.collect()
        ctypes.CDLL("libc.so.6").malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # forgets the peak so far
        self._before, self._times = _memory("VmRSS"), [time.perf_counter()]

    def step(self) -> None:
        self._times.append(time.perf_counter())

    def found(self) -> dict[str, float]:
        """The first step, which has no soft embedding, does not count."""
        each = [b - a for a, b in zip(self._times[1:], self._times[2:], strict=False)]
        peak = _memory("VmHWM") - self._before
        return {"seconds_per_step": statistics.median(each), "peak_bytes": peak}


def _memory(name: str) -> int:
    """Bytes, as Linux counts them for this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"/proc/self/status says no {name}: this runs on Linux alone")


def by_engine(args: argparse.Namespace) -> Callable[[int], dict[str, float]]:
    model = checkpoint.load(args.model)
    chat = Words(tokenizer_of(args.tokenizer)) if args.tokenizer else Chat.load(BUILT_IN)
    engine = dlm.Engine(model, chat, slots=1)
    spec = dlm.JsonSchema(args.schema.read_text())
    engine.compile(spec).result()

    def run(steps: int) -> dict[str, float]:
        request = dlm.Request(token_ids=_PROMPT, constraint=spec, max_tokens=L)
        meter, number, said = Meter(), engine.add(request), 0
        while said < steps + 1:
            said += sum(isinstance(event, dlm.Draft) for event in engine.step())
            meter.step()
        engine.cancel(number)
        return meter.found()

    return run


def by_transformers(args: argparse.Namespace) -> Callable[[int], dict[str, float]]:
    model = DiffusionGemmaForBlockDiffusion.from_pretrained(args.model).eval()

    def run(steps: int) -> dict[str, float]:
        inputs: Any = torch.tensor([_PROMPT])
        meter = Meter()
        streamer: Any = _Steps(meter)
        model.generate(inputs, max_new_tokens=L, max_denoising_steps=steps + 1, streamer=streamer)
        return meter.found()

    return run


class _Steps:
    """A streamer that counts drafts."""

    def __init__(self, meter: Meter):
        self._meter = meter

    def put(self, value: Any) -> None: ...

    def put_draft(self, value: Any) -> None:
        self._meter.step()

    def end(self) -> None: ...


SIDES = {"dlm": by_engine, "transformers": by_transformers}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--side", choices=SIDES, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--schema", type=Path, required=True)
    parser.add_argument("--tokenizer", type=Path)
    parser.add_argument("--steps", type=int, default=4)
    args = parser.parse_args()
    run = SIDES[args.side](args)
    run(1)
    print(json.dumps(run(args.steps)))


if __name__ == "__main__":
    main()
