"""LlamaIndex: its models of OpenAI's API, with tools, types and agents."""

import asyncio
import json

import pytest
from pydantic import BaseModel
from turn_scripts import call, script

pytest.importorskip("llama_index.core", reason="llama-index-core is not installed")
openai_like = pytest.importorskip("llama_index.llms.openai_like", reason="it is not installed")

TEXT = "It is 21 degrees in Paris."


class Weather(BaseModel):
    """The weather of a city."""

    city: str
    degrees: int


@pytest.fixture(params=["chats", "responses"])
def model(request, url):
    kind = openai_like.OpenAILike if request.param == "chats" else openai_like.OpenAILikeResponses
    return kind(
        model="dlm",
        api_base=f"{url}/v1",
        api_key="none",
        is_chat_model=True,
        is_function_calling_model=True,
        context_window=100_000,
        max_retries=0,
    )


def test_a_model_answers_and_streams(model):
    assert model.complete(script(TEXT)).text == TEXT
    assert "".join(part.delta or "" for part in model.stream_complete(script(TEXT))) == TEXT


def test_an_agent_calls_a_tool_and_ends_with_a_text(model):
    from llama_index.core.agent.workflow import FunctionAgent

    seen = []

    def weather(city: str) -> str:
        """Return the weather of a city."""
        seen.append(city)
        return "21 degrees"

    async def run():
        agent = FunctionAgent(tools=[weather], llm=model)
        return await agent.run(script([call("weather", city="Paris")], TEXT))

    assert (str(asyncio.run(run())), seen) == (TEXT, ["Paris"])


def test_a_model_answers_with_a_value_of_a_type(model):
    from llama_index.core.llms import ChatMessage

    structured = model.as_structured_llm(Weather)
    by_text = isinstance(model, openai_like.OpenAILikeResponses)
    wanted = {"city": "Paris", "degrees": 21}
    step = json.dumps(wanted) if by_text else [call("Weather", **wanted)]
    answer = structured.chat([ChatMessage(role="user", content=script(step))])
    assert answer.raw == Weather(**wanted)
