"""The routes of a server in OpenAI's form, whoever it is that answers them."""

from abc import ABC, abstractmethod
from contextlib import AbstractAsyncContextManager
from importlib.metadata import version
from pathlib import Path

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import HTMLResponse, JSONResponse, Response
from starlette.exceptions import HTTPException

from dlm.errors import DlmError
from dlm.openai.errors import error_body, status_of, told
from dlm.serving.client import ClientGoneError, note
from dlm.serving.entrance import Entrance
from dlm.serving.faults import Faults
from dlm.serving.guard import Guard
from dlm.serving.request_ids import RequestIds
from dlm.serving.settings import Settings

_PAGE = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
_POLICY = (  # the page asks this server, and nobody else
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_READ = ["GET", "HEAD"]
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Routes(ABC):
    """What is answered under each route."""

    def __init__(self, settings: Settings):
        self.settings = settings
        self.guard = Guard(settings)

    @abstractmethod
    def serving(self, app: FastAPI) -> AbstractAsyncContextManager[None]:
        """Around all that is served, in the event loop that serves."""

    @abstractmethod
    async def chat(self, request: Request) -> Response: ...

    @abstractmethod
    async def complete(self, request: Request) -> Response: ...

    @abstractmethod
    async def decide(self, request: Request) -> Response: ...

    @abstractmethod
    async def tokenize(self, request: Request) -> Response: ...

    @abstractmethod
    async def detokenize(self, request: Request) -> Response: ...

    @abstractmethod
    async def models(self, request: Request) -> Response: ...

    @abstractmethod
    async def model(self, request: Request, name: str) -> Response: ...

    @abstractmethod
    async def health(self, request: Request) -> Response:
        """Empty where all is well."""

    @abstractmethod
    async def read_metrics(self) -> Response: ...

    async def page(self) -> Response:
        return HTMLResponse(_PAGE, headers={"Content-Security-Policy": _POLICY})

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
        wait = {"Retry-After": str(self.settings.retry_after)} if status in (429, 503) else None
        return JSONResponse(told(error), status, wait)


def application(service: Routes) -> FastAPI:
    settings = service.settings
    app = FastAPI(
        title="dlm",
        openapi_url=None,  # and with it the pages that would load scripts from elsewhere
        root_path=settings.root_path,
        lifespan=service.serving,
        redirect_slashes=False,
    )
    guard = service.guard
    guarded = APIRouter(dependencies=[Depends(guard.check_key)], redirect_slashes=False)
    typed = [Depends(guard.check_type)]
    for path, work in {
        "/v1/chat/completions": service.chat,
        "/v1/completions": service.complete,
        "/v1/decisions": service.decide,
        "/tokenize": service.tokenize,
        "/detokenize": service.detokenize,
    }.items():
        guarded.add_api_route(path, work, methods=["POST"], dependencies=typed)
    guarded.add_api_route("/v1/models", service.models, methods=_READ)
    guarded.add_api_route("/v1/models/{name:path}", service.model, methods=_READ)
    app.include_router(guarded)
    for path, work in {
        "/": service.page,
        "/health": service.health,
        "/metrics": service.read_metrics,
        "/version": service.version,
    }.items():
        app.add_api_route(path, work, methods=_READ)
    app.add_exception_handler(HTTPException, service.on_http_error)
    for kind in (DlmError, ClientGoneError):
        app.add_exception_handler(kind, service.on_error)
    app.add_middleware(Faults, told=service.on_error)  # the first is the innermost
    if settings.allowed_origins:
        origins = list(settings.allowed_origins)
        app.add_middleware(
            CORSMiddleware, allow_origins=origins, allow_methods=["*"], allow_headers=["*"]
        )
    app.add_middleware(Entrance, hosts=settings.allowed_hosts)
    if settings.request_ids:
        app.add_middleware(RequestIds)
    return app
