"""A model that calls functions, reads what they return, and goes on.

python scripts/serve.py &
python examples/tools.py
"""

import json
import os
from typing import Any

from openai import OpenAI

TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "The weather in a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "maxLength": 40}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    }
]
MOST_TURNS = 3


def get_weather(city: str) -> str:
    return f"{city}: sunny, 21 degrees"


def main(client: OpenAI) -> None:
    model = client.models.list().data[0].id
    messages: list[Any] = [{"role": "user", "content": "What is the weather in Oslo?"}]
    for turn in range(MOST_TURNS):
        answer = client.chat.completions.create(
            model=model,
            messages=messages,
            tools=TOOLS,
            tool_choice="required" if turn == 0 else "auto",
            parallel_tool_calls=False,
            temperature=0,
            seed=1,
        )
        message = answer.choices[0].message
        messages.append(message)
        if not message.tool_calls:
            print(f"said: {message.content!r}")
            break
        for call in message.tool_calls:
            if call.type != "function":
                continue
            arguments = json.loads(call.function.arguments)  # they fit the schema
            result = get_weather(**arguments)
            print(f"{call.function.name}({arguments}) -> {result}")
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    print(f"{len(messages)} messages")


if __name__ == "__main__":
    url = os.environ.get("DLM_URL", "http://127.0.0.1:8000/v1")
    main(OpenAI(base_url=url, api_key=os.environ.get("DLM_API_KEY", "none")))
