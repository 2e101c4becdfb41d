"""Log-probabilities through the official client."""

from math import exp

import pytest

MESSAGE = {"role": "user", "content": "Extract name, age as JSON. Olga Lopez is 61."}
FIELDS = {"model": "tiny", "max_tokens": 48, "seed": 1}


def test_a_chat_has_the_log_probabilities_of_its_text_whole_and_streamed(tiny):
    create = tiny.client.chat.completions.create
    fields = FIELDS | {"messages": [MESSAGE], "logprobs": True, "top_logprobs": 3}
    for more in ({}, {"response_format": {"type": "json_object"}}, {"reasoning_effort": "low"}):
        (choice,) = create(**fields, **more).choices
        entries = choice.logprobs.content
        assert "".join(entry.token for entry in entries) == choice.message.content
        assert all(len(entry.top_logprobs) in (1, 3) for entry in entries)
        assert all(0 < exp(entry.logprob) <= 1 for entry in entries)
        streamed = []
        for chunk in create(**fields, **more, stream=True):
            for piece in chunk.choices:
                streamed += piece.logprobs.content if piece.logprobs else []
        assert streamed == entries


def test_a_response_has_the_log_probabilities_of_its_text_whole_and_streamed(tiny):
    fields = {"model": "tiny", "max_output_tokens": 48, "input": [MESSAGE]}
    fields |= {"extra_body": {"seed": 1}, "top_logprobs": 3}
    fields["include"] = ["message.output_text.logprobs"]
    form = {"text": {"format": {"type": "json_object"}}}
    for more in (form, {"reasoning": {"effort": "low"}}):
        whole = tiny.client.responses.create(**fields, **more)
        assert whole.top_logprobs == 3
        (part,) = whole.output[-1].content
        assert "".join(entry.token for entry in part.logprobs) == part.text == whole.output_text
        assert all(0 < exp(entry.logprob) <= 1 for entry in part.logprobs)
        assert all(len(entry.top_logprobs) in (1, 3) for entry in part.logprobs)
        streamed = []
        for event in tiny.client.responses.create(**fields, **more, stream=True):
            if event.type == "response.output_text.delta":
                streamed += event.logprobs
            if event.type == "response.output_text.done":
                done = event.logprobs
        (same,) = event.response.output[-1].content
        assert same.logprobs == part.logprobs
        numbers = [entry.logprob for entry in part.logprobs]
        assert [entry.logprob for entry in streamed] == [entry.logprob for entry in done] == numbers


def test_a_completion_has_the_log_probabilities_of_its_text(tiny):
    fields = FIELDS | {"prompt": "Olga Lopez is", "logprobs": 2, "max_tokens": 12}
    (choice,) = tiny.client.completions.create(**fields).choices
    logprobs = choice.logprobs
    assert "".join(logprobs.tokens) == choice.text
    assert logprobs.text_offset[-1] + len(logprobs.tokens[-1]) == len(choice.text)
    assert len(logprobs.token_logprobs) == len(logprobs.top_logprobs) == len(logprobs.tokens)
    parts = tiny.client.completions.create(**fields, stream=True)
    streamed = [part.choices[0].logprobs for part in parts if part.choices[0].logprobs]
    assert [number for some in streamed for number in some.token_logprobs] == (
        logprobs.token_logprobs
    )


def test_a_probability_is_that_of_the_model_at_a_label(tiny):
    """A choice shows how sure the model is, though the constraint leaves it no other text."""
    labels = ["teacher", "nurse"]
    prompt = "Answer with one word of teacher, nurse. My brother Ben Kim is a nurse in Oslo."
    (choice,) = tiny.client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": prompt}],
        extra_body={"structured_outputs": {"choice": labels}},
        logprobs=True,
        temperature=0,
    ).choices
    assert choice.message.content == "nurse"
    first = choice.logprobs.content[0]
    assert exp(first.logprob) == pytest.approx(1, abs=0.5)
    assert first.logprob < 0
