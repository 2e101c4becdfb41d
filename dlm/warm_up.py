"""Requests that an engine runs before its first clients, so that none of them waits for kernels."""

from contextlib import suppress

from dlm.errors import RequestError
from dlm.grammar import Choice, Spec
from dlm.policy import Policy
from dlm.request import Request


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
