"""Engines on the machines of a Ray cluster: rows by Ray Data (`batch`), requests by Ray Serve
(`application`).

Here a process joins a cluster: an existing one, or one on this machine for as long as needed.

Ray may keep an actor for ever if it was starting when its script was killed, and with it an engine
and the memory of a GPU. So actors end with their owner: each holds a connection to a socket of the
owner on which nothing is ever sent. The kernel keeps the connection while the owner lives, and
breaks it however the owner ends. As Ray itself does, this needs a network on which processes reach
each other at any port.
"""

import logging
import os
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from threading import Thread
from typing import Any

from dlm.errors import DlmError
from dlm.loading import Loading

try:
    import ray
except ModuleNotFoundError as error:
    if error.name != "ray":
        raise
    raise DlmError("Ray is not installed: pip install 'dlm[ray]'") from error

Owner = tuple[str, int]  # the address where a process listens for as long as it lives

_MOST = 4096  # connections that the kernel keeps
_LIFELINE_SECONDS = 60.0  # seconds for one to be made
_PAUSE = 1.0  # seconds before a line that has broken is made again


@contextmanager
def listening() -> Iterator[Owner]:
    """Make this process, which is part of a Ray cluster, an owner; yield its address."""
    here = ray.util.get_node_ip_address()  # as others see it: it need not be a network card's own
    family = socket.AF_INET6 if ":" in here else socket.AF_INET
    with socket.create_server(("", 0), family=family, backlog=_MOST) as server:
        yield here, server.getsockname()[1]


def end_with(owner: Owner) -> None:
    """End this process as soon as its `owner` has ended."""
    Thread(target=_watch, args=(owner,), name="dlm-lifeline", daemon=True).start()


def _watch(owner: Owner) -> None:
    """Reconnect when the connection breaks; a refused connection means that the owner has ended."""
    while True:
        try:
            with socket.create_connection(owner, _LIFELINE_SECONDS) as line:
                line.settimeout(None)
                line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                with suppress(OSError):
                    line.recv(1)
            time.sleep(_PAUSE)
        except ConnectionRefusedError:
            os._exit(1)
        except OSError:
            return  # the owner cannot be reached: Ray alone has to end this process


LOCAL = "local"  # the address of a cluster that is made here
_STORE = 256 << 20  # bytes of a local cluster's object store: rows pass through it, no weights do
_PATIENCE = 10.0  # seconds for a cluster's head to take a connection
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # as Ray will have it; else it warns
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """An HTTP request whose key has been checked and whose body has arrived. No header counts but
    one, which chooses the form of models.

    It cannot be in the module of `PrefixRouter`, which recognises it: Ray pickles a router with all
    of its module, and its copy of the class would be another one.
    """

    prefix: str  # what its prompt begins with, as `prefix_of` names it
    tried: int = 0  # replicas that have failed it
    method: str
    client: str = ""  # whose it is, as `Guard.client` names it
    path: str  # as the application without a prefix has it
    body: bytes
    anthropic: bool = False  # its client speaks Anthropic's API


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """Resources of a cluster."""

    local: bool  # it was made here, and goes with this process
    cpus: float
    gpus: float
    owner: Owner  # this process

    def places(self, loading: Loading, count: int) -> tuple[Loading, dict[str, Any]]:
        """Return how each of `count` engines is loaded, and the resources that Ray reserves for it.

        That is a GPU if the cluster has any, else a core; a cluster of this process's own divides
        all its cores among them. Raises `DlmError` if there are too few.
        """
        device = loading.device or ("cuda" if self.gpus else "cpu")
        if loading.model is None or device == "cpu":
            if self.cpus < count:
                raise DlmError(f"{count} engines need {count} cores: the cluster has {self.cpus:g}")
            cores = int(self.cpus) // count if self.local else 1
            return replace(loading, device="cpu"), {"num_cpus": cores}
        if self.gpus < count:
            raise DlmError(f"{count} engines need {count} GPUs: the cluster has {self.gpus:g}")
        return replace(loading, device=device), {"num_cpus": 1, "num_gpus": 1}


@contextmanager
def joined(address: str, engines: int) -> Iterator[Cluster]:
    """Make this process a driver of the cluster at `address`, as `ray.init` takes it.

    `LOCAL` makes a cluster here, for `engines` engines. Raises `DlmError` if there is no cluster at
    `address`. Ray sends no statistics of its use, unless the environment asks for them.
    """
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    made: dict[str, Any] = {"address": address}
    if address == LOCAL:
        made |= {
            "num_cpus": max(engines, os.cpu_count() or 1),
            "object_store_memory": _STORE,
            "include_dashboard": False,
        }
    else:
        _check(address)
    try:
        ray.init(**made, logging_level=logging.ERROR)
    except (ConnectionError, ValueError) as error:
        raise DlmError(f"no Ray cluster at {address}: {str(error)[:200]}") from error
    with ExitStack() as lines:  # which are broken once Ray has ended its actors itself
        try:
            there = ray.cluster_resources()
            owner = lines.enter_context(listening())
            yield Cluster(
                local=address == LOCAL,
                cpus=there.get("CPU", 0),
                gpus=there.get("GPU", 0),
                owner=owner,
            )
        finally:
            ray.shutdown()


def _check(address: str) -> None:
    """Raise `DlmError` if nothing listens at `address`: Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if port.isdigit():
        try:
            socket.create_connection((host, int(port)), _PATIENCE).close()
        except OSError as error:
            raise DlmError(f"no Ray cluster at {address}: {error}") from error
