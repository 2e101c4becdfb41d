"""From what a field says to a spec, within the limits of a policy."""

from collections.abc import Callable
from typing import Any

from dlm.errors import RequestError
from dlm.grammar import InvalidGrammarError, Spec
from dlm.policy import Policy


def made(field: str, policy: Policy, kind: str, source: Any, make: Callable[[], Spec]) -> Spec:
    """What `make` makes of `source`, if the policy admits it."""
    try:
        policy.admit(kind, source)
        return make()
    except (InvalidGrammarError, RequestError) as error:
        raise RequestError(f"{field}: {error}") from error
    except RecursionError as error:
        raise RequestError(f"{field}: nested too deep") from error
