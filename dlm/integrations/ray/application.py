"""A server on Ray: an ingress that passes requests on to replicas of an engine, by Ray Serve.

A `Replica` is an engine with the application around it; messages take the place of a socket. The
`Ingress` has the routes of a server (`Relay`), and hands each request to a replica. `PrefixRouter`
chooses one that has seen the beginning of the prompt, unless it is busy. `served` starts all of it.
"""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, cast

from fastapi import FastAPI, Request
from fastapi.responses import Response
from ray import serve
from ray.exceptions import ObjectLostError, RayActorError, RayError
from ray.serve.config import HTTPOptions, ProxyLocation
from ray.serve.handle import DeploymentHandle, DeploymentResponseGenerator
from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica
from ray.serve.schema import LoggingConfig, ProxyStatus
from starlette.types import Message, Receive, Scope, Send

from dlm.engine import Engine
from dlm.errors import DlmError, UnavailableError
from dlm.integrations.ray import Call, Cluster
from dlm.loading import Loading
from dlm.openai.response_items import UnknownResponseError
from dlm.serving.app import Routes, application
from dlm.serving.guard import (
    CLIENT,
    VERSION_HEADER,
    ClientGoneError,
    is_anthropic,
    last_events,
    until_disconnected,
)
from dlm.serving.metrics import METRICS_TYPE, merge_metrics
from dlm.serving.prefix import prefix_of
from dlm.serving.service import app_of
from dlm.serving.settings import Settings

_CHANCES = 3  # replicas that a request may be given to
_WELL = 5.0  # seconds; the timeout of a health check
_COUNTED = 5.0  # seconds in which replicas tell what they have counted
_ENDED = (RayActorError, ObjectLostError)  # what a replica that has ended shows itself as

Messages = DeploymentResponseGenerator[Any]  # an answer, in ASGI's


class Relay(Routes):
    """The routes of the ingress: it checks keys and sizes, and passes bodies on unchanged.

    If a replica ends, or is unavailable, before any of its answer has been sent, the request goes
    to another one, at most twice. The client does not notice, since nothing of a request is stored.
    A stream that has begun ends with an error.
    """

    def __init__(self, settings: Settings, replicas: DeploymentHandle):
        """`replicas` leads to a deployment of `Replica`."""
        super().__init__(settings)
        self._replicas = replicas
        self._ask = replicas.options(method_name="ask", stream=True)
        self._draining = False

    @asynccontextmanager
    async def serving(self, app: FastAPI) -> AsyncIterator[None]:
        yield

    async def drain(self, seconds: float) -> None:
        """Refuse new requests; those that run are ended after `seconds` seconds."""
        self._draining = True
        self.guard.drain()
        draining = self._replicas.broadcast("drain", seconds)
        await draining.results_async(return_exceptions=True)

    async def _relay(self, request: Request) -> Response:
        """Pass a request on to the same route of a replica."""
        return await self._relayed(request, request.scope["route"].path)

    chat = complete = respond = count_input_tokens = message = count_tokens = _relay
    decide = tokenize = detokenize = models = _relay

    async def _has_none(self, request: Request, id: str) -> Response:
        raise UnknownResponseError("this server has several replicas, and stores no responses")

    stored_response = delete_response = response_items = _has_none

    async def model(self, request: Request, name: str) -> Response:
        return await self._relayed(request, f"/v1/models/{name}")

    async def health(self, request: Request) -> Response:
        try:
            async with asyncio.timeout(_WELL):
                return await self._relayed(request, "/health")
        except TimeoutError as error:
            raise UnavailableError("no replica has answered in time") from error

    async def read_metrics(self) -> Response:
        counted = await self._replicas.broadcast("metrics").results_async(
            timeout_s=_COUNTED, return_exceptions=True
        )
        texts = dict(result for result in counted if not isinstance(result, BaseException))
        return Response(merge_metrics(texts), media_type=METRICS_TYPE)

    async def _relayed(self, request: Request, path: str) -> Response:
        if self._draining:
            raise UnavailableError("the server is shutting down")
        async with self.guard.body(request) as raw:
            prefix = await asyncio.to_thread(prefix_of, raw)
        client = self.guard.client(request)
        call = Call(
            prefix=prefix,
            method=request.method,
            client=client,
            path=path,
            body=raw,
            anthropic=is_anthropic(request.scope),
        )
        return _Relayed(path, *await until_disconnected(request, self._started(call)))

    async def _started(self, call: Call) -> tuple[Messages, list[Message]]:
        """Return an answer and its first two messages: status with headers, and the first body."""
        last = replace(call, tried=_CHANCES - 1)
        while call.tried < last.tried:
            with suppress(*_ENDED):
                answer, messages = await self._send_call(call)
                if messages[0]["status"] != 503 or self._draining:
                    return answer, messages
                answer.cancel()
            call = replace(call, tried=call.tried + 1)
        try:
            return await self._send_call(last)
        except _ENDED as error:
            raise UnavailableError(
                f"{_CHANCES} replicas ended with this request, or beside it"
            ) from error

    async def _send_call(self, call: Call) -> tuple[Messages, list[Message]]:
        answer = cast(Messages, self._ask.remote(call))
        try:
            return answer, [await anext(answer), await anext(answer)]
        except BaseException:
            answer.cancel()
            raise


