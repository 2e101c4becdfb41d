"""Models in Anthropic's form, one or a list."""

from collections.abc import Sequence

from dlm.openai.body import Body

_CREATED = "1970-01-01T00:00:00Z"  # Anthropic's value for an unknown date


def model_info(name: str, most_input: int, most_output: int) -> Body:
    """Return a model that reads up to `most_input` tokens and writes up to `most_output`."""
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": _CREATED,
        "lifecycle": "active",
        "max_input_tokens": most_input,
        "max_tokens": most_output,
    }


def model_page(models: Sequence[Body]) -> Body:
    """Return all models as the only page of their list."""
    ids = [model["id"] for model in models]
    return {
        "data": list(models),
        "has_more": False,
        "first_id": ids[0] if ids else None,
        "last_id": ids[-1] if ids else None,
    }
