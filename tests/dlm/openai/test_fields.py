"""What bodies ask for beside a constraint, and what a 400 says of those that make no sense."""

import pytest

from dlm import Request, RequestError, Tools
from dlm.openai.messages import EFFORT
from dlm.openai.other_fields import LABELS
from dlm.openai.requests import chat_of, completion_of, request_of
from dlm.policy import Policy

LIBRARY = Policy()
TOOLS = [{"type": "function", "function": {"name": name}} for name in ("find", "book")]
HI = {"messages": [{"role": "user", "content": "hi"}]}


def test_a_request_takes_all_that_a_body_says_of_it():
    body = {
        "messages": [
            {"role": "user", "content": "Book it.", "name": None},
            {"role": "assistant", "content": None, "tool_calls": []},
        ],
        "tools": TOOLS,
        "tool_choice": "required",
        "max_completion_tokens": 99,
        "seed": 7,
        "reasoning_effort": "low",
        "temperature": 0.3,
        "top_k": 40,
        "top_p": 0.95,
        "min_p": 0.01,
    }
    request = request_of(body, LIBRARY)
    assert request.messages == [
        {"role": "user", "content": "Book it."},
        {"role": "assistant", "content": ""},
    ]
    assert (request.max_tokens, request.seed) == (99, 7)
    assert (request.temperature, request.top_k) == (0.3, 40)
    assert (request.top_p, request.min_p) == (0.95, 0.01)
    assert (request.thinking, request.thinking_budget) == (True, EFFORT["low"])
    assert request.tools == TOOLS
    assert isinstance(request.constraint, Tools)


def test_what_a_body_leaves_out_keeps_its_default():
    assert request_of({"prompt": "Hi.", "seed": None}, LIBRARY) == Request(prompt="Hi.")
    assert request_of({"prompt": [5, 6]}, LIBRARY) == Request(token_ids=[5, 6])
    unused = {"prompt": "Hi.", "tools": TOOLS, "tool_choice": "none"}
    assert request_of(unused, LIBRARY) == Request(prompt="Hi.")


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"messages": None}, "^give messages or prompt; got neither"),
        ({"prompt": "a"}, "^give messages or prompt; got messages and prompt"),
        ({"prompt": [5]}, "^give messages or prompt; got messages and prompt"),
        ({"messages": []}, "messages is an empty list"),
        ({"messages": ["hi"]}, r"messages\[0\] is 'hi': it takes an object"),
        ({"messages": [{"content": "hi"}]}, r"messages\[0\].role is missing: it takes system, dev"),
        ({"messages": [{"role": "model", "content": "hi"}]}, r"role is 'model': it takes system"),
        ({"messages": [{"role": "user", "content": 3}]}, r"messages\[0\].content is 3: it takes t"),
        ({"messages": None, "prompt": ["a"]}, r"prompt\[0\] is 'a': it takes a token id"),
        ({"messages": None, "prompt": " "}, "prompt is ' ': it takes text that is not blank, or"),
        ({"max_tokens": "9"}, "max_tokens is '9': it takes a whole number"),
        ({"max_tokens": True}, "max_tokens is true: it takes a whole number"),
        ({"max_tokens": 0}, "max_tokens is 0: it takes at least 1"),
        ({"max_tokens": 8, "max_completion_tokens": 9}, "max_completion_tokens is 9 and max_tok"),
        ({"seed": 0.5}, r"seed is 0\.5: it takes a whole number"),
        ({"reasoning_effort": "huge"}, "reasoning_effort is 'huge': it takes none, minimal, low"),
        ({"reasoning_effort": ["low"]}, "reasoning_effort is a list"),
    ],
)
def test_a_request_that_makes_no_sense_says_what_would(fields, problem):
    with pytest.raises(RequestError, match=problem):
        request_of({"messages": [{"role": "user", "content": "hi"}]} | fields, LIBRARY)


def test_a_chat_asks_for_as_many_answers_as_it_says_each_with_a_seed_of_its_own():
    generation = chat_of(HI | {"n": 3, "seed": 7}, LIBRARY)
    assert [request.seed for request in generation.requests] == [7, 8, 9]
    assert {request.messages[0]["content"] for request in generation.requests} == {"hi"}
    for seed in (2**63 - 1, -1, -(2**90)):
        last = chat_of(HI | {"n": 2, "seed": seed}, LIBRARY)
        assert [request.seed for request in last.requests] == [seed, seed + 1]


def test_without_a_seed_every_body_has_another():
    seeds = {chat_of(HI, LIBRARY).requests[0].seed for _ in range(8)}
    assert len(seeds) == 8