class _Relayed(Response):
    """An answer as a replica sends it. When the connection ends, the request is cancelled."""

    def __init__(self, path: str, answer: Messages, opening: list[Message]):
        """`opening` are the first messages of the `answer` of the route at `path`."""
        super().__init__(status_code=opening[0]["status"])
        self._path, self._answer, self._opening = path, answer, opening

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            with suppress(ClientGoneError):
                await until_disconnected(Request(scope, receive), self._send(send))
        finally:
            self._answer.cancel()

    async def _send(self, send: Send) -> None:
        events = 0  # that have names: each is one message
        for message in self._opening:
            events += _is_event(message)
            await send(message)
        try:
            async for message in self._answer:
                events += _is_event(message)
                await send(message)
        except _ENDED:
            error = UnavailableError("the replica that was answering has ended")
            last = last_events(self._path, error, events)
            await send({"type": "http.response.body", "body": last.encode(), "more_body": False})


def _is_event(message: Message) -> bool:
    return message.get("body", b"").startswith(b"event: ")


_UNSENT = 16  # messages that wait for a slow reader, before the application does


class Replica:
    """An engine with its application, one of several in Ray Serve.

    If its engine fails, its health check fails: Ray ends the replica and starts another.
    """

    async def __init__(self, loading: Loading, settings: Settings):
        """Load the engine. The ingress checks keys, origins and hosts, and names requests."""
        engine = await asyncio.to_thread(Engine.loaded, loading)
        inner = replace(
            settings,
            api_keys=(),
            allowed_origins=(),
            allowed_hosts=("*",),
            root_path="",
            request_ids=False,
            stored_responses=0,
        )
        self._app, self._service = app_of(engine, inner)
        self._serving = self._service.serving(self._app)
        await self._serving.__aenter__()  # and never out: it ends with its process

    async def ask(self, call: Call) -> AsyncIterator[Message]:
        """Yield the messages that the application sends, in ASGI's form.

        Closing the iterator, or cancelling its reader, cancels the request.
        """
        sent = asyncio.Queue[Message | None](_UNSENT)
        running = asyncio.ensure_future(self._run(call, sent))
        try:
            while (message := await sent.get()) is not None:
                yield message
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running

    async def metrics(self) -> tuple[str, str]:
        """Return the replica's name and its metrics, in the format of Prometheus."""
        name = serve.get_replica_context().replica_id.unique_id
        return name, self._service.metrics.text().decode()

    async def drain(self, seconds: float) -> None:
        """Refuse new requests, and end those that still run after `seconds` seconds."""
        await self._service.engine.drain(seconds)

    async def check_health(self) -> None:
        """Raise `RuntimeError` if the engine has failed."""
        failure = self._service.engine.failure
        if failure is not None:
            raise RuntimeError(f"the engine has failed: {failure}")

    async def _run(self, call: Call, sent: "asyncio.Queue[Message | None]") -> None:
        arrived = [{"type": "http.request", "body": call.body, "more_body": False}]

        async def receive() -> Message:
            return arrived.pop() if arrived else await asyncio.get_running_loop().create_future()

        with suppress(Exception):  # it has been answered, and is in the log
            await self._app(_scope(call), receive, sent.put)
        await sent.put(None)


