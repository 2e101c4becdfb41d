"""The routes of a server in OpenAI's form, around one engine."""

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import HTMLResponse, JSONResponse, Response
from starlette.exceptions import HTTPException

from dlm.collector import collect_seldom
from dlm.engine import Engine
from dlm.errors import DlmError, RequestError
from dlm.openai.answers import Answers, ChatAnswers, TextAnswers
from dlm.openai.body import object_at
from dlm.openai.decisions import answered, inquiry_of
from dlm.openai.errors import error_body, status_of, told
from dlm.openai.fields import Generation, chat_of, completion_of, model_of
from dlm.policy import Policy
from dlm.serving.answering import ClientGoneError, answer, decided, note
from dlm.serving.async_engine import AsyncEngine
from dlm.serving.guard import Guard
from dlm.serving.metrics import Metrics
from dlm.serving.request_ids import RequestIds
from dlm.serving.settings import Settings
from dlm.serving.tokens import detokenized, tokenized

_PAGE = Path(__file__).with_name("page.html")
_POLICY = (  # the page asks this server, and nobody else
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Read = Callable[[Any, Policy], Generation]


class Service:
    """What routes do. It is begun in the event loop that serves, and ended there."""

    def __init__(self, engine: Engine, settings: Settings):
        self._engine, self._settings = engine, settings
        self._guard = Guard(settings)
        L = getattr(engine.model, "canvas_length", 0)  # left to right, there may be none
        self.metrics = Metrics(settings.names[0], L, lambda: engine.occupancy)
        self.engine: AsyncEngine  # while it serves

    @asynccontextmanager
    async def serving(self, app: FastAPI) -> AsyncIterator[None]:
        settings = self._settings
        self.engine = AsyncEngine(self._engine, settings.slots, settings.max_queue, self.metrics)
        collect_seldom()
        try:
            yield
        finally:
            await self.engine.close()

    async def check_key(self, request: Request) -> None:
        await self._guard.check_key(request)

    async def chat(self, request: Request) -> Response:
        return await self._generate(request, chat_of, ChatAnswers)

    async def complete(self, request: Request) -> Response:
        return await self._generate(request, completion_of, TextAnswers)

    async def _generate(self, request: Request, read: Read, form: type[Answers]) -> Response:
        policy = self._engine.policy
        generation = await self._read(request, lambda body: read(body, policy))
        answers = form(generation, self._named(generation.model), self._engine.vocabulary)
        silence = self._settings.keep_alive
        return await answer(request, self.engine, generation, answers, silence)

    async def decide(self, request: Request) -> Response:
        inquiry = await self._read(request, inquiry_of)
        name = self._named(inquiry.model)
        return JSONResponse(
            answered(inquiry, await decided(request, self.engine, inquiry.decision), name)
        )

    async def tokenize(self, request: Request) -> Response:
        return JSONResponse(await self._read(request, self._tokens(tokenized)))

    async def detokenize(self, request: Request) -> Response:
        return JSONResponse(await self._read(request, self._tokens(detokenized)))

    def _tokens(self, work: Callable[[Engine, Mapping[str, Any]], Any]) -> Callable[[Any], Any]:
        def read(body: Any) -> Any:
            body = object_at("the body", body)
            self._named(model_of(body))
            return work(self._engine, body)

        return read

    async def _read(self, request: Request, read: Callable[[Any], Any]) -> Any:
        """What is made of the body, in a thread for such things."""
        raw = await self._guard.body(request)
        return await self.engine.aside(lambda: read(_parsed(raw)))

    def _named(self, model: str | None) -> str:
        """The name that the client knows the model by."""
        if model is not None and model not in self._settings.names:
            raise HTTPException(404, f"The model {model!r:.100} does not exist here")
        return model or self._settings.names[0]

    async def models(self) -> Response:
        most = self._engine.model.max_positions
        cards = [
            {"id": name, "object": "model", "created": 0, "owned_by": "dlm", "max_model_len": most}
            for name in self._settings.names
        ]
        return JSONResponse({"object": "list", "data": cards})

    async def model(self, name: str) -> Response:
        self._named(name)
        most = self._engine.model.max_positions
        card = {"id": name, "object": "model", "created": 0, "owned_by": "dlm"}
        return JSONResponse(card | {"max_model_len": most})

    async def health(self) -> Response:
        """Empty where all is well."""
        problem = self.engine.problem
        return JSONResponse(error_body(503, problem), 503) if problem else Response()

    async def read_metrics(self) -> Response:
        return Response(self.metrics.text(), media_type=METRICS_TYPE)

    async def page(self) -> Response:
        return HTMLResponse(_PAGE.read_text(), headers={"Content-Security-Policy": _POLICY})

    async def version(self) -> Response:
        return JSONResponse({"version": version("dlm")})

    async def on_http_error(self, request: Request, error: Exception) -> Response:
        if not isinstance(error, HTTPException):
            raise error
        body = error_body(error.status_code, str(error.detail))
        return JSONResponse(body, error.status_code, dict(error.headers or {}))

    async def on_error(self, request: Request, error: Exception) -> Response:
        """Whatever a request fails with."""
        if isinstance(error, ClientGoneError):
            return Response(status_code=499)  # nobody reads it
        note(error)
        status = status_of(error)
        wait = {"Retry-After": str(self._settings.retry_after)} if status in (429, 503) else None
        return JSONResponse(told(error), status, wait)


def app_of(engine: Engine, settings: Settings) -> tuple[FastAPI, Service]:
    """An application that ends the engine when it ends."""
    service = Service(engine, settings)
    app = FastAPI(
        title="dlm",
        openapi_url=None,  # and with it the pages that would load scripts from elsewhere
        root_path=settings.root_path,
        lifespan=service.serving,
    )
    guarded = APIRouter(dependencies=[Depends(service.check_key)])
    for path, work in {
        "/v1/chat/completions": service.chat,
        "/v1/completions": service.complete,
        "/v1/decisions": service.decide,
        "/tokenize": service.tokenize,
        "/detokenize": service.detokenize,
    }.items():
        guarded.add_api_route(path, work, methods=["POST"])
    guarded.add_api_route("/v1/models", service.models)
    guarded.add_api_route("/v1/models/{name:path}", service.model)
    app.include_router(guarded)
    app.add_api_route("/", service.page)
    app.add_api_route("/health", service.health)
    app.add_api_route("/metrics", service.read_metrics)
    app.add_api_route("/version", service.version)
    app.add_exception_handler(HTTPException, service.on_http_error)
    for kind in (DlmError, ClientGoneError, Exception):
        app.add_exception_handler(kind, service.on_error)
    if settings.allowed_origins:
        origins = list(settings.allowed_origins)
        app.add_middleware(
            CORSMiddleware, allow_origins=origins, allow_methods=["*"], allow_headers=["*"]
        )
    if settings.request_ids:
        app.add_middleware(RequestIds)
    return app, service


def _parsed(raw: bytes) -> Any:
    try:
        return json.loads(raw, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"the body is not JSON: {str(error)[:200]}") from error


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")
