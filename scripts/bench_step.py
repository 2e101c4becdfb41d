"""Time a denoising step, from tokens to tokens, on a model with random weights.

    python scripts/bench_step.py --tokenizer tokenizer.json[.xz] [--slots 1,4,16] [--profile]

By default it is DiffusionGemma 26B with experts in NVFP4 and an fp8 cache, whose 18 GB of weights
are made on the GPU. `--config` is another model's config.json, for a CPU a small one. Every slot
has a prompt of its own. Once all are encoded, steps under a JSON schema and without one are timed
in turns. A step is one pass over the canvases of all slots. `--profile` adds the device's work in a
step: launches, the time of each kernel, and the rest, in which it waits for the host. `--beside` is
the output of an earlier run with `--json`; each figure's change since then is shown.

The floor of a step is the longer of the times for its bytes and for its operations, part by part,
as `plan.py` computes it, on a card whose rates are known (`kernels/gpus.py`).

Random weights are as wide as a trained model's, so that nothing overflows and experts are chosen
evenly. A few tokens are loud: in each row some of them share nearly all of the probability. Plain
random weights would spread it over all tokens, and no list of candidates would suffice.
"""

import argparse
import json
import statistics
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, cast, get_args

import torch
from measure.checkout import commit
from measure.options import MeasureParser
from measure.report import (
    ResultForm,
    add_beside,
    add_out,
    compare,
    earlier_of,
    print_table,
    show_settings,
    with_change,
    write_result,
)
from measure.schemas import tokenizer_of
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

import dlm
from dlm.chat import Chat
from dlm.cli.command_line import fail, numbers
from dlm.engine import BUILT_IN
from dlm.kernels.gpus import card_name, card_of
from dlm.models import DiffusionGemma, ModelConfig, ModelError, plan
from dlm.models.backends import Dispatch, Kernels
from dlm.models.diffusion_gemma.layout import LAYOUT
from dlm.models.formats import MODELOPT
from dlm.models.json_files import read_json
from dlm.models.pages import CHUNK
from dlm.models.places import blank, give
from dlm.storage import KV_TYPES
from dlm.threads import threads_for

EXAMPLES = Path(__file__).parent.parent / "examples"
ROUNDS = 3  # of each mode, in turns
RESULTS = ResultForm(
    script="bench_step.py",
    rows="steps",
    key=("slots", "mode"),
    figures=("milliseconds", "tokens_per_second", "peak_bytes"),
    settings=(
        *("device", "torch", "config", "model", "weights", "activation_bits"),
        *("kv", "context", "backends"),
    ),
)
_ANSWER = 8192  # tokens of an answer at most: more than are timed
_SETTLED = 16  # tokens of a canvas that a pass of a trained model settles, for tokens a second
_NAME, _KERNELS, _SHOWN = 90, 40, 16  # letters of a kernel's name; kernels kept and shown
_ITEMS = 32  # items of the array in the schema, so that its text does not end
_WEIGHT = 0.02  # standard deviation of a matrix
_LOGIT, _LOUD = 2.0, 40.0  # of a logit, before the softcap; of a loud token's
_LOUD_TOKENS = 64
_INPUT_SCALE = 8 / (6 * 448)  # of activations up to 8
_FOUR_BIT = 2.9  # root mean square of the sixteen numbers of four bits


def main() -> None:
    args = arguments()
    try:
        earlier = earlier_of(args, RESULTS)
        found = bench(args)
    except (ModelError, dlm.DlmError, dlm.GrammarError, OSError, ValueError) as error:
        fail(str(error))
    except torch.OutOfMemoryError:
        fail("the GPU has too little memory for it: plan.py prints what fits", 1)
    compare(found, earlier, RESULTS)
    write_result(args.out, found)
    print(json.dumps(found)) if args.json else show(found)


