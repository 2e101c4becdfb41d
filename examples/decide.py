"""Typed questions about a text, answered with probabilities instead of words.

python scripts/serve.py &
python examples/decide.py
"""

import os
from typing import Any

from openai import OpenAI

TEXT = "Answer with one word of mage, healer, warrior. Ben Kim, fights as a mage."
QUESTIONS: list[Any] = [
    {
        "type": "choice",
        "name": "role",
        "instructions": "What does he fight as?",
        "choices": [{"value": "mage"}, {"value": "healer"}, {"value": "warrior"}],
    },
    {"type": "predicate", "name": "fights", "instructions": "Does he fight?"},
    {
        "type": "score",
        "name": "danger",
        "instructions": "How dangerous is he?",
        "levels": [{"label": "harmless"}, {"label": "armed"}, {"label": "deadly"}],
    },
]


def main(client: OpenAI) -> None:
    model = client.models.list().data[0].id
    decision = client.decisions.create(model=model, input=TEXT, questions=QUESTIONS)
    for answer in decision.answers:
        if answer.type == "choice":
            print(f"{answer.name}: {answer.choice}, {answer.confidence:.0%} sure")
        elif answer.type == "predicate":
            print(f"{answer.name}: {answer.probability:.0%}")
        elif answer.type == "score":
            print(f"{answer.name}: {answer.score:.2f} of {len(answer.probabilities) - 1}")
    usage = decision.usage
    print(f"{usage.input_tokens} tokens read, {usage.output_tokens} written")


if __name__ == "__main__":
    url = os.environ.get("DLM_URL", "http://127.0.0.1:8000/v1")
    main(OpenAI(base_url=url, api_key=os.environ.get("DLM_API_KEY", "none")))
