"""A server on Ray: replicas of an engine, and an ingress in front of them, by Ray Serve."""

import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ray import serve
from ray.exceptions import RayError
from ray.serve.config import HTTPOptions, ProxyLocation
from ray.serve.handle import DeploymentHandle
from ray.serve.schema import LoggingConfig, ProxyStatus

from dlm.errors import DlmError
from dlm.integrations.ray.cluster import Cluster
from dlm.integrations.ray.relay import Relay
from dlm.integrations.ray.replica import Replica
from dlm.integrations.ray.router import PrefixRouter
from dlm.loading import Loading
from dlm.serving.routes import application
from dlm.serving.settings import Settings

NAME = "dlm"  # of the application on the cluster
_HEALTH = 2.0  # seconds from one health check to the next; Ray ends a replica that fails three
_STARTS = 3  # times that a replica may fail to load its model
_RAISED = re.compile(r"[\w.]+(Error|Exception): ")  # the last line of a trace
_PATIENCE = 300.0  # seconds for proxies to start; Ray itself has no more than 60
_CONTROLLER = {  # Ray gives a proxy 5 s to start, and ends it again and again on a busy machine
    "runtime_env": {"env_vars": {"RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": f"{_PATIENCE:g}"}}
}
_LATE = 20.0  # seconds for Ray to have the last bytes of answers sent in, once all have ended


class Ingress:
    """Ray Serve hands requests to it from its proxies, one on every machine."""

    async def __init__(self, settings: Settings, replicas: DeploymentHandle):
        self._relay = Relay(settings, replicas)

    def __serve_build_asgi_app__(self) -> Any:
        return application(self._relay)

    async def drain(self, seconds: float) -> None:
        await self._relay.drain(seconds)


@dataclass(frozen=True, slots=True)
class Server:
    """One that serves."""

    ingress: DeploymentHandle

    def drain(self, seconds: float) -> None:
        """Refuse what comes, and wait for what runs, so many seconds at most; then end it."""
        self.ingress.broadcast("drain", seconds).results(return_exceptions=True)


@contextmanager
def served(
    cluster: Cluster,
    loading: Loading,
    settings: Settings,
    replicas: int,
    log_level: str,
    **http: Any,
) -> Iterator[Server]:
    """As many replicas on the cluster. `http` is where Ray's proxies listen, as its `HTTPOptions`
    have it; where some listen already, they go on as they are. Raises `DlmError` where replicas
    cannot be started."""
    loading, resources = cluster.places(loading, replicas)
    most = 2 * (settings.slots + settings.max_queue)  # the engine's own limit, a 429, comes first
    logging = LoggingConfig(log_level=log_level.upper(), enable_access_log=False)
    engines = serve.deployment(
        name="engines",
        num_replicas=replicas,
        ray_actor_options=resources,
        max_ongoing_requests=most,
        health_check_period_s=_HEALTH,
        max_constructor_retry_count=_STARTS,
        graceful_shutdown_timeout_s=_LATE,
        logging_config=logging,
        request_router_config={
            "request_router_class": PrefixRouter,
            "request_router_kwargs": {"slots": settings.slots},
        },
    )(Replica)
    ingress = serve.deployment(
        name="ingress",
        num_replicas=1 if cluster.local else 2,  # that all is not over where one ends
        ray_actor_options={"num_cpus": 0},
        max_ongoing_requests=most * replicas,
        graceful_shutdown_timeout_s=_LATE,
        logging_config=logging,
    )(serve.ingress()(Ingress))
    where = ProxyLocation.HeadOnly if cluster.local else ProxyLocation.EveryNode
    try:
        _start(proxy_location=where, http_options=HTTPOptions(**http), logging_config=logging)
        bound = ingress.bind(settings, engines.bind(loading, settings))
        yield Server(_run(bound))
    finally:
        if cluster.local:
            serve.shutdown()
        else:
            serve.delete(NAME)


def _start(**options: Any) -> None:
    begun, options = time.monotonic(), {"controller_options": _CONTROLLER, **options}
    try:
        try:
            serve.start(**options)
        except TimeoutError:  # its controller goes on all the same
            while any(proxy != ProxyStatus.HEALTHY for proxy in serve.status().proxies.values()):
                if time.monotonic() - begun > _PATIENCE:
                    raise
                time.sleep(1)
            serve.start(**options)  # joins it
    except (RayError, TimeoutError) as error:
        reason = str(error).partition("\n")[0]
        raise DlmError(f"Ray's proxies could not be started: {reason}") from error


def _run(bound: serve.Application) -> DeploymentHandle:
    try:
        return serve.run(bound, name=NAME)
    except RuntimeError as error:
        found = serve.status().applications[NAME].deployments
        lines = [line for one in found.values() for line in one.message.splitlines()]
        named = [line.strip() for line in lines if _RAISED.match(line.strip())]
        reason = named[-1] if named else str(error)
        raise DlmError(f"no replica could be started: {reason}") from error
