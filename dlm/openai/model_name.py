"""Which names a model goes by, and what a client is told that asks for another."""

from collections.abc import Sequence

from dlm.errors import RequestError


class UnknownModelError(RequestError):
    """No model goes by that name: an HTTP 404."""


def known_name(asked: str | None, names: Sequence[str]) -> str:
    """The name that the client knows the model by: the first, if it asks for none.

    Raises `UnknownModelError`.
    """
    if asked is None:
        return names[0]
    if asked not in names:
        raise UnknownModelError(
            f"The model {asked!r:.100} does not exist here: it takes {', '.join(names)}",
            field="model",
        )
    return asked
