"""Typed questions about a text, answered with probabilities instead of words.

python scripts/serve.py &
python examples/decide.py
"""

import os
from typing import Any

from openai import OpenAI

TEXT = "Answer with one word of teacher, nurse, driver. My brother Ben Kim is a nurse in Oslo."
QUESTIONS: list[Any] = [
    {
        "type": "choice",
        "name": "job",
        "instructions": "What is his job?",
        "choices": [{"value": "teacher"}, {"value": "nurse"}, {"value": "driver"}],
    },
    {"type": "predicate", "name": "norway", "instructions": "Does he live in Norway?"},
    {
        "type": "score",
        "name": "closeness",
        "instructions": "How close is he to the writer?",
        "levels": [{"label": "stranger"}, {"label": "friend"}, {"label": "family"}],
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
