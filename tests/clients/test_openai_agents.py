"""openai-agents: agents with tools, by responses (the default model) and by chats."""

import asyncio

import pytest
from pydantic import BaseModel
from turn_scripts import call, script

agents = pytest.importorskip("agents", reason="openai-agents is not installed")

TEXT = "It is 21 degrees in Paris."


class Weather(BaseModel):
    city: str
    degrees: int


@pytest.fixture(autouse=True)
def quiet():
    agents.set_tracing_disabled(True)


@pytest.fixture(params=["responses", "chats"])
def model(request, url):
    import openai

    client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    if request.param == "responses":
        return agents.OpenAIResponsesModel(model="dlm", openai_client=client)
    return agents.OpenAIChatCompletionsModel(model="dlm", openai_client=client)


@pytest.fixture
def weather():
    """A tool, and the cities that it was called with."""
    seen = []

    @agents.function_tool
    def weather(city: str) -> str:
        """Return the weather of a city."""
        seen.append(city)
        return "21 degrees"

    return weather, seen


def test_the_default_model_is_that_of_responses(url):
    assert agents.models.get_default_model()
    provider = agents.OpenAIProvider(base_url=f"{url}/v1", api_key="none")
    assert isinstance(provider.get_model("dlm"), agents.OpenAIResponsesModel)


def test_an_agent_calls_a_tool_and_ends_with_a_text(model, weather):
    tool, seen = weather
    agent = agents.Agent(name="helper", instructions="Help.", model=model, tools=[tool])
    run = agents.Runner.run_sync(agent, script([call("weather", city="Paris")], TEXT))
    assert (seen, run.final_output) == (["Paris"], TEXT)


async def _events(agent, prompt):
    run = agents.Runner.run_streamed(agent, prompt)
    return [event async for event in run.stream_events()], run.final_output


def test_an_agent_streams(model, weather):
    tool, seen = weather
    agent = agents.Agent(name="helper", model=model, tools=[tool])
    events, last = asyncio.run(_events(agent, script([call("weather", city="Paris")], TEXT)))
    raw = [event.data for event in events if event.type == "raw_response_event"]
    deltas = [one.delta for one in raw if one.type == "response.output_text.delta"]
    assert (seen, last, "".join(deltas)) == (["Paris"], TEXT, TEXT)


def test_an_agent_ends_with_a_value_of_its_type(model, weather):
    tool, seen = weather
    agent = agents.Agent(name="helper", model=model, tools=[tool], output_type=Weather)
    steps = [call("weather", city="Paris")], '{"city": "Paris", "degrees": 21}'
    run = agents.Runner.run_sync(agent, script(*steps))
    assert (seen, run.final_output) == (["Paris"], Weather(city="Paris", degrees=21))


def test_an_agent_hands_a_task_over(model):
    other = agents.Agent(name="other", model=model)
    agent = agents.Agent(name="helper", model=model, handoffs=[other])
    run = agents.Runner.run_sync(agent, script([call("transfer_to_other")], TEXT))
    assert (run.last_agent.name, run.final_output) == ("other", TEXT)
