"""Processes that end with the one they work for: Ray may keep an actor for ever that was starting
when the script it belongs to was killed, and with it an engine and its GPU's memory.

They hold a connection to a socket on which nobody answers: the kernel keeps it for as long as the
process lives that listens, and breaks it whatever ends that process.
"""

import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

import ray

from dlm.errors import DlmError

Owner = tuple[str, int]  # the address where a process listens for as long as it lives

_MOST = 4096  # connections that the kernel keeps
_PATIENCE = 60.0  # seconds for one to be made


@contextmanager
def listening() -> Iterator[Owner]:
    """This process, which is part of a Ray cluster, as an owner. Raises `DlmError` where it cannot
    listen at its own address."""
    here = ray.util.get_node_ip_address()
    family = socket.AF_INET6 if ":" in here else socket.AF_INET
    try:
        server = socket.create_server((here, 0), family=family, backlog=_MOST)
    except OSError as error:
        raise DlmError(f"cannot listen at {here}, this node's address: {error}") from error
    with server:
        yield here, server.getsockname()[1]


def end_with(owner: Owner) -> None:
    """From now on this process ends when its owner has."""
    Thread(target=_watch, args=(owner,), name="dlm-lifeline", daemon=True).start()


def _watch(owner: Owner) -> None:
    try:
        with socket.create_connection(owner, _PATIENCE) as line:
            line.settimeout(None)
            line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            line.recv(1)
    except ConnectionError:
        pass
    except OSError:
        return  # no way leads there, or none any more: Ray alone has to see to it
    os._exit(1)
