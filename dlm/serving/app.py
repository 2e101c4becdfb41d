"""The routes of a server, answered by one engine."""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from time import perf_counter
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

from dlm.collector import collect_seldom
from dlm.engine import Engine
from dlm.openai.answers import Answers, ChatAnswers, TextAnswers
from dlm.openai.body import object_at
from dlm.openai.decisions import answered, inquiry_of
from dlm.openai.errors import error_body
from dlm.openai.fields import Generation, chat_of, completion_of, model_of
from dlm.openai.json_text import parsed
from dlm.openai.model_name import known_name
from dlm.policy import Policy
from dlm.serving.answering import answer, decided
from dlm.serving.async_engine import AsyncEngine
from dlm.serving.client import Came, while_there
from dlm.serving.metrics import Metrics
from dlm.serving.routes import METRICS_TYPE, Routes, application
from dlm.serving.settings import Settings
from dlm.serving.tokens import detokenized, tokenized

_RESERVED = 8  # the share of the queue, one in so many places, for clients with no request in it
Read = Callable[[Any, Policy], Generation]
T = TypeVar("T")


class Service(Routes):
    """Answered by one engine, which is ended when the application is."""

    def __init__(self, engine: Engine, settings: Settings):
        super().__init__(settings)
        self._engine = engine
        L = getattr(engine.model, "canvas_length", 0)  # left to right, there may be none
        self.metrics = Metrics(settings.names[0], L, lambda: engine.occupancy)
        self.engine: AsyncEngine  # while it serves
        self._policy: Policy  # the engine's, for no more answers than may ever be under way

    @asynccontextmanager
    async def serving(self, app: FastAPI) -> AsyncIterator[None]:
        settings = self.settings
        self._engine.reserve(settings.reserved_slots)
        slots, waiting = settings.slots, settings.max_queue
        reserved = waiting // _RESERVED if settings.reserved_slots else 0
        self.engine = AsyncEngine(self._engine, slots, waiting, self.metrics, reserved)
        policy = self._engine.policy
        self._policy = replace(policy, max_choices=min(policy.max_choices, self.engine.most))
        collect_seldom()
        try:
            yield
        finally:
            await self.engine.close()

    async def chat(self, request: Request) -> Response:
        return await self._generate(request, chat_of, ChatAnswers)

    async def complete(self, request: Request) -> Response:
        return await self._generate(request, completion_of, TextAnswers)

    async def _generate(self, request: Request, read: Read, form: type[Answers]) -> Response:
        generation, came = await self._read(request, lambda body: read(body, self._policy))
        answers = form(generation, self._named(generation.model), self._engine.vocabulary)
        silence = self.settings.keep_alive
        return await answer(request, self.engine, generation, answers, silence, came)

    async def decide(self, request: Request) -> Response:
        inquiry, came = await self._read(request, inquiry_of)
        name = self._named(inquiry.model)
        end = await decided(request, self.engine, inquiry.decision, came)
        return JSONResponse(answered(inquiry, end, name))

    async def tokenize(self, request: Request) -> Response:
        return (await self._read(request, self._tokens(tokenized)))[0]

    async def detokenize(self, request: Request) -> Response:
        return (await self._read(request, self._tokens(detokenized)))[0]

    def _tokens(self, work: Callable[[Engine, Mapping[str, Any]], Any]) -> Callable[[Any], Any]:
        def read(body: Any) -> Any:
            body = object_at("the body", body)
            self._named(model_of(body))
            return JSONResponse(work(self._engine, body))  # rendered here, in that thread

        return read

    async def _read(self, request: Request, read: Callable[[Any], T]) -> tuple[T, Came]:
        """What is made of the body, in a thread for such things."""
        begun = perf_counter()
        client = self.guard.client(request)
        async with self.guard.body(request) as raw:
            reading = self.engine.aside(lambda: read(parsed("the body", raw)), len(raw), client)
            return await while_there(request, reading), Came(len(raw), client, begun)

    def _named(self, model: str | None) -> str:
        return known_name(model, self.settings.names)

    async def models(self, request: Request) -> Response:
        cards = [self._card(name) for name in self.settings.names]
        return JSONResponse({"object": "list", "data": cards})

    async def model(self, request: Request, name: str) -> Response:
        return JSONResponse(self._card(self._named(name)))

    def _card(self, name: str) -> dict[str, Any]:
        most = self._engine.model.max_positions
        card = {"id": name, "object": "model", "created": 0, "owned_by": "dlm"}
        return card | {"max_model_len": most}

    async def health(self, request: Request) -> Response:
        problem = self.engine.problem
        return JSONResponse(error_body(503, problem), 503) if problem else Response()

    async def read_metrics(self) -> Response:
        return Response(self.metrics.text(), media_type=METRICS_TYPE)


def app_of(engine: Engine, settings: Settings) -> tuple[FastAPI, Service]:
    """An application that ends the engine when it ends."""
    service = Service(engine, settings)
    return application(service), service
