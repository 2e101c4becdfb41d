"""Fields of bodies beside the constraint, and the messages of a 400 for wrong ones."""

import pytest

from dlm import Request, RequestError, Tools
from dlm.openai.decisions import decision_body_of
from dlm.openai.messages import EFFORT
from dlm.openai.other_fields import ACCEPTED
from dlm.openai.requests import chat_of, completion_of, request_of
from dlm.openai.tokenizing import tokenize_body_of
from dlm.policy import Policy

LIBRARY = Policy()
TOOLS = [{"type": "function", "function": {"name": name}} for name in ("find", "book")]
HI = {"messages": [{"role": "user", "content": "hi"}]}
SWITCHED_ON, SWITCHED_OFF = (
    {"chat_template_kwargs": {"enable_thinking": switch}} for switch in (True, False)
)


def test_a_request_has_all_fields_of_its_body():
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


def test_fields_that_a_body_leaves_out_keep_their_defaults():
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
        ({"messages": []}, "messages must be a list that is not empty, got an empty list"),
        ({"messages": ["hi"]}, r"messages\[0\] must be an object, got 'hi'"),
        ({"messages": None, "prompt": ["a"]}, r"prompt\[0\] must be a token id, got 'a'"),
        ({"messages": None, "prompt": " "}, "prompt must be text that is not blank, or.*, got ' '"),
        ({"max_tokens": "9"}, "max_tokens must be a whole number, got '9'"),
        ({"max_tokens": True}, "max_tokens must be a whole number, got true"),
        ({"max_tokens": 0}, "max_tokens must be at least 1, got 0"),
        ({"max_tokens": 8, "max_completion_tokens": 9}, "max_completion_tokens is 9 and max_tok"),
        ({"seed": 0.5}, r"seed must be a whole number, got 0\.5"),
        ({"reasoning_effort": "huge"}, "reasoning_effort must be none, minimal, low.*, got 'huge'"),
        ({"reasoning_effort": ["low"]}, "reasoning_effort must be none.*, got a list"),
    ],
)
def test_the_error_of_a_wrong_request_says_what_would_be_right(fields, problem):
    with pytest.raises(RequestError, match=problem):
        request_of(HI | fields, LIBRARY)


def test_each_of_n_answers_has_the_next_seed():
    generation = chat_of(HI | {"n": 3, "seed": 7}, LIBRARY)
    assert [request.seed for request in generation.requests] == [7, 8, 9]
    assert {request.messages[0]["content"] for request in generation.requests} == {"hi"}
    for seed in (2**63 - 1, -1, -(2**90)):
        last = chat_of(HI | {"n": 2, "seed": seed}, LIBRARY)
        assert [request.seed for request in last.requests] == [seed, seed + 1]


def test_without_a_seed_every_body_gets_a_random_one():
    seeds = {chat_of(HI, LIBRARY).requests[0].seed for _ in range(8)}
    assert len(seeds) == 8


def test_a_chat_without_a_length_may_use_the_policy_s_default():
    (request,) = chat_of(HI, Policy(answer_tokens=77)).requests
    assert (request.max_tokens, request.fit) == (77, True)
    (request,) = chat_of(HI | {"max_tokens": 9}, LIBRARY).requests
    assert (request.max_tokens, request.fit) == (9, False)


def test_options_of_a_stream_are_kept_beside_the_request():
    options = {"include_usage": True, "drafts": True, "include_obfuscation": False}
    more = {"stream": True, "stream_options": options, "model": "m", "request_id": "mine"}
    generation = chat_of(HI | more | {"include_reasoning": False}, LIBRARY)
    assert (generation.stream, generation.usage, generation.drafts) == (True, True, True)
    assert (generation.model, generation.id, generation.reasoning) == ("m", "mine", False)
    options = {"include_usage": True, "continuous_usage_stats": True}
    assert chat_of(HI | {"stream": True, "stream_options": options}, LIBRARY).usage
    plain = chat_of(HI, LIBRARY)
    assert (plain.stream, plain.usage, plain.drafts, plain.reasoning) == (False, False, False, True)


@pytest.mark.parametrize(
    ("choice", "named"), [("auto", False), ("required", False), (TOOLS[0], True), (None, False)]
)
def test_a_choice_of_one_tool_is_noted(choice, named):
    assert chat_of(HI | {"tools": TOOLS, "tool_choice": choice}, LIBRARY).named is named


def test_the_prompt_has_all_tools_though_only_some_may_be_called():
    allowed = {"mode": "auto", "tools": TOOLS[:1]}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    (request,) = chat_of(HI | {"tools": TOOLS, "tool_choice": choice}, LIBRARY).requests
    assert request.tools == TOOLS
    assert isinstance(request.constraint, Tools)
    assert list(request.constraint.parameters) == ["find"]


def test_stops_and_temperature_become_those_of_the_request():
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


