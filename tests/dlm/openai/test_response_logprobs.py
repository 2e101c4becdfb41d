"""Log-probabilities of responses: of the text alone, in the form that OpenAI's client knows, and
short enough to be sent back."""

import json

import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter
from results import result_of

from dlm import JsonObject, Policy, Request, RequestError, Tools
from dlm.events import Committed
from dlm.logprobs import TokenLogprob
from dlm.openai import response_answers
from dlm.openai.body import parse_json
from dlm.openai.items import Added, Closed, ItemReader
from dlm.openai.response_answers import ResponseAnswers
from dlm.openai.response_items import ResponseStore
from dlm.openai.responses import response_of

POLICY = Policy()
LOGPROBS = ["message.output_text.logprobs"]
BOOK = {
    "name": "book",
    "parameters": {
        "type": "object",
        "properties": {"seats": {"type": "integer"}},
        "required": ["seats"],
    },
}


class Pieces:
    """A vocabulary in which a token may have the end of a text and a blank before a call, and
    another a byte that is no character."""

    pieces = (
        b"Sure",
        b".\n",
        b"<tool_call>\n",
        b'{"name": "book", "arguments": {"seats": 2}}\n</tool_call>',
        b"\xff",
        b"<tool",
        b"_call>\n",
        b" <",
        b"",
        b"\xc3",
        b"\xa9",
    )
    call, calls, control = None, "hermes", frozenset({8})


def logprobs_of(tokens, top=()):
    return [TokenLogprob(token, -0.5, top) for token in tokens]


def committed(tokens, text, logprobs):
    return Committed(
        request=0, tokens=tokens, answer=tokens, text=text, reasoning="", logprobs=logprobs
    )


