"""Answers of vLLM's own `LLM`, in a process of its own: jobs from a file, results to a file.

    python answers.py MODEL JOBS RESULTS [ENGINE ARGUMENTS AS JSON]

A job has `prompt` (a user's message), `max_tokens`, and, if it is constrained,
`structured_outputs`. Jobs under `together` share one call; each job under `alone` has a call of
its own, and its result is the reason of its refusal.
"""

import json
import sys
from time import perf_counter
from typing import Any

from vllm import LLM, SamplingParams
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import StructuredOutputsParams

ENGINE = {
    "dtype": "float32",
    "enforce_eager": True,
    "max_model_len": 1024,
    "max_num_seqs": 8,
    "limit_mm_per_prompt": {"image": 0, "video": 0},
    "disable_log_stats": False,
}


def params_of(job: dict[str, Any]) -> SamplingParams:
    wanted = job.get("structured_outputs")
    outputs = None if wanted is None else StructuredOutputsParams(**wanted)
    more = {k: v for k, v in job.items() if k not in ("prompt", "structured_outputs")}
    return SamplingParams(structured_outputs=outputs, **more)


def answer(llm: LLM, jobs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    messages = [[{"role": "user", "content": job["prompt"]}] for job in jobs]
    outputs = llm.chat(messages, [params_of(job) for job in jobs], use_tqdm=False)
    return [
        {"text": one.text, "finish_reason": one.finish_reason, "token_ids": list(one.token_ids)}
        for one in (output.outputs[0] for output in outputs)
    ]


def refused(llm: LLM, job: dict[str, Any]) -> str | None:
    """Return vLLM's reason to refuse a job; None: it is answered."""
    try:
        answer(llm, [job])
    except (VLLMValidationError, ValueError) as error:
        return str(error)
    return None


def fail_at(budget: int) -> None:
    """Make constraints of this budget raise, as a bug would. The engine must be in this process."""
    from dlm.grammar import Frontier

    guide = Frontier.guide

    def broken(self: Any, *args: Any) -> Any:
        if self._budget == budget:
            raise RuntimeError("a bug, by the test")
        return guide(self, *args)

    Frontier.guide = broken


def main(model: str, jobs_file: str, results_file: str, engine: str = "{}") -> None:
    with open(jobs_file) as file:
        jobs = json.load(file)
    if "fail_at" in jobs:
        fail_at(jobs["fail_at"])
    llm = LLM(model, **(ENGINE | json.loads(engine)))
    begun = perf_counter()
    results = {
        "refused": [refused(llm, job) for job in jobs["alone"]],
        "answers": answer(llm, jobs["together"]) if jobs["together"] else [],
    }
    results["seconds"] = perf_counter() - begun
    results["preemptions"] = sum(
        one.value for one in llm.get_metrics() if one.name == "vllm:num_preemptions"
    )
    with open(results_file, "w") as file:
        json.dump(results, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
