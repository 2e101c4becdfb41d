"""Results of requests that no engine has answered."""

from dlm import Result, Stats

ENDED = {
    "reasoning": None,
    "parsed": None,
    "tool_calls": (),
    "finish_reason": "stop",
    "complete": True,
    "squeezed": False,
    "prompt_tokens": 1,
    "reasoning_tokens": 0,
}


def result_of(tokens, text, **fields):
    """Return the result of an answer that ended by itself, but for `fields`."""
    return Result(**{"text": text, "token_ids": tokens, "stats": Stats()} | ENDED | fields)
