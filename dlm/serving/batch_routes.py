"""Routes of files and batches in OpenAI's form."""

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from fastapi import APIRouter, Request
from fastapi.responses import FileResponse, JSONResponse, Response
from starlette.exceptions import HTTPException

from dlm.errors import RequestError
from dlm.openai.batches import BatchBody
from dlm.openai.body import Body, parse_json, validated
from dlm.serving.async_engine import AsyncEngine
from dlm.serving.batch_writer import OUTPUT
from dlm.serving.batches import INPUT, Batches
from dlm.serving.file_store import DAY, FileStore, StoredFile
from dlm.serving.guard import Guard, until_disconnected
from dlm.serving.multipart import form_parts

_WHOLE = re.compile("[0-9]{1,9}")
_LEAST_SECONDS = 3600  # that a file is kept, as in OpenAI's API
_MOST_SECONDS = 30 * DAY
_NAME_LENGTH = 200  # characters


class BatchRoutes:
    """Handlers of the routes below `/v1/files` and `/v1/batches`."""

    def __init__(
        self,
        guard: Guard,
        engine: Callable[[], AsyncEngine],
        files: Callable[[], FileStore],
        batches: Callable[[], Batches],
        origins: Sequence[str],
    ):
        """`origins` are those of web pages that may send requests."""
        self._guard, self._engine, self._files, self._batches = guard, engine, files, batches
        self._origins = frozenset(origins)

    def router(self, json_only: Any) -> APIRouter:
        """Return a router of all of them; `json_only` is the check of bodies that are JSON."""
        router = APIRouter(redirect_slashes=False)
        add = router.add_api_route
        read = ["GET", "HEAD"]
        add("/v1/files", self.upload, methods=["POST"])
        add("/v1/files", self.list_files, methods=read)
        add("/v1/files/{id}", self.file, methods=read)
        add("/v1/files/{id}", self.delete_file, methods=["DELETE"])
        add("/v1/files/{id}/content", self.content, methods=read)
        add("/v1/batches", self.create, methods=["POST"], dependencies=[json_only])
        add("/v1/batches", self.list_batches, methods=read)
        add("/v1/batches/{id}", self.batch, methods=read)
        add("/v1/batches/{id}/cancel", self.cancel, methods=["POST"])
        return router

    async def upload(self, request: Request) -> Response:
        """Store the file of a form. A browser sends a form for any web page, so the page's origin
        must be this server's or allowed."""
        self._check_origin(request)
        client = self._guard.client(request)
        kind = request.headers.get("content-type", "")
        engine = self._engine()

        async with self._body(request, engine, client) as raw:
            store = partial(self._stored, client, kind, raw)
            reading = engine.run_in_reader(store, len(raw), client)
            file = await until_disconnected(request, reading)
        return JSONResponse(file.body())

    def _stored(self, client: str, kind: str, raw: bytes) -> StoredFile:
        parts = form_parts(kind, raw)
        if (file := parts.get("file")) is None or file.filename is None:
            raise RequestError("file is missing; it must be a file of the form", field="file")
        purpose = parts["purpose"].text if "purpose" in parts else None
        if purpose != INPUT:
            raise RequestError(f"purpose must be {INPUT}, got {purpose!r:.60}")
        seconds = _MOST_SECONDS
        if (expires := parts.get("expires_after[seconds]")) is not None:
            text = expires.text
            if not _WHOLE.fullmatch(text) or not _LEAST_SECONDS <= int(text) <= _MOST_SECONDS:
                right = f"{_LEAST_SECONDS} to {_MOST_SECONDS}"
                raise RequestError(f"expires_after.seconds must be {right}, got {text!r:.40}")
            seconds = int(text)
        name = file.filename[:_NAME_LENGTH]
        return self._files().add(client, name, purpose, file.content, seconds)

    async def list_files(self, request: Request) -> Response:
        purpose = request.query_params.get("purpose")
        files = self._files().of(self._guard.client(request))
        if request.query_params.get("order") == "asc":
            files.reverse()
        bodies = [file.body() for file in files if purpose in (None, file.purpose)]
        return JSONResponse(_page(request, bodies, 10_000))

    async def file(self, request: Request, id: str) -> Response:
        return JSONResponse(self._files().get(self._guard.client(request), id).body())

    async def content(self, request: Request, id: str) -> Response:
        file = self._files().get(self._guard.client(request), id)
        if file.purpose == OUTPUT and file.readers:
            raise RequestError(f"{id} must be complete, and a batch is still writing it")
        return FileResponse(file.path, media_type="application/octet-stream")

    async def delete_file(self, request: Request, id: str) -> Response:
        self._files().delete(self._guard.client(request), id)
        return JSONResponse({"id": id, "object": "file", "deleted": True})

    async def create(self, request: Request) -> Response:
        client, engine = self._guard.client(request), self._engine()
        async with self._body(request, engine, client) as raw:
            reading = engine.run_in_reader(
                lambda: validated(BatchBody.model_validate, parse_json("the body", raw)),
                len(raw),
                client,
            )
            body = await until_disconnected(request, reading)
        batch = self._batches().create(client, body)
        await self._batches().recorded()
        return JSONResponse(batch.answer())

    async def list_batches(self, request: Request) -> Response:
        batches = self._batches().of(self._guard.client(request))
        return JSONResponse(_page(request, [batch.answer() for batch in batches], 100))

    async def batch(self, request: Request, id: str) -> Response:
        return JSONResponse(self._batches().get(self._guard.client(request), id).answer())

    async def cancel(self, request: Request, id: str) -> Response:
        self._check_origin(request)
        batch = self._batches().cancel(self._guard.client(request), id)
        await self._batches().recorded()
        return JSONResponse(batch.answer())

    def _body(
        self, request: Request, engine: AsyncEngine, client: str
    ) -> AbstractAsyncContextManager[bytes]:
        return self._guard.body(request, lambda: engine.next_piece(client))

    def _check_origin(self, request: Request) -> None:
        """Raise 403 for a page of another origin."""
        origin = request.headers.get("origin")
        if origin is None or origin in self._origins:
            return
        try:
            allowed = urlsplit(origin).netloc == request.headers.get("host")
        except ValueError:
            allowed = False  # it is no URL
        if not allowed:
            raise HTTPException(403, f"Origin is {origin[:80]!r}, which is not allowed here")


def _page(request: Request, bodies: list[Body], most: int) -> Body:
    """Return the part of a list that `after` and `limit` of the query select."""
    query = request.query_params
    limit = query.get("limit", "20" if most == 100 else str(most))
    if not _WHOLE.fullmatch(limit) or not 1 <= int(limit) <= most:
        raise RequestError(f"limit must be 1 to {most}, got {limit!r:.40}", field="limit")
    if (after := query.get("after")) is not None:
        ids = [body["id"] for body in bodies]
        if after not in ids:
            raise RequestError(f"after must be the id of an entry, got {after!r:.60}")
        bodies = bodies[ids.index(after) + 1 :]
    page = bodies[: int(limit)]
    return {
        "object": "list",
        "data": page,
        "first_id": page[0]["id"] if page else None,
        "last_id": page[-1]["id"] if page else None,
        "has_more": len(page) < len(bodies),
    }