def test_fields_without_an_effect_and_neutral_values_are_accepted():
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
        "options": {},
        "typical_p": 1,
        "think": False,
    }
    body = HI | neutral | dict.fromkeys(ACCEPTED, "x") | {"seed": 1}
    assert chat_of(body, LIBRARY) == chat_of(HI | {"seed": 1}, LIBRARY)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"top_p": 0}, r"top_p must be more than 0, up to 1, got 0"),
        ({"top_p": "0.9"}, r"top_p must be more than 0, up to 1, got '0\.9'"),
        ({"top_k": -2}, "top_k must be at least 1, or 0 or -1 for all tokens, got -2"),
        ({"top_k": 0.5}, r"top_k must be a whole number, got 0\.5"),
        ({"min_p": 1.5}, r"min_p must be 0 to 1, got 1\.5"),
        ({"min_p": True}, "min_p must be 0 to 1, got true"),
        (
            {"frequency_penalty": 0.5},
            r"frequency_penalty is 0\.5, which is not supported: sampling",
        ),
        ({"presence_penalty": -1}, "presence_penalty is"),
        ({"repetition_penalty": 1.1}, "repetition_penalty is"),
        ({"repeat_penalty": 1.1}, "repeat_penalty is"),
        ({"mirostat": 2}, "mirostat is 2"),
        ({"typical_p": 0.5}, r"typical_p is 0\.5"),
        ({"options": {"num_ctx": 9}}, "options is an object of num_ctx.*: send the fields that it"),
        ({"think": True}, "think is not supported: send reasoning_effort"),
        ({"logit_bias": {"50": 1}}, "logit_bias is an object of 50"),
        ({"logprobs": 0}, "logprobs must be true or false, got 0"),
        ({"top_logprobs": 3}, "top_logprobs must have logprobs beside it"),
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
        ({"max_completion_tokens": 0}, "max_completion_tokens must be at least 1, got 0"),
        ({"max_tokens": -2}, "max_tokens must be at least 1, got -2"),
        (
            {"max_completion_tokens": 10**9},
            "max_completion_tokens must be at most 131072 here, got 10",
        ),
        ({"verbosity": "loud"}, "verbosity is 'loud'"),
        ({"service_tier": 3}, "service_tier is 3"),
        ({"prompt": "a"}, "prompt is unknown here"),
        ({"temperature": "hot"}, "temperature must be 0 to 2, got 'hot'"),
        ({"temperature": 2.5}, r"temperature must be 0 to 2, got 2\.5"),
        ({"temperature": True}, "temperature must be 0 to 2, got true"),
        ({"n": 0}, "n must be 1 to 16, got 0"),
        ({"n": 17}, "n must be 1 to 16, got 17"),
        ({"n": "2"}, "n must be a whole number, got '2'"),
        ({"stream": 1}, "stream must be true or false, got 1"),
        ({"stream_options": {}}, "stream_options is given without stream"),
        ({"stream": True, "stream_options": {"usage": True}}, "stream_options.usage is unknown"),
        (
            {"stream": True, "stream_options": {"include_usage": "yes"}},
            "stream_options.include_usage must be true or false, got 'yes'",
        ),
        ({"stop": [""]}, "stop must not have an empty text"),
        ({"stop": 3}, "stop must be a text or a list of texts, got 3"),
        ({"stop_token_ids": [True]}, r"stop_token_ids\[0\] must be a token id, got true"),
        ({"messages": None}, "^messages is missing; it must be a list of messages"),
        ({"stop_token_ids": "a"}, "stop_token_ids must be a list of token ids, got 'a'"),
        ({"max_tokens": 200_000}, "max_tokens must be at most 131072 here, got 200000"),
        ({"model": 3}, "model must be the name of a model, got 3"),
        ({"request_id": ""}, "request_id must be 1 to 128 letters.*, got ''"),
        ({"request_id": "\ud800"}, "request_id must be 1 to 128 letters.*, got .*"),
        ({"include_reasoning": "no"}, "include_reasoning must be true or false, got 'no'"),
        ({"thinking_token_budget": -1}, "thinking_token_budget must be 0 or more.*, got -1"),
        (
            {"chat_template_kwargs": {"x": 1}},
            "chat_template_kwargs.x is unknown here; the fields are",
        ),
        ({"chat_template": "{{ x }}"}, "chat_template is .*, which is not supported"),
    ],
)
def test_a_field_that_is_not_supported_is_refused_by_name(fields, problem):
    with pytest.raises(RequestError, match=problem):
        chat_of(HI | fields, LIBRARY)