def test_a_chat_that_says_no_length_takes_what_room_there_is():
    (request,) = chat_of(HI, Policy(answer_tokens=77)).requests
    assert (request.max_tokens, request.fit) == (77, True)
    (request,) = chat_of(HI | {"max_tokens": 9}, LIBRARY).requests
    assert (request.max_tokens, request.fit) == (9, False)


def test_what_a_stream_is_to_tell_is_told_apart_from_what_is_asked():
    options = {"include_usage": True, "drafts": True, "include_obfuscation": False}
    more = {"stream": True, "stream_options": options, "model": "m", "request_id": "mine"}
    generation = chat_of(HI | more | {"include_reasoning": False}, LIBRARY)
    assert (generation.stream, generation.usage, generation.drafts) == (True, True, True)
    assert (generation.model, generation.id, generation.reasoning) == ("m", "mine", False)
    plain = chat_of(HI, LIBRARY)
    assert (plain.stream, plain.usage, plain.drafts, plain.reasoning) == (False, False, False, True)


@pytest.mark.parametrize(
    ("choice", "named"), [("auto", False), ("required", False), (TOOLS[0], True), (None, False)]
)
def test_a_certain_tool_is_remembered(choice, named):
    assert chat_of(HI | {"tools": TOOLS, "tool_choice": choice}, LIBRARY).named is named


