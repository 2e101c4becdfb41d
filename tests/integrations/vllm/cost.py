"""Measure the cost of constraints in a step of vLLM: its sampler's time, with and without them.

    PYTHONPATH=scripts python tests/integrations/vllm/cost.py [MODEL]

Run it in the environment of `make vllm`, with the variables of `conftest.ENVIRONMENT`. Steps with
and without constraints alternate in one run, since machines are noisy.
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


def main(model: str = str(TINY)) -> None:
    os.environ.update(ENVIRONMENT | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"})
    import answers
    from vllm import LLM

    from dlm.integrations.vllm.sampler import ConstrainedSampler, Slot
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
    llm = LLM(model, **answers.ENGINE | {"max_num_seqs": max(REQUESTS)})
    from random import Random

    items = [extract(Random(f"built in/{i}"), "heldout") for i in range(max(REQUESTS))]
    for count in REQUESTS:
        rows: dict[bool, list[dict[str, float]]] = {True: [], False: []}
        for turn in range(2 * TURNS):
            bound = turn % 2 == 0
            jobs = [
                {"prompt": item.prompt, "max_tokens": 128}
                | ({"structured_outputs": {"json": item.schema}} if bound else {})
                for item in items[:count]
            ]
            for part in spent.values():
                part.clear()
            begun = perf_counter()
            answers.answer(llm, jobs)
            steps = len(spent["sampler"])
            row = {"steps": steps, "step ms": 1e3 * (perf_counter() - begun) / steps}
            row |= {f"{part} ms": 1e3 * sum(times) / steps for part, times in spent.items()}
            row["a guide ms"] = 1e3 * median(spent["grammar"]) if bound else 0.0
            rows[bound].append(row)
        for bound, found in rows.items():
            row = {name: round(median(one[name] for one in found), 2) for name in found[0]}
            print(json.dumps({"requests": count, "constrained": bound} | row), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
