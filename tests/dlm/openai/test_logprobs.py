"""Log-probabilities in bodies and answers of chats and completions."""

import pytest
from results import result_of

from dlm import Policy, RequestError, request_of
from dlm.events import Committed
from dlm.logprobs import TokenLogprob
from dlm.openai.answers import ChatAnswers, TextAnswers
from dlm.openai.requests import chat_of, completion_of

CHAT = {"messages": [{"role": "user", "content": "hi"}]}
COMPLETION = {"prompt": "hi"}
POLICY = Policy()


@pytest.mark.parametrize(
    ("fields", "top"),
    [
        ({}, None),
        ({"logprobs": False, "top_logprobs": 0}, None),
        ({"logprobs": True}, 0),
        ({"logprobs": True, "top_logprobs": 20}, 20),
    ],
)
def test_a_chat_asks_for_log_probabilities(fields, top):
    assert chat_of(CHAT | fields, POLICY).requests[0].logprobs == top
    assert request_of(CHAT | fields, POLICY).logprobs == top


@pytest.mark.parametrize(("value", "top"), [(None, None), (False, None), (0, 0), (20, 20)])
def test_a_completion_asks_for_log_probabilities(value, top):
    assert completion_of(COMPLETION | {"logprobs": value}, POLICY).requests[0].logprobs == top


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"top_logprobs": 2}, "top_logprobs must have logprobs beside it, which must be true"),
        ({"logprobs": False, "top_logprobs": 2}, "top_logprobs must have logprobs beside it"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs must be 0 to 20, got 21"),
        ({"logprobs": True, "top_logprobs": -1}, "top_logprobs must be 0 to 20, got -1"),
        ({"logprobs": 3}, "logprobs must be true or false, got 3"),
        (
            {"logprobs": True, "top_logprobs": 20, "n": 4},
            "logprobs must be for fewer tokens: .* must be at most 65536, got 86016",
        ),
        ({"logprobs": True, "max_tokens": 65_537}, "at most 65536, got 65537"),
    ],
)
def test_other_values_of_a_chat_are_refused(fields, problem):
    with pytest.raises(RequestError, match=problem) as refused:
        chat_of(CHAT | fields, POLICY)
    assert refused.value.field in (None, *fields)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"logprobs": True}, "logprobs must be 0 to 20, got true"),
        ({"logprobs": 21}, "logprobs must be 0 to 20, got 21"),
        ({"logprobs": -1}, "logprobs must be 0 to 20, got -1"),
        ({"logprobs": "5"}, "logprobs must be 0 to 20, got '5'"),
        ({"logprobs": 2, "top_logprobs": 2}, "alternatives are counted by logprobs"),
        ({"logprobs": 20, "max_tokens": 4000}, "at most 65536, got 84000"),
    ],
)
def test_other_values_of_a_completion_are_refused(fields, problem):
    with pytest.raises(RequestError, match=problem):
        completion_of(COMPLETION | fields, POLICY)


class Pieces:
    """A vocabulary of four tokens: a text, two halves of a character, and a control token."""

    pieces = (b"hi ", b"\xc3", b"\xa9", b"")
    call = None


LOGPROBS = [
    TokenLogprob(0, -0.5, ((0, -0.5), (3, -1.5))),
    TokenLogprob(1, -float("inf"), ((0, -0.25),)),
    TokenLogprob(2, 0.0, ((2, 0.0),)),
]


def events():
    """The answer in three pieces, whose second has log-probabilities alone."""
    for token, text in enumerate(("hi ", "", "é")):
        logprobs = LOGPROBS[token : token + 1]
        yield committed([token], text, logprobs)


def committed(tokens, text, logprobs=()):
    return Committed(
        request=0, tokens=tokens, answer=tokens, text=text, reasoning="", logprobs=[*logprobs]
    )


def test_a_chat_has_them_by_token_whole_and_streamed():
    answers = ChatAnswers(chat_of(CHAT | {"logprobs": True}, POLICY), "tiny", Pieces())
    entries = answers.whole([result_of([0, 1, 2], "hi é", logprobs=(*LOGPROBS,))])["choices"][0][
        "logprobs"
    ]["content"]
    assert [(each["token"], each["logprob"], each["bytes"]) for each in entries] == [
        ("hi ", -0.5, [104, 105, 32]),
        ("\ufffd", -9999.0, [0xC3]),
        ("\ufffd", 0.0, [0xA9]),
    ]
    assert entries[0]["top_logprobs"][1] == {
        "token": "token_id:3",
        "logprob": -1.5,
        "bytes": None,
    }
    chunks = [chunk for event in events() for chunk in answers.progress(0, event)]
    streamed = [chunk["choices"][0]["logprobs"]["content"] for chunk in chunks]
    assert [entry for some in streamed for entry in some] == entries
    assert [chunk["choices"][0]["delta"] for chunk in chunks] == [
        {"content": "hi "},
        {},
        {"content": "é"},
    ]


def test_a_completion_has_them_by_column_whole_and_streamed():
    generation = completion_of(COMPLETION | {"logprobs": 1}, POLICY)
    answers = TextAnswers(generation, "tiny", Pieces())
    columns = answers.whole([result_of([0, 1, 2], "hi é", logprobs=(*LOGPROBS,))])["choices"][0][
        "logprobs"
    ]
    assert columns == {
        "text_offset": [0, 3, 3],
        "token_logprobs": [-0.5, -9999.0, 0.0],
        "tokens": ["hi ", "\ufffd", "\ufffd"],
        "top_logprobs": [{"hi ": -0.5, "token_id:3": -1.5}, {"hi ": -0.25}, {"\ufffd": 0.0}],
    }
    answers = TextAnswers(generation, "tiny", Pieces())
    chunks = [chunk for event in events() for chunk in answers.progress(0, event)]
    for column, values in columns.items():
        parts = [chunk["choices"][0]["logprobs"][column] for chunk in chunks]
        assert [value for part in parts for value in part] == values


def test_an_answer_that_without_a_request_for_them_has_none():
    for make, generation in (
        (ChatAnswers, chat_of(CHAT, POLICY)),
        (TextAnswers, completion_of(COMPLETION, POLICY)),
    ):
        answers = make(generation, "tiny", Pieces())
        assert (
            answers.whole([result_of([0, 1, 2], "hi é", logprobs=None)])["choices"][0]["logprobs"]
            is None
        )
        piece = committed([0], "hi ")
        (chunk,) = answers.progress(0, piece)
        assert chunk["choices"][0]["logprobs"] is None