def test_all_tools_are_told_of_where_some_may_be_called():
    allowed = {"mode": "auto", "tools": TOOLS[:1]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    (request,) = chat_of(HI | {"tools": TOOLS, "tool_choice": choice}, LIBRARY).requests
    assert request.tools == TOOLS
    assert isinstance(request.constraint, Tools)
    assert list(request.constraint.parameters) == ["find"]


def test_stops_and_temperature_are_those_of_the_request():
    body = HI | {"stop": "END", "stop_token_ids": [7], "temperature": 0}
    (request,) = chat_of(body, LIBRARY).requests
    assert (request.stop, request.stop_token_ids, request.temperature) == (["END"], [7], 0.0)
    (request,) = chat_of(HI | {"stop": ["a", "b"]}, LIBRARY).requests
    assert request.stop == ["a", "b"]


@pytest.mark.parametrize(
    ("prompt", "requests"),
    [
        ("Hi.", [("Hi.", None)]),
        (["Hi.", "Ho."], [("Hi.", None), ("Ho.", None)]),
        ([5, 6], [(None, [5, 6])]),
        ([[5, 6], "Ho."], [(None, [5, 6]), ("Ho.", None)]),
    ],
)
def test_a_completion_continues_texts_or_tokens_as_they_are(prompt, requests):
    generation = completion_of({"prompt": prompt, "n": 2}, LIBRARY)
    expected = [one for one in requests for _ in range(2)]
    assert [(r.text, r.token_ids) for r in generation.requests] == expected
    assert {r.max_tokens for r in generation.requests} == {16}
    assert len({r.seed for r in generation.requests}) == len(expected)


def test_labels_and_values_that_ask_for_nothing_are_taken():
    neutral = {
        "top_p": 1.0,
        "top_k": 0,
        "min_p": 0,
        "frequency_penalty": 0.0,
        "presence_penalty": 0,
        "repetition_penalty": 1,
        "logit_bias": {},
        "logprobs": False,
        "top_logprobs": None,
        "min_tokens": 0,
        "ignore_eos": False,
        "skip_special_tokens": True,
        "service_tier": "flex",
        "store": True,
        "verbosity": "low",
        "prompt_cache_options": {"ttl": "1h"},
        "parallel_tool_calls": False,
        "tools": [],
        "grammar": "",
        "stop": None,
        "modalities": ["text"],
        "n": 1,
    }
    body = HI | neutral | dict.fromkeys(LABELS, "x") | {"seed": 1}
    assert chat_of(body, LIBRARY) == chat_of(HI | {"seed": 1}, LIBRARY)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"top_p": 0}, r"top_p is 0: it takes more than 0, up to 1"),
        ({"top_p": "0.9"}, r"top_p is '0\.9': it takes more than 0, up to 1"),
        ({"top_k": -2}, "top_k is -2: it takes 1 or more tokens, or 0 or -1 for all"),
        ({"top_k": 0.5}, r"top_k is 0\.5: it takes a whole number"),
        ({"min_p": 1.5}, r"min_p is 1\.5: it takes 0 to 1"),
        ({"min_p": True}, "min_p is true"),
        (
            {"frequency_penalty": 0.5},
            r"frequency_penalty is 0\.5, which is not supported: sampling",
        ),
        ({"presence_penalty": -1}, "presence_penalty is"),
        ({"repetition_penalty": 1.1}, "repetition_penalty is"),
        ({"logit_bias": {"50": 1}}, "logit_bias is an object of 50"),
        ({"logprobs": True}, "logprobs is true, which is not supported: a canvas is denoised"),
        ({"logprobs": 0}, "logprobs is 0"),
        ({"top_logprobs": 3}, "top_logprobs is 3"),
        ({"min_tokens": 5}, "min_tokens is 5"),
        ({"ignore_eos": True}, "ignore_eos is true"),
        ({"skip_special_tokens": False}, "skip_special_tokens is false"),
        ({"echo": True}, "echo is true"),
        ({"best_of": 4}, "best_of is 4, which is not supported: use n"),
        ({"cache_salt": "x"}, "cache_salt is 'x'"),
        ({"continue_final_message": True}, "continue_final_message is true"),
        ({"guided_json": {}}, "guided_json is not supported: use structured_outputs.json$"),
        ({"functions": []}, "functions is not supported: use tools"),
        ({"temprature": 0}, "temprature is unknown here: leave it out, or send temperature if tha"),
        ({"colour": 0}, "colour is unknown here: leave it out$"),
        ({"max_output_tokens": 9}, "max_output_tokens is .*: send max_completion_tokens or max_t"),
        ({"max_completion_tokens": 0}, "max_completion_tokens is 0: it takes at least 1"),
        ({"max_tokens": -2}, "max_tokens is -2: it takes at least 1"),
        ({"max_completion_tokens": 10**9}, "max_completion_tokens is 10.*, and up to 131072 are"),
        ({"verbosity": "loud"}, "verbosity is 'loud'"),
        ({"service_tier": 3}, "service_tier is 3"),
        ({"prompt": "a"}, "prompt is unknown here"),
        ({"temperature": "hot"}, "temperature is 'hot': it takes 0 to 2"),
        ({"temperature": 2.5}, r"temperature is 2\.5: it takes 0 to 2"),
        ({"temperature": True}, "temperature is true: it takes 0 to 2"),
        ({"n": 0}, "n is 0: it takes 1 to 16 answers"),
        ({"n": 17}, "n is 17: it takes 1 to 16 answers"),
        ({"n": "2"}, "n is '2': it takes a whole number"),
        ({"stream": 1}, "stream is 1: it takes true or false"),
        ({"stream_options": {}}, "stream_options is given without stream"),
        ({"stream": True, "stream_options": {"usage": True}}, "stream_options.usage is unknown"),
        (
            {"stream": True, "stream_options": {"include_usage": "yes"}},
            "stream_options.include_usage is 'yes': it takes true or false",
        ),
        ({"stop": [""]}, "stop holds an empty text"),
        ({"stop": 3}, "stop is 3: it takes a text or a list of texts"),
        ({"stop_token_ids": [True]}, r"stop_token_ids\[0\] is true: it takes a token id"),
        ({"messages": None}, "^messages is missing: it takes a list of messages"),
        ({"stop_token_ids": "a"}, "stop_token_ids is 'a': it takes a list of token ids"),
        ({"max_tokens": 200_000}, "max_tokens is 200000, and up to 131072 are served here"),
        ({"model": 3}, "model is 3: it takes the name of a model"),
        ({"request_id": ""}, "request_id is '': it takes 1 to 128 letters"),
        ({"request_id": "\ud800"}, "request_id is .*: it takes 1 to 128 letters"),
        ({"include_reasoning": "no"}, "include_reasoning is 'no': it takes true or false"),
        ({"thinking_token_budget": -1}, "thinking_token_budget is -1: it takes 0 or more"),
        ({"chat_template_kwargs": {"x": 1}}, "chat_template_kwargs.x is unknown: it takes enable_"),
        ({"chat_template": "{{ x }}"}, "chat_template is .*, which is not supported"),
    ],
)
def test_a_field_that_would_be_lost_is_refused_by_name(fields, problem):
    with pytest.raises(RequestError, match=problem):
        chat_of(HI | fields, LIBRARY)


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({}, "prompt is missing: it takes text that is not blank, or"),
        ({"prompt": ""}, "prompt is '': it takes text that is not blank, or token ids"),
        ({"prompt": " "}, "prompt is ' ': it takes text that is not blank, or token ids"),
        ({"prompt": ["a", "\n"]}, r"prompt\[1\] is .*: it takes text that is not blank"),
        ({"prompt": [1, "a"]}, r"prompt\[1\] is 'a': it takes a token id"),
        ({"prompt": [1, True]}, r"prompt\[1\] is true: it takes a token id"),
        ({"prompt": [[1], [2, 0.5]]}, r"prompt\[1\]\[1\] is 0\.5: it takes a token id"),
        ({"prompt": []}, "prompt is an empty list"),
        ({"prompt": ["a", 3]}, r"prompt\[1\] is 3: it takes text that is not blank, or"),
        (
            {"prompt": ["a"] * 9, "n": 2},
            "prompt holds 9 prompts of 2 answers each: it takes",
        ),
        ({"prompt": "a", "messages": []}, "messages is unknown here"),
        ({"prompt": "a", "tools": TOOLS}, "tools is unknown here"),
        ({"prompt": "a", "logprobs": 5}, "logprobs is 5"),
        ({"prompt": "a", "suffix": "b"}, "suffix is 'b'"),
    ],
)
def test_a_completion_that_makes_no_sense_says_what_would(body, problem):
    with pytest.raises(RequestError, match=problem):
        completion_of(body, LIBRARY)


