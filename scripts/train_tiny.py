"""Train the built-in checkpoint: `python scripts/train_tiny.py --steps 3000 --out runs/tiny`.

Writes a directory in Hugging Face layout that transformers' own DiffusionGemmaForBlockDiffusion
loads. Stop it at any time: the same command goes on from its last checkpoint.
"""

import argparse
import itertools
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import tiny_tokenizer
import torch
from tiny_data import Sample, sample
from torch import Tensor
from transformers import AutoTokenizer, DiffusionGemmaConfig, Gemma4VisionConfig
from transformers.models.diffusion_gemma.generation_diffusion_gemma import (
    DiffusionGemmaGenerationConfig,
    EntropyBoundSamplerConfig,
)
from transformers.models.gemma4.modeling_gemma4 import Gemma4VisionModel

from dlm.models import DiffusionGemma, ModelConfig, checkpoint
from dlm.models.objective import Batch, loss

CANVAS = 32
CANVASES = 2  # canvases of each sample in a batch
MAX_TOKENS = 160  # longer samples are drawn again
TOKENIZER_SAMPLES = 12_000
HALF_OPEN = 0.5  # share of samples in which the model itself opens with an empty thought channel
EMPTY_THOUGHT = "<|channel>thought\n<channel|>"


def main() -> None:
    args = arguments()
    torch.set_num_threads(args.threads)
    out = Path(args.out)
    prepare(out, args.seed)
    tokenizer = AutoTokenizer.from_pretrained(out)
    config = json.loads((out / "config.json").read_text())
    torch.manual_seed(args.seed)
    model = initialised(ModelConfig.from_hf(config)).to(args.device)
    optimizers = make_optimizers(model)
    average = {name: t.clone() for name, t in model.state_dict().items()}
    state_file = out / "training.pt"
    first, spent = 0, 0.0
    if state_file.exists():
        state = torch.load(state_file, weights_only=True, map_location=args.device)
        model.load_state_dict(state["model"])
        average = state["average"]
        for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        first, spent = state["step"], state["seconds"]
        print(f"resuming at step {first}", flush=True)

    started, shown = time.monotonic() - spent, []
    for step in range(first, args.steps):
        rng = torch.Generator(args.device).manual_seed(args.seed * 1_000_003 + step)
        batch = make_batch(tokenizer, Random(f"{args.seed}/{step}"), args.batch, copying(step))
        for group in itertools.chain.from_iterable(o.param_groups for o in optimizers):
            group["lr"] = group["peak"] * schedule(step, args.steps)
        with torch.autocast(args.device, torch.bfloat16, enabled=args.bf16):
            now = loss(model, to(batch, args.device), step % 2 == 1, rng)
        for optimizer in optimizers:
            optimizer.zero_grad()
        (now.diffusion + now.next_token).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
        keep = min(0.998, (step + 1) / (step + 10))
        for name, tensor in model.state_dict().items():
            average[name].lerp_(tensor, 1 - keep)

        shown.append((now.diffusion.item(), now.next_token.item()))
        if (step + 1) % 50 == 0:
            diffusion, next_token = torch.tensor(shown[-50:]).mean(0).tolist()
            seconds = time.monotonic() - started
            print(f"{step + 1:6} {seconds:7.0f} s  {diffusion:.3f}  {next_token:.3f}", flush=True)
        if (step + 1) % args.save == 0 or step + 1 == args.steps:
            state = {
                "model": model.state_dict(),
                "average": average,
                "optimizers": [o.state_dict() for o in optimizers],
                "step": step + 1,
                "seconds": time.monotonic() - started,
            }
            torch.save(state, state_file.with_suffix(".new"))
            state_file.with_suffix(".new").rename(state_file)
            write(average, config, out)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--batch", type=int, default=48)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save", type=int, default=100, help="steps between checkpoints")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--bf16", action="store_true", help="autocast; slow on a CPU without it")
    parser.add_argument("--out", default="runs/tiny")
    return parser.parse_args()


def schedule(step: int, steps: int) -> float:
    """Share of the peak rate: 100 steps up, then flat, then down to nothing over the last 40 %."""
    return min(1.0, (step + 1) / 100, max(0.01, (steps - step) / (0.4 * steps)))


def copying(step: int) -> float:
    """Share of plain copying, which teaches to look values up; it fades over the first steps."""
    return max(0.0, 0.8 * (1 - step / 900))


def make_optimizers(model: DiffusionGemma) -> list[torch.optim.Optimizer]:
    """Muon for the matrices between layers (arXiv:2502.16982), AdamW for all the rest."""
    matrices, rest, gains = [], [], []
    for name, parameter in model.named_parameters():
        if parameter.dim() < 2:
            gains.append(parameter)
        elif parameter.dim() == 2 and "embed" not in name and "router" not in name:
            matrices.append(parameter)
        else:
            rest.append(parameter)
    return [
        torch.optim.Muon([{"params": matrices, "peak": 0.02}], weight_decay=0.01),
        torch.optim.AdamW(
            [{"params": rest, "peak": 4e-3}, {"params": gains, "peak": 4e-3, "weight_decay": 0.0}],
            betas=(0.9, 0.98),
            weight_decay=0.01,
        ),
    ]


def initialised(config: ModelConfig) -> DiffusionGemma:
    """Random weights. Query and key gains start low: attention's scale is 1, and at a gain of 1
    its softmax saturates."""
    model = DiffusionGemma(config)
    for name, parameter in model.named_parameters():
        if name.endswith(("q_norm.weight", "k_norm.weight")):
            torch.nn.init.constant_(parameter, parameter.numel() ** -0.25)
        elif parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.02)
    return model


