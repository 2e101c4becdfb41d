"""Requests that an engine runs before those of users, so that no kernel is left to be compiled."""

from collections.abc import Callable

from dlm.errors import RequestError
from dlm.grammar import Choice
from dlm.policy import Policy
from dlm.request import Request

Progress = Callable[[int, int], None]
"""Function that is called with the number of finished parts of a warm-up, and the number of all."""

_PROMPT = [5, 6, 7] * 8  # token ids: any
_TOKENS = 8  # of an answer, at most


def warm_up_requests(policy: Policy) -> list[Request]:
    """Return requests that between them read logits in every way: plainly, under cuts, and under
    the masks of a constraint, if the policy serves one."""
    plain = {"token_ids": _PROMPT, "max_tokens": _TOKENS, "seed": 0}
    found = [Request(**plain), Request(**plain, top_k=4)]
    spec = Choice(("yes", "no"))
    try:
        policy.check(spec)
    except RequestError:
        return found
    return [*found, Request(**plain, constraint=spec), Request(**plain, constraint=spec, top_k=4)]
