"""FastAPI application of a server in OpenAI's form.

`Routes` has a method for each route, and `application` builds the app around one. `Service` serves
the routes with one engine in this process; other implementations may pass requests on, to where
`prefix_of` finds the beginning of the prompt encoded already. This module knows bodies, no tokens.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from http import HTTPStatus
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import HTMLResponse, JSONResponse, Response
from starlette.exceptions import HTTPException

from dlm.anthropic.answers import MessageAnswers, model_info, model_page
from dlm.anthropic.messages import message_of, prompt_of
from dlm.engine import Engine
from dlm.errors import ContextLengthError, DlmError, RequestError
from dlm.loading import tune_process
from dlm.openai.answers import ChatAnswers, MakeAnswers, TextAnswers, error_body, status_of
from dlm.openai.body import Body, parse_json, validated
from dlm.openai.decisions import decision_answer, decision_body_of
from dlm.openai.requests import (
    DetokenizeBody,
    Generation,
    chat_of,
    completion_of,
    known_name,
    tokenize_body_of,
)
from dlm.openai.response_answers import ResponseAnswers
from dlm.openai.response_items import ClientResponses, ResponseStore
from dlm.openai.responses import response_of
from dlm.policy import Policy
from dlm.request import Request as GenerationRequest
from dlm.serving.answering import answer, await_decision
from dlm.serving.async_engine import AsyncEngine, has_images
from dlm.serving.guard import (
    Arrival,
    ClientGoneError,
    Entrance,
    Guard,
    exception_body,
    is_anthropic,
    note,
    status_body,
    until_disconnected,
)
from dlm.serving.metrics import Metrics
from dlm.serving.middleware import RequestIds, UnexpectedErrors
from dlm.serving.paths import advice
from dlm.serving.settings import Settings

_PAGE = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
_PAGE_POLICY = (  # the page may connect to this server only
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_READ_METHODS = ["GET", "HEAD"]
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


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

    async def page(self) -> Response:
        return HTMLResponse(_PAGE, headers={"Content-Security-Policy": _PAGE_POLICY})

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
        openapi_url=None,  # without it there are no docs pages, which load scripts from elsewhere
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
    app.include_router(guarded)
    for path, handler in {
        "/": service.page,
        "/health": service.health,
        "/metrics": service.read_metrics,
        "/version": service.version,
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


_RESERVED_SHARE = 8  # an eighth of the queue is kept for clients without a request in it
BodyReader = Callable[[Any, Policy], Generation]
T = TypeVar("T")


class Service(Routes):
    """Handlers that use one engine, which is closed when the application ends."""

    def __init__(self, engine: Engine, settings: Settings):
        super().__init__(settings)
        self._engine = engine
        self._responses = ResponseStore(
            settings.stored_responses,
            settings.stored_bytes,
            settings.max_body_bytes,  # as if the client sent all of a conversation
        )
        L = getattr(engine.model, "canvas_length", 0)  # left-to-right models have none
        self.metrics = Metrics(settings.names[0], L, lambda: engine.occupancy)
        self.engine: AsyncEngine  # while it serves
        self._policy: Policy  # the engine's, with no more answers for a body than may run and wait

    @asynccontextmanager
    async def serving(self, app: FastAPI) -> AsyncIterator[None]:
        settings = self.settings
        self._engine.reserve(settings.reserved_slots)
        slots, waiting = settings.slots, settings.max_queue
        reserved = waiting // _RESERVED_SHARE if settings.reserved_slots else 0
        self.engine = AsyncEngine(self._engine, slots, waiting, self.metrics, reserved)
        policy = self._engine.policy
        self._policy = replace(
            policy, max_choices=min(policy.max_choices, self.engine.max_requests)
        )
        tune_process()
        try:
            yield
        finally:
            await self.engine.close()

    async def chat(self, request: Request) -> Response:
        return await self._generate(request, chat_of, ChatAnswers)

    async def complete(self, request: Request) -> Response:
        return await self._generate(request, completion_of, TextAnswers)

    def _own_responses(self, request: Request) -> ClientResponses:
        return self._responses.of(self.guard.client(request))

    async def respond(self, request: Request) -> Response:
        generation_of = partial(response_of, responses=self._own_responses(request))
        return await self._generate(request, generation_of, ResponseAnswers)

    async def count_input_tokens(self, request: Request) -> Response:
        responses = self._own_responses(request)

        def prompt(body: Any) -> GenerationRequest:
            generation = response_of(body, self._policy, responses)
            self._name(generation.model)  # raises if it is unknown
            return generation.requests[0]

        try:
            count = await self._tokens_of(request, prompt, len)
        except ContextLengthError as error:
            raise error.reworded(str(error), "input") from error
        return JSONResponse({"object": "response.input_tokens", "input_tokens": count})

    async def stored_response(self, request: Request, id: str) -> Response:
        whole = self._own_responses(request).get(id).whole
        return Response(whole, media_type="application/json")

    async def delete_response(self, request: Request, id: str) -> Response:
        self._own_responses(request).delete(id)
        return JSONResponse({"id": id, "object": "response", "deleted": True})

    async def response_items(self, request: Request, id: str) -> Response:
        stored = self._own_responses(request).get(id)
        content = b'{"object": "list", "data": ' + stored.items + b', "has_more": false}'
        return Response(content, media_type="application/json")

    async def message(self, request: Request) -> Response:
        return await self._generate(request, message_of, MessageAnswers)

    async def count_tokens(self, request: Request) -> Response:
        def prompt(body: Any) -> GenerationRequest:
            model, counted = prompt_of(body, self._policy)
            self._name(model)  # raises if it is unknown
            return counted

        return JSONResponse({"input_tokens": await self._tokens_of(request, prompt, len)})

    async def _tokens_of(
        self,
        request: Request,
        prompt: Callable[[Any], GenerationRequest],
        make: Callable[[list[int]], T],
    ) -> T:
        """Return what `make` makes of the tokens of a body's prompt. Both are made in threads:
        first the prompt of the body's JSON, then, since it may have images, its tokens."""
        counted, arrival = await self._read(request, prompt)
        counting = self.engine.run_in_reader(
            lambda: make(self._engine.tokens(counted)),
            arrival.size,
            arrival.client,
            has_images(counted),
        )
        return await until_disconnected(request, counting)

    async def _generate(
        self, request: Request, generation_of: BodyReader, make_answers: MakeAnswers
    ) -> Response:
        generation, arrival = await self._read(
            request, lambda body: generation_of(body, self._policy)
        )
        answers = make_answers(generation, self._name(generation.model), self._engine.vocabulary)
        silence = self.settings.keep_alive
        return await answer(request, self.engine, generation, answers, silence, arrival)

    async def decide(self, request: Request) -> Response:
        body, arrival = await self._read(request, decision_body_of)
        name = self._name(body.model)
        decided = await await_decision(request, self.engine, body.decision, arrival)
        return JSONResponse(decision_answer(body, decided, name))

    async def tokenize(self, request: Request) -> Response:
        """Answer with the tokens of `messages`, or of a `prompt` without a template."""
        strings = False

        def prompt(data: Any) -> GenerationRequest:
            nonlocal strings
            body = tokenize_body_of(data)
            self._name(body.model)  # raises if it is unknown
            strings = body.return_token_strs is True
            return body.request(self._policy)

        def answer(tokens: list[int]) -> Response:
            lists: dict[str, list[Any] | None] = {"tokens": tokens, "token_strs": None}
            if strings:
                lists["token_strs"] = [*self._engine.chat.tokenizer.convert_ids_to_tokens(tokens)]
            limit = self._engine.model.max_positions
            content = json_of_lists({"count": len(tokens), "max_model_len": limit}, lists)
            return Response(content, media_type="application/json")

        return await self._tokens_of(request, prompt, answer)

    async def detokenize(self, request: Request) -> Response:
        return await self._reply(request, self._detokenized)

    def _detokenized(self, data: Any) -> Body:
        """Return the text of `tokens`, control tokens included. Raises `RequestError`."""
        body = validated(DetokenizeBody.model_validate, data)
        self._name(body.model)
        V, most = self._engine.model.vocab_size, self._engine.model.max_positions
        if len(body.tokens) > most:
            raise RequestError(
                f"tokens must have at most {most} tokens, the model's context, got "
                f"{len(body.tokens)}"
            )
        for i, token in enumerate(body.tokens):
            if not 0 <= token < V:
                raise RequestError(f"tokens[{i}] must be 0 to {V - 1}, got {token!r:.40}")
        return {"prompt": self._engine.chat.tokenizer.decode(body.tokens)}

    async def _reply(self, request: Request, make: Callable[[Any], Body]) -> Response:
        """Answer with what `make`, in a reader's thread, makes of the body's JSON."""
        response, _ = await self._read(request, lambda data: JSONResponse(make(data)))
        return response

    async def _read(self, request: Request, make: Callable[[Any], T]) -> tuple[T, Arrival]:
        """Return what `make`, in a thread, makes of the body's JSON, and the body's arrival."""
        start = perf_counter()
        client = self.guard.client(request)
        async with self.guard.body(request, partial(self.engine.next_piece, client)) as raw:
            reading = self.engine.run_in_reader(
                lambda: make(parse_json("the body", raw)), len(raw), client
            )
            return await until_disconnected(request, reading), Arrival(len(raw), client, start)

    def _name(self, model: str | None) -> str:
        return known_name(model, self.settings.names)

    async def models(self, request: Request) -> Response:
        cards = [self._card(request, name) for name in self.settings.names]
        if is_anthropic(request.scope):
            return JSONResponse(model_page(cards))
        return JSONResponse({"object": "list", "data": cards})

    async def model(self, request: Request, name: str) -> Response:
        if not name.strip("/"):
            raise HTTPException(404)  # a slash too many, as after any other path
        return JSONResponse(self._card(request, self._name(name)))

    def _card(self, request: Request, name: str) -> Body:
        if is_anthropic(request.scope):
            most = self._engine.model.max_positions
            return model_info(name, most, min(most, self._policy.max_answer_tokens))
        card = {"id": name, "object": "model", "created": 0, "owned_by": "dlm"}
        return card | {"max_model_len": self._engine.model.max_positions}

    async def health(self, request: Request) -> Response:
        problem = self.engine.problem
        return JSONResponse(error_body(503, problem), 503) if problem else Response()

    async def read_metrics(self) -> Response:
        return Response(self.metrics.text(), media_type=METRICS_TYPE)


