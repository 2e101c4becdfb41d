"""FastAPI application of a server in OpenAI's form.

`Routes` has a method for each route, and `application` builds the app around one. `Service`
(`service.py`) serves the routes with one engine in this process; other implementations may pass
requests on.
"""

from abc import ABC, abstractmethod
from contextlib import AbstractAsyncContextManager
from functools import cached_property
from http import HTTPStatus
from importlib.metadata import version
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import HTMLResponse, JSONResponse, Response
from starlette.exceptions import HTTPException

from dlm.errors import DlmError
from dlm.openai.answers import status_of
from dlm.openai.body import Body
from dlm.serving.guard import (
    ClientGoneError,
    Entrance,
    Guard,
    exception_body,
    note,
    status_body,
)
from dlm.serving.middleware import RequestIds, UnexpectedErrors
from dlm.serving.openapi import docs_page, document
from dlm.serving.page_files import page_file
from dlm.serving.paths import advice
from dlm.serving.settings import Settings

_DOCS_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'"
_READ_METHODS = ["GET", "HEAD"]
_ANY_METHODS = [*_READ_METHODS, "POST", "DELETE"]


class Routes(ABC):
    """Handlers of all routes."""

    def __init__(self, settings: Settings):
        self.settings = settings
        self.guard = Guard(settings)

    @abstractmethod
    def serving(self, app: FastAPI) -> AbstractAsyncContextManager[None]:
        """Return a context that is open while the app serves, in its event loop."""

    @abstractmethod
    async def chat(self, request: Request) -> Response: ...

    @abstractmethod
    async def complete(self, request: Request) -> Response: ...

    @abstractmethod
    async def respond(self, request: Request) -> Response: ...

    @abstractmethod
    async def count_input_tokens(self, request: Request) -> Response: ...

    async def compact(self, request: Request) -> Response:
        """Refuse to write a text that stands for a conversation: it would not be the conversation,
        and no item of a response marks it as less."""
        raise HTTPException(
            404,
            "/v1/responses/compact is not supported: no text can stand for a conversation here; "
            "send the items that matter as input",
        )

    @abstractmethod
    async def stored_response(self, request: Request, id: str) -> Response: ...

    @abstractmethod
    async def delete_response(self, request: Request, id: str) -> Response: ...

    @abstractmethod
    async def response_items(self, request: Request, id: str) -> Response: ...

    @abstractmethod
    async def message(self, request: Request) -> Response: ...

    @abstractmethod
    async def count_tokens(self, request: Request) -> Response: ...

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
        """Return an empty answer if requests are being served, else a status of 503."""

    @abstractmethod
    async def read_metrics(self) -> Response: ...

    def batch_router(self, json_only: Any) -> APIRouter | None:
        """Return a router of files and batches, which checks JSON bodies by `json_only`; None: they
        are not served."""
        return None

    @property
    def serves_batches(self) -> bool:
        """Whether there is such a router."""
        return False

    async def no_batches(self) -> Response:
        raise HTTPException(
            404,
            "files and batches are not served here: by `--stored-file-bytes 0`, or since there are "
            "several engines (`--replicas`)",
        )

    async def page(self) -> Response:
        return page_file("index.html")

    async def page_part(self, name: str) -> Response:
        return page_file(name)

    async def openapi(self) -> Response:
        return JSONResponse(self._document)

    async def docs(self) -> Response:
        policy = {"Content-Security-Policy": _DOCS_POLICY}
        return HTMLResponse(docs_page(self._document), headers=policy)

    @cached_property
    def _document(self) -> Body:
        return document(self.settings.root_path, self.serves_batches)

    async def version(self) -> Response:
        return JSONResponse({"version": version("dlm")})

    async def on_http_error(self, request: Request, error: Exception) -> Response:
        if not isinstance(error, HTTPException):
            raise error
        status, message, path = error.status_code, str(error.detail), None
        if message == HTTPStatus(status).phrase and status in (404, 405):  # by the router
            message, path = advice(request.method, request.url.path, self.settings.root_path)
        body = status_body(request.scope, status, message, path)
        return JSONResponse(body, status, dict(error.headers or {}))

    async def on_error(self, request: Request, error: Exception) -> Response:
        """Answer a request that failed with `error`."""
        if isinstance(error, ClientGoneError):
            return Response(status_code=499)  # it is not sent: the client has gone
        note(error)
        status = status_of(error)
        wait = {"Retry-After": str(self.settings.retry_after)} if status in (429, 503) else None
        return JSONResponse(exception_body(request.scope, error), status, wait)


def application(service: Routes) -> FastAPI:
    settings = service.settings
    app = FastAPI(
        title="dlm",
        openapi_url=None,  # `openapi.py` knows the bodies, and its page loads no scripts
        lifespan=service.serving,
        redirect_slashes=False,
    )
    guard = service.guard
    guarded = APIRouter(dependencies=[Depends(guard.check_key)], redirect_slashes=False)
    typed = [Depends(guard.check_type)]
    for path, handler in {
        "/v1/chat/completions": service.chat,
        "/v1/completions": service.complete,
        "/v1/responses": service.respond,
        "/v1/responses/input_tokens": service.count_input_tokens,
        "/v1/responses/compact": service.compact,
        "/v1/messages": service.message,
        "/v1/messages/count_tokens": service.count_tokens,
        "/v1/decisions": service.decide,
        "/tokenize": service.tokenize,
        "/detokenize": service.detokenize,
    }.items():
        guarded.add_api_route(path, handler, methods=["POST"], dependencies=typed)
    stored = "/v1/responses/{id}"
    guarded.add_api_route(stored, service.stored_response, methods=_READ_METHODS)
    guarded.add_api_route(stored, service.delete_response, methods=["DELETE"])
    items = f"{stored}/input_items"
    guarded.add_api_route(items, service.response_items, methods=_READ_METHODS)
    guarded.add_api_route("/v1/models", service.models, methods=_READ_METHODS)
    guarded.add_api_route("/v1/models/{name:path}", service.model, methods=_READ_METHODS)
    if (batches := service.batch_router(typed[0])) is not None:
        guarded.include_router(batches)
    else:
        for path in ("/v1/files", "/v1/batches"):
            for pattern in (path, f"{path}/{{id:path}}"):
                guarded.add_api_route(pattern, service.no_batches, methods=_ANY_METHODS)
    app.include_router(guarded)
    for path, handler in {
        "/": service.page,
        "/page/{name}": service.page_part,
        "/health": service.health,
        "/metrics": service.read_metrics,
        "/version": service.version,
        "/openapi.json": service.openapi,
        "/docs": service.docs,
    }.items():
        app.add_api_route(path, handler, methods=_READ_METHODS)
    app.add_exception_handler(HTTPException, service.on_http_error)
    for kind in (DlmError, ClientGoneError):
        app.add_exception_handler(kind, service.on_error)
    app.add_middleware(UnexpectedErrors, handler=service.on_error)  # the first is the innermost
    if settings.allowed_origins:
        origins = list(settings.allowed_origins)
        app.add_middleware(
            CORSMiddleware, allow_origins=origins, allow_methods=["*"], allow_headers=["*"]
        )
    app.add_middleware(Entrance, hosts=settings.allowed_hosts, root_path=settings.root_path)
    if settings.request_ids:
        app.add_middleware(RequestIds)
    return app
