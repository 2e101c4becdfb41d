"""LangChain: models of chats, responses and messages, bound to tools and to types, and agents."""

import pytest
from pydantic import BaseModel
from turn_scripts import call, script

pytest.importorskip("langchain", reason="langchain is not installed")
langchain_openai = pytest.importorskip("langchain_openai", reason="it is not installed")
langchain_anthropic = pytest.importorskip("langchain_anthropic", reason="it is not installed")

TEXT = "It is 21 degrees in Paris."
CALL = [call("weather", city="Paris")]


class Weather(BaseModel):
    """The weather of a city."""

    city: str
    degrees: int


PARIS = Weather(city="Paris", degrees=21)


def weather(city: str) -> str:
    """Return the weather of a city."""
    return f"21 degrees in {city}"


@pytest.fixture(params=["chats", "responses", "messages"])
def model(request, url):
    if request.param == "messages":
        made = langchain_anthropic.ChatAnthropic
        return made(model="dlm", base_url=url, api_key="none", max_tokens=300, max_retries=0)
    return langchain_openai.ChatOpenAI(
        model="dlm",
        base_url=f"{url}/v1",
        api_key="none",
        max_retries=0,
        use_responses_api=request.param == "responses",
    )


def test_a_model_with_tools_calls_one(model):
    message = model.bind_tools([weather]).invoke(script(CALL, TEXT))
    (made,) = message.tool_calls
    assert (made["name"], made["args"]) == ("weather", {"city": "Paris"})


def test_a_model_streams_a_call_and_a_text(model):
    from langchain_core.messages import HumanMessage, ToolMessage

    bound, messages = model.bind_tools([weather]), [HumanMessage(script(CALL, TEXT))]
    whole = None
    for chunk in bound.stream(messages):
        whole = chunk if whole is None else whole + chunk
    (made,) = whole.tool_calls
    assert made["args"] == {"city": "Paris"}
    messages += [whole, ToolMessage("21", tool_call_id=made["id"])]
    assert "".join(chunk.text for chunk in bound.stream(messages)) == TEXT


def test_an_agent_calls_a_tool_and_ends_with_a_text(model):
    from langchain.agents import create_agent

    agent = create_agent(model, tools=[weather], system_prompt="Help.")
    messages = agent.invoke({"messages": [{"role": "user", "content": script(CALL, TEXT)}]})
    kinds = [message.type for message in messages["messages"]]
    assert kinds == ["human", "ai", "tool", "ai"]
    assert messages["messages"][-1].text == TEXT
    assert messages["messages"][2].content == "21 degrees in Paris"


@pytest.mark.parametrize("strategy", ["ToolStrategy", "ProviderStrategy"])
def test_an_agent_calls_a_tool_twice_and_ends_with_a_value_of_a_type(model, strategy):
    """The type is a tool of its own, whose call ends the loop, or the form of the last text."""
    from langchain.agents import create_agent, structured_output

    as_tool = strategy == "ToolStrategy"
    last = [call("Weather", city="Paris", degrees=21)] if as_tool else PARIS.model_dump_json()
    form = getattr(structured_output, strategy)(Weather)
    agent = create_agent(model, tools=[weather], response_format=form)
    prompt = script(CALL, [call("weather", city="Rome")], last)
    state = agent.invoke({"messages": [{"role": "user", "content": prompt}]})
    results = [message.content for message in state["messages"] if message.type == "tool"]
    assert results[:2] == ["21 degrees in Paris", "21 degrees in Rome"]
    assert state["structured_response"] == PARIS


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_a_model_answers_with_a_value_of_a_type(model, method):
    text = method == "json_schema"
    step = PARIS.model_dump_json() if text else [call("Weather", city="Paris", degrees=21)]
    assert model.with_structured_output(Weather, method=method).invoke(script(step)) == PARIS
