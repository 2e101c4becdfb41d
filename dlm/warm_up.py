"""Warm-up of an engine before its first clients, so that none of them waits for kernels."""

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from dlm.errors import RequestError
from dlm.grammar import Choice, Spec
from dlm.policy import Policy
from dlm.request import Request
from dlm.together import Progress


def warm_up(
    model: Any,
    cache: Any,
    slots: int,
    generate: Callable[[Request], object],
    policy: Policy,
    progress: Progress | None,
) -> None:
    """Capture the passes of a model that captures them, over canvases of up to `slots` slots, and
    `generate` short answers for all other kernels. `progress` is called with the number of finished
    parts and of all."""

    def answer(request: Request) -> None:
        with suppress(RequestError):  # the engine is too small for it
            generate(request)

    passes = getattr(model, "warm_up", None)  # models of other makers may have none
    parts = [] if passes is None else passes(cache, slots)
    parts += [partial(answer, request) for request in warm_up_requests(policy)]
    for done, part in enumerate(parts):
        if progress is not None:
            progress(done, len(parts))
        part()
    if progress is not None:
        progress(len(parts), len(parts))


def warm_up_requests(policy: Policy) -> list[Request]:
    """Return requests that between them read logits in every way: plainly, under cuts, and under
    the masks of a constraint, if the policy serves one."""
    plain = {"token_ids": [5, 6, 7] * 8, "max_tokens": 8, "seed": 0}  # any token ids
    spec, constraints = Choice(("yes", "no")), list[Spec | None]([None])
    with suppress(RequestError):
        policy.check(spec)
        constraints.append(spec)
    return [
        Request(**plain, constraint=constraint, top_k=top_k)
        for constraint in constraints
        for top_k in (0, 4)
    ]
