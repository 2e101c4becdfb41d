"""A model that calls functions of this program, reads what they return, and goes on.

    python examples/functions.py

A tool is a function: its name, its docstring, and its annotated parameters, whose types arguments
have whatever the model wants. No server runs.
"""

import dlm

QUESTION = "What is the weather in Oslo?"
MOST_TURNS = 3


def get_weather(city: str) -> str:
    """The weather in a city."""
    return f"{city}: sunny, 21 degrees"


def main(engine: dlm.Engine) -> None:
    functions = {"get_weather": get_weather}
    messages: list = [{"role": "user", "content": QUESTION}]
    for turn in range(MOST_TURNS):
        choice = "required" if turn == 0 else "auto"
        tools = dlm.Tools([*functions.values()], choice=choice, parallel=False)
        request = dlm.Request(
            messages=messages, constraint=tools, max_tokens=48, temperature=0.0, seed=1
        )
        result = engine.generate(request)
        if not result.tool_calls:
            print(f"said: {result.text!r}")
            break
        (call,) = result.tool_calls
        returned = functions[call.name](**call.arguments)
        print(f"{call.name}({call.arguments}) -> {returned}")
        sent = call.to_openai(f"call_{turn}")
        messages += [
            {"role": "assistant", "content": result.text, "tool_calls": [sent]},
            {"role": "tool", "tool_call_id": sent["id"], "content": returned},
        ]
    print(f"{len(messages)} messages")


if __name__ == "__main__":
    with_model = dlm.Engine.load()
    main(with_model)
    with_model.close()