ANSWERS = {  # tokens and text of each event; the tokens of the text
    "text and a blank in one token": ([([0, 1], "Sure."), ([2, 3], "")], [0, 1]),
    "all at once": ([([0, 1, 2, 3], "Sure.")], [0, 1]),
    "a byte that is no character": ([([0, 4, 1, 2, 3], "Sure\ufffd.")], [0, 4, 1]),
    "the halves of a character": ([([9], ""), ([10], "é"), ([2, 3], "")], [9, 10]),
    "a call that begins in two tokens": ([([0, 5], "Sure"), ([6, 3], "")], [0]),
    "what may begin a call, and then none": ([([0, 5], "Sure"), ([0], "<toolSure")], [0, 5, 0]),
    "what may begin a call at the end": ([([0, 5], "Sure"), ([], "<tool")], [0, 5]),
    "a call that did not fit": ([([0, 5], "Sure")], [0]),
    "the first sign of a call before one": ([([0, 7], "Sure"), ([2, 3], " <")], [0, 7]),
    "a control token": ([([0, 8], "Sure"), ([2, 3], "")], [0, 8]),
    "a blank alone before a call": ([([1], ""), ([2, 3], "")], []),
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_a_text_has_the_log_probabilities_of_the_tokens_before_the_first_call(answer):
    events, of_text = ANSWERS[answer]
    tools = Tools([{"type": "function", "function": BOOK}], format="hermes")
    reader = ItemReader(Request(prompt="hi", constraint=tools, logprobs=0), Pieces())
    changes = [
        change
        for tokens, text in events
        for change in reader.feed(committed(tokens, text, logprobs_of(tokens)))
    ] + reader.close()
    texts = [item for item in reader.items if item.kind == "text"]
    assert [entry.token for item in texts for entry in item.logprobs] == of_text
    assert "".join(item.text for item in texts) == "".join(text for _, text in events)
    added = [change for change in changes if isinstance(change, Added)]
    assert [entry.token for change in added for entry in change.logprobs] == of_text
    if texts:  # no entry comes after the end of its item
        end = changes.index(Closed(texts[0]))
        assert not any(getattr(change, "logprobs", ()) for change in changes[end:])


def test_log_probabilities_that_come_after_their_text_are_added_to_it():
    reader = ItemReader(Request(prompt="hi", logprobs=0), Pieces())
    reader.feed(committed([0, 0], "SureSure", []))
    (added,) = reader.feed(committed([], "", logprobs_of([0, 0])))
    assert (added.text, added.item.logprobs) == ("", logprobs_of([0, 0]))


@pytest.mark.parametrize(
    ("fields", "top"),
    [
        ({}, None),
        ({"include": ["reasoning.encrypted_content"], "top_logprobs": 0}, None),
        ({"include": LOGPROBS}, 0),
        ({"include": LOGPROBS, "top_logprobs": 7}, 7),
        ({"top_logprobs": 5}, 5),
    ],
)
def test_a_response_asks_for_log_probabilities(fields, top):
    generation = response_of({"input": "hi"} | fields, POLICY, ResponseStore(0).of(""))
    assert generation.requests[0].logprobs == top


@pytest.mark.parametrize(
    ("fields", "problem", "field"),
    [
        ({"top_logprobs": 21}, "^top_logprobs must be 0 to 20, got 21", None),
        (
            {"top_logprobs": 20, "max_output_tokens": 4000},
            "^top_logprobs must be for fewer tokens: max_output_tokens, .* 65536, got 84000",
            "top_logprobs",
        ),
        (
            {"include": ["reasoning.encrypted_content", "message.output_text.logprob"]},
            r"^include\[1\] is 'message.output_text.logprob', which is unknown here: leave it "
            "out, or send message.output_text.logprobs if that is meant",
            "include",
        ),
        ({"include": ["x" * 999]}, r"^include\[0\] is .* here: leave it out$", "include"),
    ],
)
def test_other_values_of_a_response_are_refused(fields, problem, field):
    with pytest.raises(RequestError, match=problem) as refused:
        response_of({"input": "hi"} | fields, POLICY, ResponseStore(0).of(""))
    assert refused.value.field == field


ALTERNATIVES = ((0, -0.5), (8, -1.5))  # text, and a control token
FIELDS = {
    "input": "hi",
    "tools": [{"type": "function", **BOOK}],
    "include": LOGPROBS,
    "top_logprobs": 2,
}
TOKENS = [0, 8, 1, 2, 3]


def answers_to(fields, responses):
    generation = response_of(fields, POLICY, responses)
    return ResponseAnswers(generation, "tiny", Pieces())


def test_openais_models_take_a_response_and_its_events():
    """Each token needs a list of bytes, a control token too."""
    logprobs = logprobs_of(TOKENS, ALTERNATIVES)
    result = result_of(TOKENS, "Sure.", logprobs=(*logprobs,))
    body = answers_to(FIELDS, ResponseStore(0).of("")).whole([result])
    (part,) = Response.model_validate(body).output[0].content
    entries = [(entry.token, entry.bytes) for entry in part.logprobs]
    assert entries == [("Sure", [*b"Sure"]), ("token_id:8", []), (".\n", [*b".\n"])]
    others = [(other.token, other.bytes) for other in part.logprobs[0].top_logprobs]
    assert others == [("Sure", [*b"Sure"]), ("token_id:8", [])]
    assert body["output"][1]["type"] == "function_call"
    details = body["usage"]["input_tokens_details"]
    assert details == {"cached_tokens": 0, "cache_write_tokens": 1}

    answers = answers_to(FIELDS, ResponseStore(0).of(""))
    events = answers.first()
    for token, text, logprob in zip(TOKENS, ("Sure", "", ".", "", ""), logprobs, strict=True):
        events += answers.progress(0, committed([token], text, [logprob]))
    events += answers.end(0, result)
    event_of = TypeAdapter(ResponseStreamEvent)
    for event in events:
        assert event_of.validate_python(event).type == event["type"]
    shown = part.to_dict()["logprobs"]
    deltas = [each for each in events if each["type"] == "response.output_text.delta"]
    assert [entry for delta in deltas for entry in delta["logprobs"]] == shown
    (done,) = (each for each in events if each["type"] == "response.output_text.done")
    assert done["logprobs"] == shown
    assert events[-1]["response"]["output"][0]["content"][0]["logprobs"] == shown


def test_each_entry_of_a_stream_is_made_once(monkeypatch):
    """The whole of them at the end would hold up the event loop."""
    made = []

    def counted(logprobs, vocabulary, make=response_answers.response_logprobs):
        made.extend(logprobs)
        return make(logprobs, vocabulary)

    monkeypatch.setattr(response_answers, "response_logprobs", counted)
    answers = answers_to(FIELDS, ResponseStore().of(""))
    logprobs = logprobs_of([0] * 5)
    for logprob in logprobs:
        answers.progress(0, committed([0], "Sure", [logprob]))
    answers.end(0, result_of([0] * 5, "Sure" * 5, logprobs=(*logprobs,)))
    assert made == logprobs


def test_a_response_of_the_default_length_may_have_all_alternatives_and_is_continued():
    responses, count = ResponseStore().of("me"), POLICY.answer_tokens
    logprobs = logprobs_of([0] * count, ((0, -0.12345678901234567),) * 20)
    previous = None
    for turns in (1, 2):
        turn = {"input": "hi", "top_logprobs": 20}
        answers = answers_to(
            turn | ({"previous_response_id": previous} if previous else {}), responses
        )
        body = answers.whole([result_of([0] * count, "Sure" * count, logprobs=(*logprobs,))])
        assert len(body["output"][0]["content"][0]["logprobs"]) == count
        previous = body["id"]
        assert json.loads(responses.get(previous).whole) == body
        continued = {"input": "Go on.", "previous_response_id": previous}
        generation = response_of(continued, POLICY, responses)
        written = [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "Sure" * count},
        ]
        assert generation.requests[0].messages == written * turns + [
            {"role": "user", "content": "Go on."}
        ]