def bench(args: argparse.Namespace) -> dict[str, Any]:
    config = ModelConfig.from_hf(read_json(args.config))
    if args.context + config.canvas_length >= config.max_positions:
        raise ValueError(
            f"--context {args.context} leaves no room within {config.max_positions} tokens"
        )
    items = json.loads(args.schema.read_text())
    spec = dlm.JsonSchema({"type": "array", "items": items, "minItems": _ITEMS})
    chat = Chat(tokenizer_of(args.tokenizer)) if args.tokenizer else Chat.load(BUILT_IN)
    device = torch.device(args.device)
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    bits = args.activation_bits
    dispatch = Dispatch(device=device, dtype=dtype, kernels=args.kernels, activation_bits=bits)
    model = random_model(config, args.weights, dispatch)
    found = {
        "device": card_name(device),
        "commit": commit(),
        "torch": torch.__version__,
        "config": args.config.name,
        "model": shape_of(config),
        "weights": args.weights,
        "activation_bits": bits,
        "kv": args.kv,
        "context": args.context,
        "backends": model.backends,
        "steps": [],
    }
    for slots in args.slots:
        found["steps"] += measured(model, chat, spec, slots, args)
        write_result(args.out, found)
    return found


def shape_of(config: ModelConfig) -> dict[str, int]:
    """Return the sizes of a model that its steps depend on."""
    return {
        "layers": len(config.layers),
        "hidden": config.hidden_size,
        "dense": config.intermediate_size,
        "experts": config.experts,
        "expert": config.expert_size,
        "chosen": config.experts_per_token,
        "vocabulary": config.vocab_size,
        "canvas": config.canvas_length,
    }


def floor_of(
    model: DiffusionGemma, slots: int, args: argparse.Namespace, device: str
) -> float | None:
    """Return the least milliseconds of a step; None on a card that is not known, and for a cache
    that no kernel reads."""
    card, kinds = card_of(device), get_args(plan.CacheType)
    if card is None or args.kv not in kinds:
        return None
    load = plan.Load(
        slots=slots,
        context=args.context,
        cache=args.kv,
        weights=args.weights,
        activation_bits=args.activation_bits,
    )
    return cast(float, plan.step_times(model.costs, load, card)["step"])


def arguments() -> argparse.Namespace:
    parser = MeasureParser(__doc__, "tokenizer", "json")
    add, device = parser.add_argument, "cuda" if torch.cuda.is_available() else "cpu"
    config = EXAMPLES / "diffusiongemma-26b-a4b.json"
    add("--config", type=Path, default=config, metavar="FILE", help="The config.json of a model.")
    purpose = "The type of the experts' weights."
    add("--weights", choices=get_args(plan.Weights), default="nvfp4", help=purpose)
    purpose = "The type in which keys and values are stored."
    add("--kv", choices=KV_TYPES, default="fp8", help=purpose)
    purpose = "The bits of activations in products with NVFP4 weights."
    add("--activation-bits", type=int, choices=(16, 4), default=16, help=purpose)
    purpose = "The kernels of the model."
    add("--kernels", choices=get_args(Kernels), default="auto", help=purpose)
    purpose = "The device of the model."
    add("--device", choices=("cuda", "cpu"), default=device, help=purpose)
    purpose = "The numbers of slots that are timed, one after the other. Default: 1,4,16."
    add("--slots", type=numbers, metavar="N,N,...", help=purpose)
    parser.set_defaults(slots=[1, 4, 16])
    parser.add_count("--context", 1024, "The tokens of each prompt.")
    parser.add_count("--steps", 20, "The steps that are timed in each round.")
    schema = EXAMPLES / "invoice.json"
    add("--schema", type=Path, default=schema, metavar="FILE", help="The schema of the items.")
    add("--profile", action="store_true", help="Add the device's work in a step.")
    add_beside(parser)
    add_out(parser)
    args = parser.parsed()
    if args.device == "cuda" and not torch.cuda.is_available():
        fail("--device cuda: there is none here")
    return args


