"""Reasoning first, then data: the schema holds from where the reasoning ends.

python scripts/serve.py &
python examples/reason.py
"""

import json
import os

from openai import OpenAI

PROMPT = "Extract name, age as JSON. Our neighbour Olga Lopez is 61 and still runs every morning."
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "minimum": 0}},
    "required": ["name", "age"],
}


def main(client: OpenAI) -> None:
    answer = client.chat.completions.create(
        model=client.models.list().data[0].id,
        messages=[{"role": "user", "content": PROMPT}],
        reasoning_effort="low",  # 256 tokens of it at most
        response_format={"type": "json_schema", "json_schema": {"name": "p", "schema": SCHEMA}},
        seed=1,
    )
    message, usage = answer.choices[0].message, answer.usage
    print(f"reasoning: {getattr(message, 'reasoning', None)}")
    print(f"answer: {json.loads(message.content or '')}")
    if usage and usage.completion_tokens_details:
        print(f"{usage.completion_tokens_details.reasoning_tokens} tokens of reasoning")


if __name__ == "__main__":
    url = os.environ.get("DLM_URL", "http://127.0.0.1:8000/v1")
    main(OpenAI(base_url=url, api_key=os.environ.get("DLM_API_KEY", "none")))
