"""What an operator says of a server."""

from dataclasses import dataclass

from dlm.errors import DlmError

LARGE = 65_536  # bytes of a body from which on it is not read beside others


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Defaults are those of `scripts/serve.py`. Raises `DlmError` for impossible values."""

    names: tuple[str, ...] = ("dlm",)  # that the model goes by; the first is told
    slots: int = 8  # requests that run at once
    max_queue: int = 256  # requests that may wait beside them
    api_keys: tuple[str, ...] = ()  # any of them opens; none: everybody is let in
    allowed_origins: tuple[str, ...] = ()  # of web pages that may ask
    root_path: str = ""  # that a proxy in front takes away
    request_ids: bool = False  # answers carry the header X-Request-Id
    max_body_bytes: int = 4 << 20  # of a request; the longest of contexts as text
    max_bodies_bytes: int = 256 << 20  # of all that are being received, and of all that are read
    body_seconds: float = 60.0  # in which a request must have arrived
    keep_alive: float = 10.0  # seconds of silence after which a stream says that it lives
    retry_after: int = 1  # seconds, where the queue is full

    def __post_init__(self) -> None:
        for name in ("slots", "max_body_bytes", "max_bodies_bytes", "retry_after"):
            if getattr(self, name) < 1:
                raise DlmError(f"{name} is {getattr(self, name)}: it takes at least 1")
        if self.max_queue < 0:
            raise DlmError(f"max_queue is {self.max_queue}: it takes 0 or more requests")
        for name in ("body_seconds", "keep_alive"):
            if not getattr(self, name) > 0:
                raise DlmError(f"{name} is {getattr(self, name)}: it takes more than 0 seconds")
        if not self.names or not all(self.names):
            raise DlmError("names holds no name, or an empty one: a model goes by a name")
        if not all(self.api_keys):
            raise DlmError("api_keys holds an empty key: it would let everybody in")
        for i, key in enumerate(self.api_keys):
            if not (key.isascii() and key.isprintable() and key == key.strip()):
                raise DlmError(
                    f"api_keys[{i}] would never open, since no header carries it: it takes "
                    "printable ASCII without blanks around it"
                )