def test_16_000_log_probabilities_can_be_sent_back():
    count = 16_000 // 21
    answers = answers_to({"input": "hi", "top_logprobs": 20}, ResponseStore(0).of(""))
    logprobs = logprobs_of([0] * count, ((0, -0.12345678901234567),) * 20)
    body = answers.whole([result_of([0] * count, "Sure" * count, logprobs=(*logprobs,))])
    again = {"input": [*body["output"], {"role": "user", "content": "Go on."}]}
    sent = parse_json("the body", json.dumps(again))
    generation = response_of(sent, POLICY, ResponseStore(0).of(""))
    assert generation.requests[0].messages[0]["content"] == "Sure" * count


class CountedPieces(tuple):
    """Bytes of tokens, which count how often they are read."""

    reads = 0

    def __getitem__(self, token):
        self.reads += 1
        return super().__getitem__(token)


@pytest.mark.parametrize("content", [None, JsonObject()])
def test_the_tokens_of_a_text_are_not_read_again_at_each_event(content):
    tools = Tools([{"type": "function", "function": BOOK}], format="hermes", content=content)
    vocabulary = Pieces()
    vocabulary.pieces = CountedPieces(Pieces.pieces)
    reader = ItemReader(Request(prompt="hi", constraint=tools, logprobs=0), vocabulary)
    for _ in range(100):
        reader.feed(committed([0], "Sure", logprobs_of([0])))
    assert len(reader.items[0].logprobs) == 100
    assert vocabulary.pieces.reads < 2000


def test_no_call_begins_after_a_value_that_the_answer_has_begun_with():
    tools = Tools([{"type": "function", "function": BOOK}], format="hermes", content=JsonObject())
    reader = ItemReader(Request(prompt="hi", constraint=tools, logprobs=0), Pieces())
    tokens, texts = [0, 5, 6, 0], ["Sure", "<tool", "_call>\n", "Sure"]
    for token, text in zip(tokens, texts, strict=True):
        reader.feed(committed([token], text, logprobs_of([token])))
    assert [entry.token for entry in reader.items[0].logprobs] == tokens
