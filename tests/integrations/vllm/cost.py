"""Measure the cost of constraints in a step of vLLM: its sampler's time, with and without them.

    PYTHONPATH=scripts python tests/integrations/vllm/cost.py [MODEL [REQUESTS...]]

Run it in the environment of `make vllm`, with the variables of `conftest.ENVIRONMENT`. Steps with
constraints, without any, and with a free request among constrained ones alternate in one run, since
machines are noisy. "longest" is the longest step of the sampler: what a free request waits for.
"""

import json
import os
import sys
from statistics import median
from time import perf_counter
from typing import Any

from conftest import ENVIRONMENT, TINY
from training.extraction import extract

REQUESTS, TURNS = (1, 8, 16), 1
FREE = {"constrained": 0, "one free": 1, "free": sys.maxsize}  # requests without a constraint


def main(model: str = str(TINY), *counts: str) -> None:
    requests = [int(count) for count in counts] or REQUESTS
    os.environ.update(ENVIRONMENT | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"})
    import answers
    from vllm import LLM

    from dlm.integrations.vllm.sampler import ConstrainedSampler
    from dlm.integrations.vllm.slots import Slot
    from dlm.logits.guided import LogitsGuide

    spent: dict[str, list[float]] = {"sampler": [], "logits": [], "grammar": []}

    def timed(owner: type, name: str, part: str) -> None:
        original = getattr(owner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            begun = perf_counter()
            try:
                return original(*args, **kwargs)
            finally:
                spent[part].append(perf_counter() - begun)

        setattr(owner, name, call)

    timed(ConstrainedSampler, "__call__", "sampler")
    timed(LogitsGuide, "guide_", "logits")
    timed(Slot, "guide", "grammar")
    llm = LLM(model, **answers.ENGINE | {"max_num_seqs": max(requests)})
    from random import Random

    items = [extract(Random(f"built in/{i}"), "heldout") for i in range(max(requests))]
    for count in requests:
        rows: dict[str, list[dict[str, float]]] = {mix: [] for mix in FREE}
        for mix in [*FREE] * TURNS:
            jobs = [
                {"prompt": item.prompt, "max_tokens": 128}
                | ({"structured_outputs": {"json": item.schema}} if i >= FREE[mix] else {})
                for i, item in enumerate(items[:count])
            ]
            for part in spent.values():
                part.clear()
            begun = perf_counter()
            answers.answer(llm, jobs)
            steps = len(spent["sampler"])
            row = {"steps": steps, "step ms": 1e3 * (perf_counter() - begun) / steps}
            row |= {f"{part} ms": 1e3 * sum(times) / steps for part, times in spent.items()}
            row["longest ms"] = 1e3 * max(spent["sampler"])
            row["a guide ms"] = 1e3 * median(spent["grammar"]) if spent["grammar"] else 0.0
            rows[mix].append(row)
        for mix, measured in rows.items():
            row = {name: round(median(row[name] for row in measured), 2) for name in measured[0]}
            print(json.dumps({"requests": count, "mix": mix} | row), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
