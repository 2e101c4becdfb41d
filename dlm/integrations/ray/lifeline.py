"""Processes that end with the one they work for: Ray may keep an actor for ever that was starting
when the script it belongs to was killed, and with it an engine and its GPU's memory.

They hold a connection to a socket on which nobody answers: the kernel keeps it for as long as the
process lives that listens, and breaks it whatever ends that process. As Ray itself does, it takes a
network on which processes reach each other at any port.
"""

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from threading import Thread

import ray

Owner = tuple[str, int]  # the address where a process listens for as long as it lives

_MOST = 4096  # connections that the kernel keeps
_PATIENCE = 60.0  # seconds for one to be made
_PAUSE = 1.0  # seconds before a line that has broken is made again


@contextmanager
def listening() -> Iterator[Owner]:
    """This process, which is part of a Ray cluster, as an owner."""
    here = ray.util.get_node_ip_address()  # as others see it: it need not be a network card's own
    family = socket.AF_INET6 if ":" in here else socket.AF_INET
    with socket.create_server(("", 0), family=family, backlog=_MOST) as server:
        yield here, server.getsockname()[1]


def end_with(owner: Owner) -> None:
    """From now on this process ends when its owner has."""
    Thread(target=_watch, args=(owner,), name="dlm-lifeline", daemon=True).start()


def _watch(owner: Owner) -> None:
    """A line that breaks says nothing by itself: that nobody takes a new one does."""
    while True:
        try:
            with socket.create_connection(owner, _PATIENCE) as line:
                line.settimeout(None)
                line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                with suppress(OSError):
                    line.recv(1)
            time.sleep(_PAUSE)
        except ConnectionRefusedError:
            os._exit(1)
        except OSError:
            return  # no way leads there, or none any more: Ray alone has to see to it
