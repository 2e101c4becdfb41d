"""Size of prompts before they are rendered and tokenized, which takes long for those that can never
fit a model's context."""

from dlm.chat import leaves
from dlm.errors import ContextLengthError
from dlm.images import without_pictures
from dlm.request import Request

_RENDERED = ("role", "content", "tool_calls")  # of messages; templates render little else
_VALUES = 4  # values for each position of the model: strings, numbers, keys


def check_size(request: Request, positions: int, longest: int) -> None:
    """Raise `RequestError` for a prompt that can never fit.

    `positions` are those of the model, and `longest` is the number of bytes of its longest token.
    """
    most = positions * longest
    for name in ("prompt", "text"):
        length = len(getattr(request, name) or "")
        if length > most:
            raise ContextLengthError(
                f"{name} has {length} characters: at most {most} ever fit",
                field="prompt",
                most=positions,
                longest_prompt=positions,
                prompt=-(-length // longest),
                counted=False,
            )
    characters = values = 0
    for message in map(without_pictures, request.messages or ()):
        for key, value in message.items():
            for one in leaves({key: value}):
                if key in _RENDERED:
                    characters += len(one) if isinstance(one, str) else 1
                    values += 1
    if characters > most or values > positions * _VALUES:
        raise ContextLengthError(
            f"messages hold {characters} characters in {values} values: "
            f"at most {most} in {positions * _VALUES} ever fit",
            field="messages",
            most=positions,
            longest_prompt=positions,
            prompt=max(positions + 1, -(-characters // longest)),
            counted=False,
        )


def prompt_field(request: Request) -> str:
    """Return the field of a body that has the prompt of a request."""
    return "messages" if request.messages else "prompt"
