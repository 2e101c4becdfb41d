"""Whether a body lets the model reason first, and for how long."""

from collections.abc import Mapping
from typing import Any

from dlm.openai.body import flag_at, object_at, only, whole_at, wrong

# Tokens of reasoning at most, by `reasoning_effort`; from "low" on whole canvases of 256. "none"
# does not think.
EFFORT = {
    "none": 0,
    "minimal": 64,
    "low": 256,
    "medium": 1024,
    "high": 4096,
    "xhigh": 16_384,
    "max": 65_536,
}


def thinking_of(body: Mapping[str, Any]) -> tuple[bool, int | None]:
    """Whether to think, and for how many tokens at most; None: as many as there is room for.

    `thinking_token_budget` goes before what `reasoning_effort` stands for, and a template's switch
    `enable_thinking` before both, unless they leave no token. Raises `RequestError`.
    """
    effort, field = body.get("reasoning_effort"), "reasoning_effort"
    if effort is not None and (not isinstance(effort, str) or effort not in EFFORT):
        raise wrong(field, effort, ", ".join(EFFORT))
    budget = whole_at("thinking_token_budget", body.get("thinking_token_budget"))
    if budget is not None and budget < 0:
        raise wrong("thinking_token_budget", budget, "0 or more tokens")
    if budget is None and effort is not None:
        budget = EFFORT[effort]
    thinking = _switch(body.get("chat_template_kwargs"))
    if thinking is None or budget == 0:
        thinking = bool(budget)
    return thinking, budget if thinking else None


def _switch(value: Any) -> bool | None:
    if value is None:
        return None
    field = "chat_template_kwargs"
    only(field, object_at(field, value), ("enable_thinking",))
    return flag_at(f"{field}.enable_thinking", value.get("enable_thinking"))
