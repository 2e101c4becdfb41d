"""Being part of a Ray cluster: one that is there, or one on this machine for as long as needed.

Processes that end with the one they work for: Ray may keep an actor for ever that was starting
when the script it belongs to was killed, and with it an engine and its GPU's memory.

They hold a connection to a socket on which nobody answers: the kernel keeps it for as long as the
process lives that listens, and breaks it whatever ends that process. As Ray itself does, it takes a
network on which processes reach each other at any port.

A request on its way from the ingress to a replica.
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

import ray

from dlm.errors import DlmError
from dlm.loading import Loading

Owner = tuple[str, int]  # the address where a process listens for as long as it lives

_MOST = 4096  # connections that the kernel keeps
_LIFELINE_SECONDS = 60.0  # seconds for one to be made
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
            with socket.create_connection(owner, _LIFELINE_SECONDS) as line:
                line.settimeout(None)
                line.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                with suppress(OSError):
                    line.recv(1)
            time.sleep(_PAUSE)
        except ConnectionRefusedError:
            os._exit(1)
        except OSError:
            return  # no way leads there, or none any more: Ray alone has to see to it


LOCAL = "local"  # the address of a cluster that is made here
_STORE = 256 << 20  # bytes of a local cluster's object store: rows pass through it, no weights do
_PATIENCE = 10.0  # seconds for a cluster's head to take a connection
_QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # as Ray will have it; else it warns
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """What there is of it."""

    local: bool  # it was made here, and goes with this process
    cpus: float
    gpus: float
    owner: Owner  # this process

    def places(self, loading: Loading, count: int) -> tuple[Loading, dict[str, Any]]:
        """How each of `count` engines is loaded, and what Ray is asked to reserve for it: a GPU
        where there are any, else a core. Raises `DlmError` where there are not so many."""
        device = loading.device or ("cuda" if self.gpus else "cpu")
        if loading.model is None or device == "cpu":
            if self.cpus < count:
                raise DlmError(f"{count} engines need {count} cores: the cluster has {self.cpus:g}")
            return replace(loading, device="cpu"), {"num_cpus": 1}
        if self.gpus < count:
            raise DlmError(f"{count} engines need {count} GPUs: the cluster has {self.gpus:g}")
        return replace(loading, device=device), {"num_cpus": 1, "num_gpus": 1}


@contextmanager
def joined(address: str, engines: int) -> Iterator[Cluster]:
    """This process as a driver of the cluster at `address`, as `ray.init` takes it, or of one that
    is made here for so many engines. Raises `DlmError` for an address where there is none.

    Ray is told to send no statistics of its use, unless the environment says so."""
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
    """Somebody listens there: Ray itself would try for minutes."""
    host, _, port = address.rpartition(":")
    if port.isdigit():
        try:
            socket.create_connection((host, int(port)), _PATIENCE).close()
        except OSError as error:
            raise DlmError(f"no Ray cluster at {address}: {error}") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """An HTTP request whose key has been checked and whose body has arrived: no header counts."""

    prefix: str  # what its prompt begins with, as `prefix_of` names it
    tried: int = 0  # replicas that have failed it
    method: str
    client: str = ""  # whose it is, as `Guard.client` names it
    path: str  # as the application without a prefix has it
    body: bytes
