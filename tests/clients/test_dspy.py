"""DSPy: predictions and agents, by both of its adapters.

The chat adapter has fields between markers in plain text. The JSON adapter asks for a schema, or
for any JSON where a field may have any keys, and offers tools as functions; it does so for models
of its catalog alone, so the server has one of their names.
"""

import json

import pytest
from turn_scripts import call, script

dspy = pytest.importorskip("dspy", reason="DSPy is not installed")

ADAPTERS = {"chat": "ChatAdapter", "json": "JSONAdapter"}


class Reading(dspy.Signature):
    """Read the person."""

    text: str = dspy.InputField()
    name: str = dspy.OutputField()
    age: int = dspy.OutputField()


class Choosing(dspy.Signature):
    """Choose a tool."""

    question: str = dspy.InputField()
    tools: list[dspy.Tool] = dspy.InputField()
    calls: dspy.ToolCalls = dspy.OutputField()


@pytest.fixture(params=ADAPTERS)
def form(request, url):
    """Configure DSPy for an adapter, and return a writer of answers in its form."""
    model = dspy.LM("openai/gpt-4o", api_base=f"{url}/v1", api_key="none", cache=False)

    def written(**fields):
        if request.param == "json":
            return json.dumps(fields)
        texts = {name: v if isinstance(v, str) else json.dumps(v) for name, v in fields.items()}
        sections = [f"[[ ## {name} ## ]]\n{text}\n\n" for name, text in texts.items()]
        return "".join(sections) + "[[ ## completed ## ]]"

    with dspy.context(lm=model, adapter=getattr(dspy, ADAPTERS[request.param])()):
        yield written


def test_a_prediction_has_the_types_of_its_signature(form):
    read = dspy.Predict(Reading)(text=script(form(name="Olga", age=61)))
    assert (read.name, read.age) == ("Olga", 61)


def test_an_agent_calls_a_tool_and_finishes_with_its_result(form):
    """Each step is a conversation of its own, whose prompt holds what the tool returned: the
    script of the next step. A step's other fields are those of the answer at the end."""
    answer = {"reasoning": "The tool says so.", "answer": "21 degrees"}
    finish = form(next_thought="Done.", next_tool_name="finish", next_tool_args={}, **answer)
    cities = []

    def weather(city: str) -> str:
        """Return the weather of a city."""
        cities.append(city)
        return script(finish)

    first = form(
        next_thought="Look.", next_tool_name="weather", next_tool_args={"city": "Paris"}, **answer
    )
    agent = dspy.ReAct("question -> answer", tools=[weather], max_iters=3)
    done = agent(question=script(first))
    assert cities == ["Paris"]
    assert done.trajectory["tool_name_1"] == "finish"
    assert done.answer == "21 degrees"


def test_the_json_adapter_offers_tools_as_functions(url):
    def weather(city: str) -> str:
        """Return the weather of a city."""
        return f"21 degrees in {city}"

    model = dspy.LM("openai/gpt-4o", api_base=f"{url}/v1", api_key="none", cache=False)
    with dspy.context(lm=model, adapter=dspy.JSONAdapter()):
        chosen = dspy.Predict(Choosing)(
            question=script([call("weather", city="Paris")]), tools=[dspy.Tool(weather)]
        )
    (made,) = chosen.calls.tool_calls
    assert (made.name, made.args) == ("weather", {"city": "Paris"})
