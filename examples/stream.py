"""An answer as it becomes final, and the canvas that it comes from.

    python scripts/serve.py &
    python examples/stream.py

Text is sent once it cannot change any more: a canvas at a time, or what a grammar has fixed of one.
`stream_options.drafts` is this server's own: between two passes it shows what each position would
be if it were committed now. Other clients never see it.
"""

import os

from openai import OpenAI

PROMPT = "Extract name, age as JSON. Our neighbour Olga Lopez is 61 and still runs every morning."


def main(client: OpenAI) -> None:
    stream = client.chat.completions.create(
        model=client.models.list().data[0].id,
        messages=[{"role": "user", "content": PROMPT}],
        response_format={"type": "json_object"},
        stream=True,
        stream_options={"include_usage": True, "drafts": True},  # type: ignore[typeddict-unknown-key]
        seed=1,
    )
    for chunk in stream:
        if draft := getattr(chunk, "draft", None):
            sure = "".join(
                token if accepted else "_" * len(token)
                for token, accepted in zip(draft["tokens"], draft["accepted"], strict=True)
            )
            print(f"pass {draft['step']}: {sure!r}")
        for choice in chunk.choices:
            if choice.delta.content:
                print(f"final: {choice.delta.content!r}")
        if chunk.usage:
            print(f"{chunk.usage.completion_tokens} tokens")


if __name__ == "__main__":
    url = os.environ.get("DLM_URL", "http://127.0.0.1:8000/v1")
    main(OpenAI(base_url=url, api_key=os.environ.get("DLM_API_KEY", "none")))
