"""pydantic-ai: agents by responses, chats and messages, with tools and values of types."""

import pytest
from pydantic import BaseModel
from turn_scripts import call, script, thought

pydantic_ai = pytest.importorskip("pydantic_ai", reason="pydantic-ai-slim is not installed")

TEXT = "It is 21 degrees in Paris."


class Weather(BaseModel):
    city: str
    degrees: int


PARIS = Weather(city="Paris", degrees=21)


@pytest.fixture(params=["responses", "chats", "messages"])
def model(request, url):
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.anthropic import AnthropicProvider
    from pydantic_ai.providers.openai import OpenAIProvider

    if request.param == "messages":
        provider = AnthropicProvider(base_url=url, api_key="none")
        # pydantic-ai knows by the name whether a model's texts can have types
        return AnthropicModel("claude-sonnet-4-5", provider=provider)
    of = OpenAIResponsesModel if request.param == "responses" else OpenAIChatModel
    return of("dlm", provider=OpenAIProvider(base_url=f"{url}/v1", api_key="none"))


def with_tool(model, **more):
    """Return an agent with a tool, and the cities that the tool was called with."""
    agent, seen = pydantic_ai.Agent(model, **more), []

    @agent.tool_plain
    def weather(city: str) -> str:
        """Return the weather of a city."""
        seen.append(city)
        return "21 degrees"

    return agent, seen


def test_an_agent_calls_a_tool_and_ends_with_a_text(model):
    agent, seen = with_tool(model, instructions="Help.")
    run = agent.run_sync(script([call("weather", city="Paris")], TEXT))
    assert (seen, run.output) == (["Paris"], TEXT)


def test_an_agent_ends_with_a_call_of_its_type(model):
    agent, seen = with_tool(model, output_type=Weather)
    steps = [call("weather", city="Paris")], [call("final_result", city="Paris", degrees=21)]
    run = agent.run_sync(script(*steps))
    assert (seen, run.output) == (["Paris"], PARIS)


def test_an_agent_ends_with_a_text_of_its_type(model):
    agent, seen = with_tool(model, output_type=pydantic_ai.NativeOutput(Weather))
    steps = [call("weather", city="Paris")], PARIS.model_dump_json()
    run = agent.run_sync(script(*steps))
    assert (seen, run.output) == (["Paris"], PARIS)


def test_an_agent_streams(model):
    agent, seen = with_tool(model)
    run = agent.run_stream_sync(script([call("weather", city="Paris")], TEXT))
    assert [*run.stream_text()][-1] == TEXT
    assert seen == ["Paris"]


def test_an_agent_goes_on_with_an_earlier_conversation(model):
    agent, _ = with_tool(model)
    first = agent.run_sync(script([call("weather", city="Paris")], TEXT, "Gladly."))
    last = agent.run_sync("Thank you.", message_history=first.all_messages())
    assert last.output == "Gladly."


def test_an_agent_thinks(model):
    from pydantic_ai.messages import ThinkingPart

    steps = thought("Paris it is.", [call("weather", city="Paris")]), thought("It is warm.", TEXT)
    settings = {
        "openai_reasoning_effort": "low",
        "openai_reasoning_summary": "auto",
        "anthropic_thinking": {"type": "enabled", "budget_tokens": 100},
        "max_tokens": 900,
    }
    agent, seen = with_tool(model, model_settings=settings)
    run = agent.run_sync(script(*steps))
    parts = [part for message in run.all_messages() for part in message.parts]
    thoughts = [part.content for part in parts if isinstance(part, ThinkingPart)]
    assert (run.output, seen) == (TEXT, ["Paris"])
    assert thoughts == ["Paris it is.", "It is warm."]