def measured(
    model: DiffusionGemma, chat: Chat, spec: dlm.Spec, slots: int, args: argparse.Namespace
) -> list[dict[str, Any]]:
    """Return a row for each mode; milliseconds are medians of rounds."""
    answer = min(_ANSWER, model.max_positions - args.context - model.canvas_length)
    cache = model.new_cache(slots, KV_TYPES[args.kv], slots * (args.context + answer), CHUNK)
    model.use_graphs(cache)
    threads = threads_for(0) if model.device.type == "cuda" else None  # as `Engine.load` does
    engine = dlm.Engine(model, chat, slots=slots, cache=cache, threads=threads)
    rng = torch.Generator().manual_seed(slots)
    prompts = torch.randint(len(engine.vocabulary), (slots, args.context), generator=rng).tolist()
    modes = {
        name: [
            dlm.Request(token_ids=prompt, constraint=constraint, max_tokens=answer, seed=i)
            for i, prompt in enumerate(prompts)
        ]
        for name, constraint in (("free", None), ("constrained", spec))
    }
    engine.compile(spec).result()
    if model.device.type == "cuda":
        engine.warm_up()
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in modes}
    profiles: dict[str, Any] = {}
    try:
        for _ in range(ROUNDS):
            for name, requests in modes.items():
                rounds[name].append(timed(engine, requests, args.steps))
        for name, requests in modes.items() if args.profile else ():
            profiles[name] = profiled(engine, requests, args.steps)
    finally:
        engine.close()
    device = card_name(model.device)
    return [
        {
            "slots": slots,
            "mode": name,
            "floor_milliseconds": floor_of(model, slots, args, device),
            "milliseconds": (taken := statistics.median(each["milliseconds"] for each in found)),
            "tokens_per_second": 1e3 * slots * _SETTLED / taken,
            "graphs": engine.backends["graphs"],
            "peak_bytes": max(each["peak_bytes"] for each in found),
            **({"profile": profiles[name]} if name in profiles else {}),
        }
        for name, found in rounds.items()
    ]


def profiled(engine: dlm.Engine, requests: list[dlm.Request], steps: int) -> dict[str, Any]:
    """Return the device's work in a step: milliseconds and launches, in all and by kernel.

    The profiler itself takes time of the host, so that steps are longer than without it.
    """
    cuda = engine.model.device.type == "cuda"
    activities = [ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU]
    taken = timed(engine, requests, steps, seen := profile(activities=activities))
    sums: dict[str, list[float]] = {}
    for event in seen.events() or ():
        if not cuda or event.device_type.name == "CUDA":
            one = sums.setdefault(event.name[:_NAME], [0.0, 0])
            one[0] += event.device_time_total if cuda else event.self_cpu_time_total
            one[1] += 1
    count = taken["passes"]
    kernels = [
        {"name": name, "milliseconds": time / 1e3 / count, "launches": calls / count}
        for name, (time, calls) in sorted(sums.items(), key=lambda each: -each[1][0])
    ]
    return {
        "milliseconds": taken["milliseconds"],
        "device_milliseconds": sum(each["milliseconds"] for each in kernels),
        "launches": sum(each["launches"] for each in kernels),
        "kernels": kernels[:_KERNELS],
    }


def timed(
    engine: dlm.Engine,
    requests: list[dlm.Request],
    steps: int,
    around: AbstractContextManager[Any] | None = None,
) -> dict[str, float]:
    """Return the milliseconds of a step, the number of steps and the peak of used memory.

    A finished request is added again. Steps run within `around`.
    """
    device = engine.model.device
    running = {engine.add(request): request for request in requests}
    waiting = set(running)
    while waiting:  # for the first pass over their canvases
        waiting -= {event.request for event in stepped(engine) if isinstance(event, dlm.Draft)}
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    with around or nullcontext():
        begun, passes = now(device), 0
        while passes < steps * len(requests):
            for event in stepped(engine):
                passes += isinstance(event, dlm.Draft)
                if isinstance(event, dlm.Finished):
                    request = running.pop(event.request)
                    running[engine.add(request)] = request
        taken = now(device) - begun
    for number in running:
        engine.cancel(number)
    while engine.busy:
        list(engine.step())
    return {
        "milliseconds": 1e3 * taken * len(requests) / passes,
        "passes": passes / len(requests),
        "peak_bytes": torch.cuda.max_memory_allocated() if device.type == "cuda" else 0,
    }


