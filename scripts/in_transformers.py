"""Measure the constraint within transformers' own `generate`, and the same calls without it.

    python scripts/in_transformers.py --n 100

Held-out extraction prompts, each with its own schema, one call each. "exact" ignores a code fence
around the JSON; "valid" does not.
"""

import json
import time
from random import Random
from typing import Any

import torch
from measure.options import MeasureParser
from training.extraction import extract
from transformers import DiffusionGemmaForBlockDiffusion

import dlm
from dlm.chat import Chat
from dlm.cli.compare.judging import is_exact, is_valid
from dlm.engine import BUILT_IN
from dlm.integrations.transformers import Constrain


def main() -> None:
    parser = MeasureParser(__doc__, "model")
    parser.set_defaults(model=str(BUILT_IN))
    parser.add_count("--n", 100, "The prompts that are answered.")
    parser.add_count("--max-new-tokens", 96, "The most tokens of an answer.")
    args = parser.parsed()
    torch.set_num_threads(1)  # the built-in model is too small for more
    model = DiffusionGemmaForBlockDiffusion.from_pretrained(args.model).eval()
    chat = Chat.load(args.model)
    constrain = Constrain(model, chat.tokenizer)
    items = [extract(Random(f"in transformers/{i}"), "heldout") for i in range(args.n)]
    for constrained in (False, True):
        row = {"constrained": constrained, "prompts": args.n, "valid": 0, "exact": 0}
        tokens, started = 0.0, time.perf_counter()
        for i, item in enumerate(items):
            torch.manual_seed(i)
            ids: Any = torch.tensor([chat.prompt(dlm.Request(prompt=item.prompt))])
            spec = dlm.JsonSchema(item.schema or True) if constrained else None
            processors = constrain(spec, max_new_tokens=args.max_new_tokens)
            out: Any = model.generate(
                ids, max_new_tokens=args.max_new_tokens, logits_processor=processors
            )
            text = constrain.vocabulary.text(out.sequences[0, ids.shape[1] :].tolist())
            row["valid"] += is_valid(text, item.schema)
            row["exact"] += is_exact(text, item.value)
            tokens += float(out.tokens_per_forward[0])
        seconds = (time.perf_counter() - started) / args.n
        more = {"tokens_per_call": tokens / args.n, "seconds_per_prompt": seconds}
        print(json.dumps(row | {name: round(value, 3) for name, value in more.items()}))


if __name__ == "__main__":
    main()
