"""Settings of a server, chosen by its operator.

This module imports nothing that takes time: settings that are wrong are refused at once.
"""

import re
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address

from dlm.errors import DlmError

_HOST = re.compile(r"\*|(\*\.)?[A-Za-z0-9_.-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings with the defaults of `scripts/serve.py`. Raises `DlmError` for impossible values."""

    names: tuple[str, ...] = ("dlm",)  # names of the model; answers have the first by default
    slots: int = 8  # requests that run at once
    reserved_slots: int = 0  # slots that are kept for clients without a running request
    max_queue: int = 256  # requests that may wait for a slot
    api_keys: tuple[str, ...] = ()  # each of them is valid; empty: no key is needed
    allowed_origins: tuple[str, ...] = ()  # origins of web pages that may send requests
    allowed_hosts: tuple[str, ...] = ("*",)  # values of a request's Host; *: any
    root_path: str = ""  # prefix of paths that a proxy removes
    request_ids: bool = False  # answers have the header X-Request-Id
    max_body_bytes: int = 16 << 20  # size of one body; images in it are in base64
    max_bodies_bytes: int = 256 << 20  # of all bodies that arrive, and of all that are being read
    body_seconds: float = 60.0  # in which a body must have arrived, but for its waits for steps
    keep_alive: float = 10.0  # seconds of silence after which a stream sends a comment
    stored_responses: int = 1000  # of `/v1/responses` that are kept; 0: none
    stored_bytes: int = 64 << 20  # that they may take together
    stored_file_bytes: int = 1 << 30  # of all files of clients on disk; 0: no files, no batches
    retry_after: int = 1  # seconds that clients wait if the queue is full

    def __post_init__(self) -> None:
        for name in ("slots", "max_body_bytes", "max_bodies_bytes", "retry_after"):
            if getattr(self, name) < 1:
                raise DlmError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("stored_responses", "stored_bytes", "stored_file_bytes", "max_queue"):
            if getattr(self, name) < 0:
                raise DlmError(f"{name} must be at least 0, got {getattr(self, name)}")
        if not 0 <= self.reserved_slots < self.slots:
            raise DlmError(
                f"reserved_slots must be 0 to {self.slots - 1}, fewer than the slots, got "
                f"{self.reserved_slots}"
            )
        for name in ("body_seconds", "keep_alive"):
            if not getattr(self, name) > 0:
                raise DlmError(f"{name} must be more than 0 seconds, got {getattr(self, name)}")
        for i, host in enumerate(self.allowed_hosts):
            address = address_of(host.removeprefix("[").removesuffix("]"))
            if not (_HOST.fullmatch(host) or isinstance(address, IPv6Address)):
                raise DlmError(
                    f"allowed_hosts[{i}] must be the name of a host without a port, *.NAME for all "
                    f"names below one, or * for any, got {host[:80]!r}"
                )
        if not self.names or not all(self.names):
            raise DlmError(
                f"names must have at least one name, and none that is empty, got {self.names!r:.80}"
            )
        if not all(self.api_keys):
            raise DlmError("api_keys must not have an empty key, which would admit every client")
        for i, key in enumerate(self.api_keys):
            if not (key.isascii() and key.isprintable() and key == key.strip()):
                raise DlmError(
                    f"api_keys[{i}] must be printable ASCII without blanks around it: it cannot be "
                    "sent in a header"
                )


def address_of(host: str) -> IPv4Address | IPv6Address | None:
    """Return the address that `host` is; None if it is a name."""
    try:
        return ip_address(host)
    except ValueError:
        return None