def thinking_of(body):
    request = request_of({"prompt": "hi", **body}, LIBRARY)
    return request.thinking, request.thinking_budget


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, (False, None)),
        ({"reasoning_effort": "none"}, (False, None)),
        ({"reasoning_effort": "minimal"}, (True, 64)),
        ({"reasoning_effort": "xhigh"}, (True, 16_384)),
        ({"thinking_token_budget": 300}, (True, 300)),
        ({"thinking_token_budget": 0}, (False, None)),
        ({"reasoning_effort": "high", "thinking_token_budget": 300}, (True, 300)),
        ({"chat_template_kwargs": {"enable_thinking": True}}, (True, None)),
        (
            {"chat_template_kwargs": {"enable_thinking": True}, "thinking_token_budget": 0},
            (False, None),
        ),
        (
            {"chat_template_kwargs": {"enable_thinking": False}, "reasoning_effort": "low"},
            (False, None),
        ),
        (
            {"chat_template_kwargs": {"enable_thinking": True}, "reasoning_effort": "low"},
            (True, 256),
        ),
    ],
)
def test_who_thinks_and_for_how_long(body, expected):
    assert thinking_of(body) == expected


def test_more_effort_is_more_thinking():
    budgets = [thinking_of({"reasoning_effort": effort})[1] or 0 for effort in EFFORT]
    assert budgets == sorted(budgets)
    assert len(set(budgets)) == len(EFFORT)


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_minus_one_token_is_as_many_as_an_answer_may_have_by_default(field):
    policy = Policy(answer_tokens=77)
    (request,) = chat_of(HI | {field: -1}, policy).requests
    assert (request.max_tokens, request.fit) == (77, True)
    both = HI | {"max_tokens": -1, "max_completion_tokens": 9}
    assert chat_of(both, policy).requests[0].max_tokens == 9
    assert request_of(HI | {field: -1}, policy) == request_of(HI, policy)


def test_a_completion_of_minus_one_token_is_not_cut_at_sixteen():
    (request,) = completion_of({"prompt": "a", "max_tokens": -1}, Policy(answer_tokens=77)).requests
    assert (request.max_tokens, request.fit) == (77, True)


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_an_error_about_the_length_names_the_field_that_the_client_sent(field):
    generation = chat_of(HI | {field: 9}, LIBRARY)
    error = RequestError("5 prompt tokens leave 3, fewer than max_tokens 9", field="max_tokens")
    mended = generation.error(error)
    assert (mended.field, str(mended)) == (field, f"5 prompt tokens leave 3, fewer than {field} 9")
    other = RequestError("a b", field="messages")
    assert generation.error(other) is other


def test_a_budget_and_a_switch_go_before_the_most_effort():
    assert thinking_of({"reasoning_effort": "max"}) == (True, 65_536)
    assert thinking_of({"reasoning_effort": "max", "thinking_token_budget": 9}) == (True, 9)
    assert thinking_of({"reasoning_effort": "max", "thinking_token_budget": 0}) == (False, None)
    off = {"reasoning_effort": "max", "chat_template_kwargs": {"enable_thinking": False}}
    assert thinking_of(off) == (False, None)


def test_usage_that_is_wanted_in_every_chunk_is_told_in_the_last():
    options = {"include_usage": True, "continuous_usage_stats": True}
    assert chat_of(HI | {"stream": True, "stream_options": options}, LIBRARY).usage


def test_stops_are_taken_beside_tools_and_formats():
    stops = {"stop": ["\nObservation:"], "stop_token_ids": [7]}
    formats = {"response_format": {"type": "json_object"}}
    for more in ({"tools": TOOLS}, formats, {"tools": TOOLS, **formats}):
        (request,) = chat_of(HI | stops | more, LIBRARY).requests
        assert (request.stop, request.stop_token_ids) == (["\nObservation:"], [7])
