"""Service of one engine in this process: the handlers of all routes.

Bodies become requests, and what the engine makes of them becomes bodies. This module does not know
which path leads to which handler, nor how errors are answered: `app.py` does.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any, TypeVar

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from dlm.anthropic.answers import MessageAnswers, model_info, model_page
from dlm.anthropic.messages import message_of, prompt_of
from dlm.engine import Engine
from dlm.errors import ContextLengthError, RequestError
from dlm.loading import tune_process
from dlm.openai.answers import ChatAnswers, MakeAnswers, TextAnswers, error_body
from dlm.openai.body import Body, json_in_pieces, parse_json, validated
from dlm.openai.decisions import decision_answer, decision_body_of
from dlm.openai.requests import Generation, chat_of, completion_of, known_name
from dlm.openai.response_answers import ResponseAnswers
from dlm.openai.response_items import ClientResponses, ResponseStore
from dlm.openai.responses import response_of
from dlm.openai.tokenizing import DetokenizeBody, tokenize_body_of
from dlm.policy import Policy
from dlm.request import Request as GenerationRequest
from dlm.serving.answering import answer, await_decision
from dlm.serving.app import Routes, application
from dlm.serving.async_engine import AsyncEngine, has_images
from dlm.serving.batch_routes import BatchRoutes
from dlm.serving.batches import Batches
from dlm.serving.file_store import FileStore
from dlm.serving.guard import (
    Arrival,
    is_anthropic,
    until_disconnected,
)
from dlm.serving.metrics import METRICS_TYPE, Metrics
from dlm.serving.records import StoredRecords
from dlm.serving.settings import Settings

_RESERVED_SHARE = 8  # an eighth of the queue is kept for clients without a request in it
BodyReader = Callable[[Any, Policy], Generation]
T = TypeVar("T")


class Service(Routes):
    """Handlers that use one engine, which is closed when the application ends."""

    def __init__(self, engine: Engine, settings: Settings, directory: Path | None):
        super().__init__(settings)
        self._engine, self._directory = engine, directory
        self._responses = ResponseStore(
            settings.stored_responses,
            settings.stored_bytes,
            settings.max_body_bytes,  # as if the client sent all of a conversation
        )
        L = getattr(engine.model, "canvas_length", 0)  # left-to-right models have none
        self.metrics = Metrics(settings.names[0], L, lambda: engine.occupancy)
        self.engine: AsyncEngine  # while it serves
        self._files: FileStore  # of clients, while it serves
        self._batches: Batches
        self._policy: Policy  # the engine's, with no more answers for a body than may run and wait
        self._quick_policy: Policy  # the same, which leaves the schemas of tools to the compiler

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
        self._quick_policy = replace(self._policy, tools_at_once=False)
        tune_process()
        with ExitStack() as stack:
            directory = self._directory or Path(
                stack.enter_context(TemporaryDirectory(prefix="dlm-files-"))
            )
            self._files = FileStore(directory, settings.stored_file_bytes)
            records = StoredRecords(directory, "batch_")
            self._batches = Batches(self.engine, self._files, records, settings.names)
            try:
                yield
            finally:
                await self._batches.close()
                await self.engine.close()

    @property
    def serves_batches(self) -> bool:
        return self.settings.stored_file_bytes > 0

    def batch_router(self, json_only: Any) -> APIRouter | None:
        if not self.serves_batches:
            return None
        routes = BatchRoutes(
            self.guard,
            lambda: self.engine,
            lambda: self._files,
            lambda: self._batches,
            self.settings.allowed_origins,
        )
        return routes.router(json_only)

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
            request, lambda body: generation_of(body, self._quick_policy)
        )
        name, vocabulary = self._name(generation.model), self._engine.vocabulary
        answers = partial(make_answers, generation, name, vocabulary)
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
            limit = self._engine.model.max_positions
            answer = {"count": len(tokens), "max_model_len": limit, "tokens": tokens}
            answer["token_strs"] = None
            if strings:
                answer["token_strs"] = [*self._engine.chat.tokenizer.convert_ids_to_tokens(tokens)]
            return Response("".join(json_in_pieces(answer)), media_type="application/json")

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
        kinds = ["text", "image"] if self._engine.prompts.reads_images else ["text"]
        card["max_model_len"] = self._engine.model.max_positions
        return card | {"input_modalities": kinds}

    async def health(self, request: Request) -> Response:
        problem = self.engine.problem
        return JSONResponse(error_body(503, problem), 503) if problem else Response()

    async def read_metrics(self) -> Response:
        return Response(self.metrics.text(), media_type=METRICS_TYPE)


def app_of(
    engine: Engine, settings: Settings, directory: Path | None = None
) -> tuple[FastAPI, Service]:
    """Return an application that closes the engine when it ends, and its handlers. Files of
    clients are kept in `directory`, which no other server may use; by default they end with it."""
    service = Service(engine, settings, directory)
    return application(service), service