def _scope(call: Call) -> Scope:
    headers = [(b"content-type", b"application/json")]  # as the ingress has found
    if call.anthropic:
        headers.append((VERSION_HEADER.encode(), b""))
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": call.method,
        "scheme": "http",
        "path": call.path,
        "raw_path": call.path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": headers,
        "client": None,
        CLIENT: call.client,
        "server": None,
    }


class PrefixRouter(RequestRouter):
    """Routing by rendezvous hashing: every prefix has its own order of replicas.

    All routers agree on that order, and when a replica comes or goes, the order of the others
    stays. The first replica with a free slot gets the request; if none is free, the one with the
    fewest waiting requests. A replica's count is the last one that it reported, plus the requests
    that were sent to it since.
    """

    queue_len_response_deadline_s = 2.0  # Ray's 0.1 s passes over replicas that are merely busy
    max_queue_len_response_deadline_s = 2.0

    def initialize_state(self, **settings: int) -> None:
        """Set `slots`, the number of requests that a replica runs at once."""
        self._slots = settings["slots"]

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """Return all replicas, one in each group: Ray offers the request in this order."""
        call = None
        if pending_request is not None:
            pending_request.routing_context.should_backoff = True  # before the next round
            call = next((arg for arg in pending_request.args if isinstance(arg, Call)), None)
        prefix, tried = ("", 0) if call is None else (call.prefix, call.tried)
        ranked = sorted(
            candidate_replicas,
            key=lambda replica: (
                self._waiting(replica),
                preference(prefix, replica.replica_id.unique_id),
            ),
        )
        start = tried % len(ranked)  # not the one that has failed it
        return [[replica] for replica in ranked[start:] + ranked[:start]]

    def _waiting(self, replica: RunningReplica) -> int:
        """Count the requests that would wait there, this one included.

        A replica without a report counts as idle: Ray asks it before anything is sent.
        """
        has = self.replica_queue_len_cache.get(replica.replica_id) or 0
        return max(0, has + 1 - self._slots)


def preference(prefix: str, replica: str) -> bytes:
    """Sort key of a replica for a prefix: the least comes first."""
    return blake2b(f"{prefix} {replica}".encode(), digest_size=8).digest()


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
    """The deployment that Ray Serve's proxies, one on every machine, pass requests to."""

    async def __init__(self, settings: Settings, replicas: DeploymentHandle):
        self._relay = Relay(settings, replicas)

    def __serve_build_asgi_app__(self) -> Any:
        return application(self._relay)

    async def drain(self, seconds: float) -> None:
        await self._relay.drain(seconds)


@dataclass(frozen=True, slots=True)
class Server:
    """A running server."""

    ingress: DeploymentHandle

    def drain(self, seconds: float) -> None:
        """Refuse new requests, and end those that still run after `seconds` seconds."""
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
    """Serve with `replicas` replicas on the cluster, for as long as the context lasts.

    `http` is the address of Ray's proxies, as `HTTPOptions` takes it; proxies that already listen
    stay as they are. Raises `DlmError` if replicas cannot be started.
    """
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
    start, options = time.monotonic(), {"controller_options": _CONTROLLER, **options}
    try:
        try:
            serve.start(**options)
        except TimeoutError:  # its controller goes on all the same
            while any(proxy != ProxyStatus.HEALTHY for proxy in serve.status().proxies.values()):
                if time.monotonic() - start > _PATIENCE:
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
        deployments = serve.status().applications[NAME].deployments
        lines = [
            line for deployment in deployments.values() for line in deployment.message.splitlines()
        ]
        named = [line.strip() for line in lines if _RAISED.match(line.strip())]
        reason = named[-1] if named else str(error)
        raise DlmError(f"no replica could be started: {reason}") from error
