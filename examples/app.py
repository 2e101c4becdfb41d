"""An application of your own with a model in its process: no second server, no client.

    pip install '.[serve]'
    uvicorn --app-dir examples app:app
    curl 'http://127.0.0.1:8000/people' --json '{"text": "Our neighbour Olga Lopez is 61."}'

The answer of a route is an instance of a class, or its JSON piece by piece. A client that leaves a
stream cancels its request. One that waits over 30 seconds for an answer, or for the next piece of a
stream, gets an error: a stream that has begun breaks off.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel

import dlm

SECONDS = 30


class Text(BaseModel):
    text: str


class Person(BaseModel):
    name: str
    age: int


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with dlm.AsyncEngine(dlm.Engine.load(slots=4)) as engine:
        app.state.engine = engine
        yield


app = FastAPI(lifespan=lifespan)


@contextmanager
def refusals() -> Iterator[None]:
    """Answer errors with their HTTP status."""
    try:
        yield
    except TimeoutError as error:
        raise HTTPException(504, f"no answer within {SECONDS} seconds") from error
    except dlm.RequestError as error:  # the text is too long, for example
        raise HTTPException(400, str(error)) from error


def request_of(text: Text) -> dlm.Request:
    prompt = f"Extract name, age as JSON. {text.text}"
    return dlm.Request(prompt=prompt, constraint=dlm.JsonSchema(Person), max_tokens=64)


@app.post("/people")
async def extract(text: Text, http: Request) -> Person:
    engine: dlm.AsyncEngine = http.app.state.engine
    with refusals():
        result = await engine.generate(request_of(text), timeout=SECONDS)
    return result.parsed


async def event_of(events: AsyncIterator[dlm.Event]) -> dlm.Event:
    async with asyncio.timeout(SECONDS):
        event = await anext(events)
    if isinstance(event, dlm.Failed):
        raise event.error
    return event


@app.post("/people/stream")
async def stream(text: Text, http: Request) -> StreamingResponse:
    engine: dlm.AsyncEngine = http.app.state.engine
    with refusals():
        events = engine.stream(request_of(text))
        event = await event_of(events)  # before the response begins, so that errors have a status

    async def pieces(event: dlm.Event) -> AsyncIterator[str]:
        async with aclosing(events):
            while isinstance(event, dlm.Committed):
                yield event.text
                event = await event_of(events)

    return StreamingResponse(pieces(event), media_type="application/json")
