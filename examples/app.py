"""An application of your own with a model in its process: no second server, no client.

    pip install '.[serve]'
    uvicorn --app-dir examples app:app
    curl 'http://127.0.0.1:8000/people' --json '{"text": "Our neighbour Olga Lopez is 61."}'

The answer of a route is an instance of a class. A client that leaves cancels its request, and one
that waits over 30 seconds gets an error.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

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


@app.post("/people")
async def extract(text: Text, http: Request) -> Person:
    prompt = f"Extract name, age as JSON. {text.text}"
    request = dlm.Request(prompt=prompt, constraint=dlm.JsonSchema(Person), max_tokens=64)
    engine: dlm.AsyncEngine = http.app.state.engine
    try:
        result = await engine.generate(request, timeout=SECONDS)
    except TimeoutError as error:
        raise HTTPException(504, f"no answer within {SECONDS} seconds") from error
    except dlm.RequestError as error:  # the text is too long, for example
        raise HTTPException(400, str(error)) from error
    return result.parsed


@app.post("/people/stream")
async def stream(text: Text, http: Request) -> StreamingResponse:
    prompt = f"Extract name, age as JSON. {text.text}"
    request = dlm.Request(prompt=prompt, constraint=dlm.JsonSchema(Person), max_tokens=64)
    engine: dlm.AsyncEngine = http.app.state.engine

    async def pieces() -> AsyncIterator[str]:
        async for event in engine.stream(request):
            if isinstance(event, dlm.Committed):
                yield event.text
            elif isinstance(event, dlm.Failed):
                raise event.error

    return StreamingResponse(pieces(), media_type="application/json")
