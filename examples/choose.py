"""One of some words: a classifier whose labels are never misspelled.

python scripts/serve.py &
python examples/choose.py
"""

import os

from openai import OpenAI

LABELS = ["teacher", "nurse", "driver"]
TEXTS = ["My brother Ben Kim is a nurse in Oslo.", "Olga Lopez has been a driver for ten years."]


def main(client: OpenAI) -> None:
    model = client.models.list().data[0].id
    for text in TEXTS:
        prompt = f"Answer with one word of {', '.join(LABELS)}. {text}"
        answer = client.chat.completions.create(
            model=model,
            messages=[{"role": "user", "content": prompt}],
            extra_body={"structured_outputs": {"choice": LABELS}},
            temperature=0,
        )
        print(f"{text} -> {answer.choices[0].message.content}")


if __name__ == "__main__":
    url = os.environ.get("DLM_URL", "http://127.0.0.1:8000/v1")
    main(OpenAI(base_url=url, api_key=os.environ.get("DLM_API_KEY", "none")))