def stepped(engine: dlm.Engine) -> Iterator[dlm.Event]:
    """Yield the events of a step. Raises the error of a failed request."""
    for event in engine.step():
        if isinstance(event, dlm.Failed):
            raise event.error
        yield event


def now(device: torch.device) -> float:
    """Return the time in seconds, after the device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def show(found: dict[str, Any]) -> None:
    computed = ", ".join(f"{name} by {backend}" for name, backend in found["backends"].items())
    print(
        f"{found['device']}, commit {found['commit']}, torch {found['torch']}. {found['config']}, "
        f"experts in {found['weights']}, cache in {found['kv']}, prompts of {found['context']:,} "
        f"tokens; {computed}. Tokens a second: if a pass settles {_SETTLED} of a canvas."
    )
    show_settings(found)
    headings = "slots", "mode", "ms a step", "floor, ms", "tokens a second", "peak GB", "passes"
    cells = [
        (
            str(row["slots"]),
            row["mode"],
            with_change(f"{row['milliseconds']:.1f}", row, "milliseconds"),
            "-" if row["floor_milliseconds"] is None else f"{row['floor_milliseconds']:.1f}",
            with_change(f"{row['tokens_per_second']:,.0f}", row, "tokens_per_second"),
            with_change(f"{row['peak_bytes'] / 1e9:.1f}", row, "peak_bytes")
            if row["peak_bytes"]
            else "-",
            row["graphs"],
        )
        for row in found["steps"]
    ]
    print_table(headings, cells, left=("mode", "passes"), width=120)
    for row in found["steps"]:
        if "profile" in row:
            show_profile(row)


def show_profile(row: dict[str, Any]) -> None:
    seen = row["profile"]
    times = f"{seen['milliseconds']:.1f} ms a step under the profiler"
    work = f"{seen['device_milliseconds']:.1f} of the device in {seen['launches']:.0f} launches"
    cells = (
        (each["name"], f"{each['milliseconds']:.3f}", f"{each['launches']:.1f}")
        for each in seen["kernels"][:_SHOWN]
    )
    title = f"{row['slots']} slots, {row['mode']}: {times}, {work}"
    print_table(("kernel", "ms", "launches"), cells, title=title)


def random_model(config: ModelConfig, weights: plan.Weights, dispatch: Dispatch) -> DiffusionGemma:
    """Return a model whose weights are drawn where it runs.

    Raises `BackendError` for kernels that do not run there.
    """
    model = LAYOUT.unfilled(config, weights, dispatch)
    tensors = blank(model, LAYOUT.places(model, MODELOPT if weights == "nvfp4" else None), dispatch)
    rng = torch.Generator(dispatch.device).manual_seed(0)
    for name, tensor in tensors.items():
        _draw(name, tensor, config, rng)
    return give(model, tensors)


def _draw(name: str, tensor: Tensor, config: ModelConfig, rng: torch.Generator) -> None:
    if name.endswith(".packed"):
        tensor.random_(0, 256, generator=rng)
    elif name.endswith(".scale_2"):
        tensor.fill_(_WEIGHT / _FOUR_BIT)
    elif name.endswith(".input_scale"):
        tensor.fill_(_INPUT_SCALE)
    elif name.startswith("embed_tokens"):  # logits are products of it with normed states
        tensor.normal_(std=_LOGIT / config.hidden_size**0.5, generator=rng)
        tensor[:: max(1, config.vocab_size // _LOUD_TOKENS)] *= _LOUD / _LOGIT
    elif tensor.dim() > 1 and tensor.dtype != torch.float8_e4m3fn:
        tensor.normal_(std=_WEIGHT, generator=rng)
    else:
        tensor.fill_(1)  # gains, scalars, scales of blocks and of activations


if __name__ == "__main__":
    main()