def make_batch(tokenizer: Any, random: Random, size: int, copying_share: float) -> Batch:
    rows = []
    while len(rows) < size:
        prompt, answer = encode(tokenizer, sample(random, "train", copying_share), random)
        if len(prompt) + len(answer) <= MAX_TOKENS:
            rows.append((prompt, answer))
    T = max(len(prompt) + len(answer) for prompt, answer in rows)
    tokens = torch.zeros(size, T, dtype=torch.long)
    canvases = torch.zeros(size, CANVASES, CANVAS, dtype=torch.long)
    starts = torch.zeros(size, CANVASES, dtype=torch.long)
    for i, (prompt, answer) in enumerate(rows):
        tokens[i, : len(prompt) + len(answer)] = torch.tensor(prompt + answer)
        padded = answer + [0] * (-len(answer) % CANVAS)
        blocks = range(0, len(padded), CANVAS)
        shuffled = itertools.cycle(random.sample(blocks, len(blocks)))
        for k, begin in enumerate(itertools.islice(shuffled, CANVASES)):
            canvases[i, k] = torch.tensor(padded[begin : begin + CANVAS])
            starts[i, k] = len(prompt) + begin
    return Batch(
        tokens=tokens,
        lengths=torch.tensor([len(p) + len(a) for p, a in rows]),
        answers=torch.tensor([len(p) for p, _ in rows]),
        canvases=canvases,
        starts=starts,
    )


def encode(tokenizer: Any, item: Sample, random: Random) -> tuple[list[int], list[int]]:
    """Prompt and answer of a sample as tokens; the answer ends with its stop token."""
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": item.prompt}],
        tools=item.tools or None,
        enable_thinking=item.thought is not None,
        add_generation_prompt=True,
        tokenize=False,
    )
    answer = item.answer + ("<|tool_response>" if item.task == "tool" else "<turn|>")
    if item.thought is not None:
        answer = f"<|channel>thought\n{item.thought}<channel|>{answer}"
    elif random.random() < HALF_OPEN:
        answer = EMPTY_THOUGHT + answer
    else:
        prompt += EMPTY_THOUGHT
    ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in (prompt, answer)]
    return ids[0], ids[1]


def to(batch: Batch, device: str) -> Batch:
    return Batch(**{name: tensor.to(device) for name, tensor in vars(batch).items()})


def prepare(out: Path, seed: int) -> None:
    """Everything of a model directory but the weights."""
    out.mkdir(parents=True, exist_ok=True)
    if (out / "config.json").exists():
        return
    tiny_tokenizer.train(corpus(Random(seed)), out)
    DiffusionGemmaGenerationConfig(
        max_new_tokens=256,
        max_denoising_steps=24,
        sampler_config=EntropyBoundSamplerConfig(entropy_bound=0.1),
        t_min=0.4,
        t_max=0.8,
        stability_threshold=1,
        confidence_threshold=0.02,
        bos_token_id=2,
        eos_token_id=tiny_tokenizer.STOPS,
        pad_token_id=0,
    ).save_pretrained(out)
    (out / "config.json").write_text(json.dumps(hf_config(), indent=2) + "\n")


def corpus(random: Random) -> Iterator[str]:
    """What the tokenizer is trained on: the samples' text, control tokens cut out."""
    for _ in range(TOKENIZER_SAMPLES):
        item = sample(random, "train", copying=0.1)
        yield item.prompt
        yield re.sub(r"<[^<> ]*>", "", item.answer)
        yield f"thought\n{item.thought}\nsystem\nuser\nmodel"
        for tool in item.tools:
            properties = tool["function"]["parameters"]["properties"].items()
            said = ",".join(f"{name}:{p['type'].upper()}" for name, p in properties)
            yield f"declaration:{tool['function']['name']}{{{said}}}"


def hf_config() -> dict[str, Any]:
    """The architecture, through transformers' own config class."""
    layers = ["sliding_attention", "full_attention"] * 2
    config = DiffusionGemmaConfig(
        text_config={
            "vocab_size": tiny_tokenizer.VOCAB_SIZE,
            "hidden_size": 128,
            "intermediate_size": 256,
            "num_hidden_layers": len(layers),
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 32,
            "global_head_dim": 64,
            "num_global_key_value_heads": 1,
            "sliding_window": 64,
            "layer_types": layers,
            "num_experts": 4,
            "top_k_experts": 2,
            "moe_intermediate_size": 96,
            "max_position_embeddings": 2048,
            "pad_token_id": 0,
            "bos_token_id": 2,
            "eos_token_id": tiny_tokenizer.STOPS,
        },
        vision_config=vision_config().to_dict(),
        canvas_length=CANVAS,
        image_token_id=5,
        boi_token_id=6,
        eoi_token_id=7,
    )
    return {
        **config.to_dict(),
        "architectures": ["DiffusionGemmaForBlockDiffusion"],
        "dtype": "float32",
    }


def vision_config() -> Gemma4VisionConfig:
    """The smallest vision tower that transformers builds: it rides along, untrained."""
    return Gemma4VisionConfig(
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=16,
        patch_size=4,
        position_embedding_size=16,
    )


def write(weights: dict[str, Tensor], config: dict[str, Any], out: Path) -> None:
    model = DiffusionGemma(ModelConfig.from_hf(config))
    model.load_state_dict(weights)
    torch.manual_seed(0)
    tower = Gemma4VisionModel(vision_config())
    extra = {
        f"model.encoder.vision_tower.{n}": t.contiguous() for n, t in tower.state_dict().items()
    }
    projection = torch.randn(config["text_config"]["hidden_size"], tower.config.hidden_size) * 0.02
    extra["model.encoder.embed_vision.embedding_projection.weight"] = projection
    checkpoint.save(model, out, config, extra)


if __name__ == "__main__":
    main()
