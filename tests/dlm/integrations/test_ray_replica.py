"""A replica without Ray: its messages, cancellation, and health."""

import asyncio
import json
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from unittest.mock import patch

import pytest
from doubles import Random
from gated import Gated
from values import V

pytest.importorskip("ray")

from dlm.integrations.ray import Call
from dlm.integrations.ray.application import Replica
from dlm.loading import Loading
from dlm.serving.guard import Settings

HI = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 64}


class Broken(Random):
    def denoise(self, *args, **more):
        raise RuntimeError("the device is gone")


def call(**more):
    body = json.dumps(HI | more).encode()
    return Call(prefix="", method="POST", path="/v1/chat/completions", body=body)


@asynccontextmanager
async def replica_of(engine):
    settings = Settings(names=("tiny",), slots=1, max_queue=0, api_keys=("secret",))
    loaded = patch("dlm.engine.Engine.loaded", return_value=engine)
    with patch("dlm.serving.service.tune_process"), loaded:
        replica = Replica.__new__(Replica)
        await replica.__init__(Loading(), settings)  # as Ray does it
        try:
            yield replica
        finally:
            await replica._serving.__aexit__(None, None, None)


async def answer_of(replica, **more):
    """Return the status and the whole body."""
    first, *rest = [message async for message in replica.ask(call(**more))]
    return first["status"], b"".join(message["body"] for message in rest).decode()


@pytest.mark.parametrize(("anthropic", "field"), [(True, "first_id"), (False, "object")])
def test_models_have_the_form_of_the_client_s_api(engine_of, anthropic, field):
    async def run():
        async with replica_of(engine_of(Random(V, seed=1))) as replica:
            models = replace(call(), method="GET", path="/v1/models", anthropic=anthropic)
            _, answer = [message async for message in replica.ask(models)]
            return json.loads(answer["body"])

    assert field in asyncio.run(run())


@pytest.mark.parametrize("stream", [False, True])
def test_messages_of_the_application_are_passed_on(engine_of, tokens_of, stream):
    model = Gated(tokens_of("hi there<turn|>"))
    model.open.set()

    async def run():
        async with replica_of(engine_of(model, slots=1)) as replica:
            await replica.check_health()
            status, body = await answer_of(replica, stream=stream)
            assert status == 200  # no key is needed: the ingress checks keys
            assert "hi there" in body
            assert body.endswith("[DONE]\n\n") == stream

    asyncio.run(run())


@pytest.mark.parametrize("begun", [False, True])
def test_a_client_that_stops_reading_cancels_the_request(engine_of, tokens_of, begun):
    model = Gated(tokens_of("word " * 60), canvas_length=4)
    if begun:
        model.open.set()

    async def run():
        engine = engine_of(model, slots=1)
        async with replica_of(engine) as replica:
            async with aclosing(replica.ask(call(stream=True))) as messages:
                reading = asyncio.ensure_future(anext(messages))
                while not engine.busy:
                    await asyncio.sleep(0.001)
                if begun:
                    assert (await reading)["status"] == 200
                else:
                    reading.cancel()
                    await asyncio.wait([reading])
            model.open.set()
            while engine.busy:
                await asyncio.sleep(0.001)
            counted = replica._service.metrics.text().decode()
            assert 'dlm:request_success_total{finished_reason="abort",model_name="tiny"} 1.0' in (
                counted
            )

    asyncio.run(run())


def test_a_failed_engine_is_unhealthy_and_a_draining_one_is_healthy(engine_of):
    async def run():
        async with replica_of(engine_of(Broken(V, seed=1), slots=1)) as replica:
            await replica.check_health()
            assert (await answer_of(replica))[0] == 503
            with pytest.raises(RuntimeError, match="the engine has failed: RuntimeError"):
                await replica.check_health()
        async with replica_of(engine_of(Random(V, seed=1), slots=1)) as replica:
            await replica.drain(1)
            await replica.check_health()
            assert (await answer_of(replica))[0] == 503

    asyncio.run(run())
