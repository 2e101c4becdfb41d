"""The engine beside transformers' own `generate`, on the same model, prompts and machine.

    python scripts/compare_transformers.py --prompts 100

Unconstrained, one prompt at a time on both sides and in turns, so that a noisy machine is noisy for
both. Prints exact-match rates, which have to agree within their error, and seconds a denoising
step. The random streams differ; the distribution has to be the same.

    python scripts/compare_transformers.py --vocab 262144 --json

What one step of 256 positions takes on both sides, of time and memory, ours under a JSON schema.
"""

import argparse
import json
import math
import time
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import compare_steps
import torch
from training.extraction import extract
from transformers import DiffusionGemmaForBlockDiffusion

import dlm
from dlm.cli.comparison.judging import is_exact
from dlm.engine import BUILT_IN
from dlm.grammar import Reasoning

_SCHEMA = Path(__file__).parent.parent / "examples" / "invoice.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", metavar="DIR", default=str(BUILT_IN), help="built in: tiny")
    parser.add_argument("--prompts", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--max-tokens", type=int, default=96)
    steps = parser.add_argument_group("one step at a large vocabulary instead")
    steps.add_argument("--vocab", type=int, metavar="V", help="tokens of a random model")
    steps.add_argument("--steps", type=int, default=4)
    steps.add_argument("--schema", type=Path, default=_SCHEMA, metavar="FILE")
    steps.add_argument("--tokenizer", type=Path, metavar="FILE", help="the built-in model's")
    steps.add_argument("--json", action="store_true", help="on one line")
    args = parser.parse_args()
    if args.vocab:
        with TemporaryDirectory() as folder:
            found = compare_steps.compare(
                args.vocab, args.steps, args.schema, args.tokenizer, Path(folder)
            )
        print(json.dumps(found, indent=None if args.json else 2))
        return
    print(json.dumps(compare(args.model, args.prompts, args.seed, args.max_tokens), indent=2))


def compare(directory: str, prompts: int, seed: int, max_tokens: int) -> dict[str, float]:
    engine = dlm.Engine.load(directory, device="cpu", slots=1)
    thoughts = Reasoning.of(engine.vocabulary)
    if thoughts is None:
        raise SystemExit(f"{directory}: its tokenizer has no markers of reasoning")
    reference = DiffusionGemmaForBlockDiffusion.from_pretrained(directory).eval()
    random = Random(f"compare/{seed}")
    ours = theirs = our_calls = their_calls = 0
    our_seconds = their_seconds = 0.0
    for i in range(prompts):
        item = extract(random, "heldout")
        request = dlm.Request(
            prompt=item.prompt,
            max_tokens=max_tokens,
            seed=seed * 1_000_003 + i,
            thinking=item.thought is not None,
        )
        tokens = engine.chat.prompt(request)

        started = time.perf_counter()
        result = engine.generate(request)
        our_seconds += time.perf_counter() - started
        our_calls += result.stats.denoiser_calls
        ours += is_exact(result.text, item.value)

        torch.manual_seed(seed * 1_000_003 + i)
        started = time.perf_counter()
        inputs: Any = torch.tensor([tokens])
        output: Any = reference.generate(inputs, max_new_tokens=max_tokens)
        their_seconds += time.perf_counter() - started
        said = [token for token in output.sequences[0, len(tokens) :].tolist() if token != 0]
        their_calls += round(len(said) / output.tokens_per_forward.item())
        theirs += is_exact(engine.vocabulary.text(thoughts.split(said)[1]), item.value)
    pooled = (ours + theirs) / (2 * prompts)
    error = math.sqrt(max(pooled * (1 - pooled), 1e-9) * 2 / prompts)
    return {
        "prompts": prompts,
        "exact": ours / prompts,
        "exact_transformers": theirs / prompts,
        "standard_errors_apart": abs(ours - theirs) / prompts / error,
        "calls": our_calls / prompts,
        "calls_transformers": their_calls / prompts,
        "milliseconds_a_step": 1000 * our_seconds / our_calls,
        "milliseconds_a_step_transformers": 1000 * their_seconds / their_calls,
        "speed": (their_seconds / their_calls) / (our_seconds / our_calls),
    }


if __name__ == "__main__":
    main()