@pytest.mark.parametrize(
    "fields",
    [
        {"input": "a", "questions": [{"type": "predicate"}]},
        {"prompt": "a"},
        {"messages": [{"role": "user", "content": "a"}]},
    ],
)
@pytest.mark.parametrize("name", ["json_schema", "guided_json", "num_predict"])
def test_no_error_sends_a_client_to_a_field_that_its_body_does_not_have(fields, name):
    read = decision_body_of if "questions" in fields else tokenize_body_of
    read(fields)
    with pytest.raises(RequestError, match=f"^{name} is unknown here: leave it out$"):
        read(fields | {name: {}})


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ({}, "prompt is missing; it must be text that is not blank, or"),
        ({"prompt": ""}, "prompt must be text that is not blank, or token ids, got ''"),
        ({"prompt": " "}, "prompt must be text that is not blank, or token ids, got ' '"),
        ({"prompt": ["a", "\n"]}, r"prompt\[1\] must be text that is not blank.*, got .*"),
        ({"prompt": [1, "a"]}, r"prompt\[1\] must be a token id, got 'a'"),
        ({"prompt": [1, True]}, r"prompt\[1\] must be a token id, got true"),
        ({"prompt": [[1], [2, 0.5]]}, r"prompt\[1\]\[1\] must be a token id, got 0\.5"),
        ({"prompt": []}, "prompt must be a list that is not empty, got an empty list"),
        ({"prompt": ["a", 3]}, r"prompt\[1\] must be text that is not blank, or.*, got 3"),
        (
            {"prompt": ["a"] * 9, "n": 2},
            "prompt must have 1 to 16 answers together, got 9 prompts of 2 answers each",
        ),
        ({"prompt": "a", "messages": []}, "messages is unknown here"),
        ({"prompt": "a", "tools": TOOLS}, "tools is unknown here"),
        ({"prompt": "a", "prompt_logprobs": 5}, "prompt_logprobs is 5"),
        ({"prompt": "a", "suffix": "b"}, "suffix is 'b'"),
        ({"prompt": "a", "think": True}, "think is not supported: a completion has no reasoning"),
        ({"prompt": "a", "functions": TOOLS}, "a completion calls no tools; a chat does$"),
        ({"prompt": "a", "num_predict": 9}, "num_predict is not supported: send max_tokens$"),
    ],
)
def test_the_error_of_a_wrong_completion_says_what_would_be_right(body, problem):
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
        ({"reasoning_effort": "max"}, (True, 65_536)),
        ({"reasoning_effort": "max", "thinking_token_budget": 9}, (True, 9)),
        ({"reasoning_effort": "max", "thinking_token_budget": 0}, (False, None)),
        ({"thinking_token_budget": 300}, (True, 300)),
        ({"thinking_token_budget": 0}, (False, None)),
        ({"reasoning_effort": "high", "thinking_token_budget": 300}, (True, 300)),
        (SWITCHED_ON, (True, None)),
        (SWITCHED_ON | {"thinking_token_budget": 0}, (False, None)),
        (SWITCHED_OFF | {"reasoning_effort": "low"}, (False, None)),
        (SWITCHED_OFF | {"reasoning_effort": "max"}, (False, None)),
        (SWITCHED_ON | {"reasoning_effort": "low"}, (True, 256)),
    ],
)
def test_effort_and_budget_decide_whether_and_how_long_the_model_thinks(body, expected):
    assert thinking_of(body) == expected


def test_more_effort_is_more_thinking():
    budgets = [thinking_of({"reasoning_effort": effort})[1] or 0 for effort in EFFORT]
    assert budgets == sorted(budgets)
    assert len(set(budgets)) == len(EFFORT)


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_minus_one_token_is_the_policy_s_default(field):
    policy = Policy(answer_tokens=77)
    (request,) = chat_of(HI | {field: -1}, policy).requests
    assert (request.max_tokens, request.fit) == (77, True)
    both = HI | {"max_tokens": -1, "max_completion_tokens": 9}
    assert chat_of(both, policy).requests[0].max_tokens == 9
    assert request_of(HI | {field: -1}, policy) == request_of(HI, policy)
    (request,) = completion_of({"prompt": "a", "max_tokens": -1}, policy).requests
    assert (request.max_tokens, request.fit) == (77, True)


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_an_error_about_the_length_names_the_field_that_the_client_sent(field):
    generation = chat_of(HI | {field: 9}, LIBRARY)
    error = RequestError("5 prompt tokens leave 3, fewer than max_tokens 9", field="max_tokens")
    mended = generation.error(error)
    assert (mended.field, str(mended)) == (field, f"5 prompt tokens leave 3, fewer than {field} 9")
    other = RequestError("a b", field="messages")
    assert generation.error(other) is other


def test_stops_may_be_combined_with_tools_and_formats():
    stops = {"stop": ["\nObservation:"], "stop_token_ids": [7]}
    formats = {"response_format": {"type": "json_object"}}
    for more in ({"tools": TOOLS}, formats, {"tools": TOOLS, **formats}):
        (request,) = chat_of(HI | stops | more, LIBRARY).requests
        assert (request.stop, request.stop_token_ids) == (["\nObservation:"], [7])
