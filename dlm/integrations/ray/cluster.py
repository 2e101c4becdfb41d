"""Being part of a Ray cluster: one that is there, or one on this machine for as long as needed."""

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import ray

from dlm.errors import DlmError
from dlm.integrations.ray.lifeline import Owner, listening
from dlm.loading import Loading

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