def app_of(engine: Engine, settings: Settings) -> tuple[FastAPI, Service]:
    """Return an application that closes the engine when it ends, and its handlers."""
    service = Service(engine, settings)
    return application(service), service


_PIECE = 4096  # values written at once: no other thread runs meanwhile


def json_of_lists(fields: Body, lists: Mapping[str, list[Any] | None]) -> str:
    """Return an object of `fields`, of which there is at least one, and of long `lists` as JSON."""
    text = json.dumps(fields)[:-1]
    for name, values in lists.items():
        written = "null"
        if values is not None:
            pieces = (values[i : i + _PIECE] for i in range(0, len(values), _PIECE))
            written = f"[{', '.join(json.dumps(piece)[1:-1] for piece in pieces)}]"
        text += f", {json.dumps(name)}: {written}"
    return text + "}"


_PREFIX_LENGTH = 1024  # characters: some 200 tokens, a dozen pages of the cache


def prefix_of(raw: bytes) -> str:
    """Return a digest of the beginning of a body's prompt: tools, instructions and first message of
    a user, up to 1,024 characters. Later turns of a conversation do not change it. Every body that
    is no JSON object has the same digest."""
    try:
        body = parse_json("the body", raw)
        opening = json.dumps(_opening_of(body) if isinstance(body, dict) else "")
    except (RequestError, RecursionError):
        opening = ""
    return blake2b(opening[:_PREFIX_LENGTH].encode(), digest_size=8).hexdigest()


def _opening_of(body: Mapping[str, Any]) -> list[Any]:
    before = [body.get(name) for name in ("tools", "system", "instructions")]
    for name in ("messages", "input"):
        if isinstance(turns := body.get(name), list):
            return [*before, *_opening(turns)]
    return [*before, body.get("prompt", body.get("input"))]


def _opening(messages: list[Any]) -> Iterator[Any]:
    for message in messages:
        yield message
        if isinstance(message, dict) and message.get("role") == "user":
            return
