"""Passes and tokens per pass of each way to decode, on the same weights and prompts.

    python scripts/compare_decodings.py --n 50

Held-out extraction prompts, under their schemas and without. A pass is one forward pass of the
model that a request takes part in. "same" counts the drafted answers that are, token for token,
those written left to right. Grammars are compiled and warm: all prompts are answered twice, and the
second time counts.
"""

import argparse
import time
from random import Random

from evaluate import is_exact, is_valid
from rich.console import Console
from rich.table import Table
from tiny_data import Sample, extract

import dlm

DECODINGS = {
    "left to right": dlm.Autoregressive(),
    "left to right, drafted": dlm.Autoregressive(drafts=True),
    "canvases": dlm.Diffusion(),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", metavar="DIR", help="built in: tiny")
    parser.add_argument("--n", type=int, default=50, help="prompts")
    parser.add_argument("--max-tokens", type=int, default=160)
    parser.add_argument("--slots", type=int, default=8)
    args = parser.parse_args()
    items = [extract(Random(f"decodings/{i}"), "heldout") for i in range(args.n)]
    names = "decoding constraint valid exact passes tokens tokens/pass drafted kept same s/prompt"
    shown = Table(*names.split())
    for constrained in (False, True):
        plain: list[list[int]] = []
        for name, decoding in DECODINGS.items():
            results, seconds = answers(decoding, items, constrained, args)
            said = [result.token_ids for result in results]
            plain = plain or said
            same = sum(a == b for a, b in zip(plain, said, strict=True))
            shown.add_row(*row(name, constrained, results, items, same, seconds))
    Console(width=140).print(shown)


def answers(
    decoding: dlm.Autoregressive | dlm.Diffusion,
    items: list[Sample],
    constrained: bool,
    args: argparse.Namespace,
) -> tuple[list[dlm.Result], float]:
    """Results, and seconds for all of them together."""
    engine = dlm.Engine.load(args.model, device="cpu", slots=args.slots, decoding=decoding)
    requests = [
        dlm.Request(
            prompt=item.prompt,
            constraint=dlm.JsonSchema(item.schema or True) if constrained else None,
            max_tokens=args.max_tokens,
            seed=i,
        )
        for i, item in enumerate(items)
    ]
    engine.generate(requests)
    started = time.perf_counter()
    results = engine.generate(requests)
    seconds = time.perf_counter() - started
    engine.close()
    return results, seconds


def row(
    name: str,
    constrained: bool,
    results: list[dlm.Result],
    items: list[Sample],
    same: int,
    seconds: float,
) -> list[str]:
    pairs = list(zip(results, items, strict=True))
    passes, tokens, drafted, kept = (
        sum(getattr(result.stats, field) for result in results)
        for field in ("calls", "tokens", "drafted", "drafts_kept")
    )
    return [
        name,
        "yes" if constrained else "no",
        f"{sum(is_valid(result.text, item.schema) for result, item in pairs)}/{len(items)}",
        f"{sum(is_exact(result.text, item) for result, item in pairs)}/{len(items)}",
        str(passes),
        str(tokens),
        f"{tokens / passes:.2f}",
        str(drafted),
        str(kept),
        f"{same}/{len(items)}",
        f"{seconds / len(items):.3f}",
    ]


if __name__ == "__main__":
    main()
