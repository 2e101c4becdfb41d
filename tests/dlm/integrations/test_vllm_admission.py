"""Admission of constrained requests in vLLM's front end, with doubles of its parameters."""

import pickle
from types import SimpleNamespace

import pytest
from values import V
from vllm_configs import DATA
from vllm_params import Outputs, Params, tools_text

from dlm.errors import DlmError, RequestError
from dlm.grammar import BudgetError, Vocabulary
from dlm.integrations.vllm.admission import FrontEndAdmission, vocabulary_of
from dlm.integrations.vllm.own import NEMOTRON
from dlm.integrations.vllm.payload import KEY, TOOLS, Payload
from dlm.integrations.vllm.requested import Requested, check_options, has_constraint
from dlm.integrations.vllm.scheduler import has_failed
from dlm.policy import Policy

POLICY = Policy.server(allow_client_grammars=True)


def spec_of(params, policy, form="gemma4"):
    return Requested(params).spec(policy, form)


STOPS = (1, 106, 50)


@pytest.fixture(scope="module")
def admission(chat):
    vocabulary = Vocabulary.from_tokenizer(chat.tokenizer, V, STOPS, 0)
    made = FrontEndAdmission(vocabulary, chat.tokenizer, POLICY)
    yield made
    made.close()


def admitted(admission, params, prompt=(2, 5), most=1024):
    spec, thinking = spec_of(params, POLICY), Requested(params).thinking
    compiled = admission.compile(spec).result()
    return admission.admit(compiled, spec, params, list(prompt), most, thinking)


def test_every_kind_of_structured_output_is_a_spec():
    for outputs, kind in (
        (Outputs(json={"type": "string"}), "JSON schema"),
        (Outputs(json='{"type": "string"}'), "JSON schema"),
        (Outputs(regex="a+"), "regex"),
        (Outputs(choice=["a", "b"]), "choice"),
        (Outputs(grammar='root ::= "a"'), "grammar"),
        (Outputs(json_object=True), "JSON object"),
    ):
        spec = spec_of(Params(outputs), POLICY)
        assert spec is not None
        assert spec.kind.lower().replace("_", " ") == kind.lower()
    assert spec_of(Params(), POLICY) is None


def test_tools_are_a_spec_unless_none_may_be_called():
    for choice in ("auto", "required", {"type": "function", "function": {"name": "book"}}):
        spec = spec_of(Params(extra_args=tools_text(tool_choice=choice)), POLICY)
        assert spec is not None
        assert spec.calls
    assert spec_of(Params(extra_args=tools_text(tool_choice="none")), POLICY) is None


def test_only_constraints_and_tools_constrain_a_request():
    assert has_constraint(Params(extra_args=tools_text()))
    assert has_constraint(Params(Outputs(regex="a"), extra_args={"diffusion_max_steps": 3}))
    assert not has_constraint(Params())
    assert not has_constraint(Params(extra_args={"other": 1}, stop=["x"], ignore_eos=True))


@pytest.mark.parametrize(
    ("params", "problem"),
    [
        (Params(Outputs(regex="a"), ignore_eos=True), "ignore_eos"),
        (Params(Outputs(regex="a"), stop=["x"]), "stop beside"),
        (Params(Outputs(regex="a"), stop_token_ids=[7]), "stop_token_ids"),
        (Params(Outputs(regex="a"), prompt_logprobs=0), "prompt_logprobs"),
        (
            Params(Outputs(regex="a"), extra_args={"diffusion_seed_canvas": [1]}),
            "diffusion_seed_canvas",
        ),
    ],
)
def test_options_that_a_constraint_does_not_allow_are_refused(params, problem):
    with pytest.raises(RequestError, match=problem):
        check_options(params)


class Texts(str):
    __slots__ = ()


FORGED = ("x", "", 7, True, 1.5, [], ["x"], {}, {"rules": "x"}, {"rules": {"rules": [1]}}, None)


@pytest.mark.parametrize("name", [KEY, TOOLS, "dlm_", "dlm_other"])
@pytest.mark.parametrize("value", [*FORGED, Texts("{}"), DATA])
def test_a_client_may_send_no_name_of_the_plugin_with_any_value(name, value):
    for outputs in (None, Outputs(regex="a")):
        with pytest.raises(RequestError, match="is not a client's to send"):
            has_constraint(Params(outputs, extra_args={"other": 1, name: value}))


@pytest.mark.parametrize(
    "extra_args",
    [
        None,
        "dlm",
        ["dlm"],
        {},
        *({KEY: value} for value in FORGED),
        *({KEY: DATA | {name: Texts("x")}} for name in DATA),
        {KEY: DATA | {"rules": "rules"}},
        {KEY: DATA | {"failed": True}},
        {KEY: DATA | {"more": 1}},
        {KEY: {name: DATA[name] for name in (*DATA,)[1:]}},
    ],
)
def test_a_value_of_another_form_is_no_payload_and_no_error(extra_args):
    assert Payload.of({KEY: DATA}) is not None
    assert Payload.of(extra_args) is None


SET = {"type": "function", "name": "set", "parameters": {"type": "object"}, "strict": True}


def spec_of_response(**fields):
    return spec_of(Params(extra_args=tools_text(responses=True, **fields)), POLICY)


def test_tools_of_responses_are_those_in_the_prompt():
    light = {"type": "namespace", "name": "light", "tools": [SET]}
    note = {"type": "custom", "name": "note", "description": "Writes."}
    spec = spec_of_response(tools=[SET, light, note, {"type": "web_search"}])
    assert [*spec.parameters] == ["set", "light__set", "note"]
    first = {"name": "set", "parameters": {"type": "object"}, "strict": True}
    assert spec.tools[0]["function"] == first
    assert spec.parameters["note"]["required"] == ["input"]
    assert spec.calls
    assert spec_of_response(tools=[{"type": "web_search"}]) is None


@pytest.mark.parametrize(
    ("choice", "mode", "named", "offered"),
    [
        ("required", "required", None, ["set", "get"]),
        ({"type": "function", "name": "set"}, "required", "set", ["set", "get"]),
        ({"type": "custom", "name": "set"}, "required", "set", ["set", "get"]),
        (
            {
                "type": "allowed_tools",
                "mode": "auto",
                "tools": [{"type": "function", "name": "set"}],
            },
            "auto",
            None,
            ["set"],
        ),
    ],
)
def test_tool_choices_of_responses_have_the_meaning_of_those_of_chat(choice, mode, named, offered):
    spec = spec_of_response(tools=[SET, {**SET, "name": "get"}], tool_choice=choice)
    assert (spec.choice, spec.named, [*spec.parameters]) == (mode, named, offered)
    assert spec.calls


def test_an_unsupported_tool_choice_is_refused():
    with pytest.raises(RequestError, match="tool_choice"):
        spec_of_response(tools=[SET], tool_choice={"type": "web_search"})


def test_an_admitted_request_carries_its_rules_as_plain_data(admission, chat):
    prompt = chat.tokenizer.encode("<|turn>model\n", add_special_tokens=False)
    found = admitted(admission, Params(Outputs(regex="[a-f]{3}"), top_k=5), prompt)
    assert found.suffix == chat.no_thought_after(prompt) != []
    payload = Payload.of({"dlm": pickle.loads(pickle.dumps(found.payload.data()))})
    assert payload == found.payload
    assert payload.top_k == 5
    assert not payload.thinking


def test_a_prompt_with_thinking_is_not_changed(admission, chat):
    think = chat.tokenizer.get_vocab()["<|think|>"]
    prompt = [think, *chat.tokenizer.encode("<|turn>model\n", add_special_tokens=False)]
    params = Params(Outputs(regex="[a-f]{3}"), thinking_token_budget=20)
    found = admitted(admission, params, prompt)
    assert found.suffix == []
    assert found.payload.thinking
    assert found.payload.thinking_budget == 20


def test_max_tokens_that_no_answer_fits_are_refused(admission):
    params = Params(Outputs(regex="[a-f]{9}"), max_tokens=2)
    with pytest.raises(BudgetError, match="more than 2"):
        admitted(admission, params)
    with pytest.raises(BudgetError):
        admitted(admission, Params(Outputs(regex="[a-f]{9}"), max_tokens=None), most=4)
    with pytest.raises(RequestError, match="no room"):
        admitted(admission, Params(Outputs(regex="a")), most=2)


def test_only_the_token_of_a_failure_is_a_failure(admission):
    payload = admitted(admission, Params(Outputs(regex="[a-f]{3}"))).payload
    bound = SimpleNamespace(sampling_params=Params(extra_args={"dlm": payload.data()}))
    free = SimpleNamespace(sampling_params=Params())
    pooled = SimpleNamespace(sampling_params=None)
    assert has_failed(bound, [payload.failed] * 4)
    assert not has_failed(bound, [700, payload.failed])
    assert not has_failed(bound, [])
    assert not has_failed(free, [payload.failed])
    assert not has_failed(pooled, [payload.failed])


def test_a_vocabulary_needs_stop_tokens_and_a_padding_token(chat):
    def config(**settings):
        return SimpleNamespace(try_get_generation_config=lambda: settings, get_vocab_size=lambda: V)

    assert vocabulary_of(config(eos_token_id=[1, 106]), chat.tokenizer).stops == (1, 106)
    with pytest.raises(DlmError, match="no eos_token_id"):
        vocabulary_of(config(eos_token_id=None), chat.tokenizer)
    with pytest.raises(DlmError, match="pad token"):
        vocabulary_of(config(eos_token_id=0), chat.tokenizer)


def masked_config(mask=3):
    return SimpleNamespace(
        try_get_generation_config=lambda: {"eos_token_id": 1},
        get_vocab_size=lambda: V,
        hf_config=SimpleNamespace(mask_token_id=mask),
    )


def test_masks_are_no_text_and_mark_no_answer(chat):
    """The tokenizer of Nemotron pads with its stop token, so the family's padding is taken."""
    vocabulary = vocabulary_of(masked_config(700), chat.tokenizer, NEMOTRON)
    assert 700 in vocabulary.control
    assert vocabulary.pad == NEMOTRON.pad
    plain = FrontEndAdmission(vocabulary, chat.tokenizer, POLICY)
    squeezed = admitted(plain, Params(Outputs(regex="a"))).payload.squeezed
    plain.close()
    for mask in squeezed:
        made = FrontEndAdmission(vocabulary, chat.tokenizer, POLICY, NEMOTRON, mask)
        assert mask not in admitted(made, Params(Outputs(regex="a"))).payload.squeezed
        made.close()


@pytest.mark.parametrize("mask", [None, "4", True, 1.5])
def test_a_config_without_a_mask_is_refused(chat, mask):
    with pytest.raises(DlmError, match="mask_token_id of the model's config"):
        vocabulary_of(masked_config(mask), chat.tokenizer, NEMOTRON)


@pytest.mark.parametrize("thinking", [None, True, False])
def test_a_masked_model_reasons_if_its_prompt_opens_that_or_the_client_asks_for_it(
    admission, chat, thinking
):
    vocabulary = vocabulary_of(masked_config(), chat.tokenizer, NEMOTRON)
    made = FrontEndAdmission(vocabulary, chat.tokenizer, POLICY, NEMOTRON, 3)
    extra_args = {} if thinking is None else tools_text(tools=[], thinking=thinking)
    params = Params(Outputs(regex="a"), extra_args=extra_args, thinking_token_budget=20)
    for text, opens in (
        ("Hello.", False),
        ("<think>x</think>", False),
        ("What does <think> mean?\nAssistant:", False),
        ("<think>\n", True),
        (" <think> \n", True),
        ("<think>x</think>y<think>", True),
    ):
        prompt = chat.tokenizer.encode(text, add_special_tokens=False)
        masked = admitted(made, params, prompt)
        reasons = opens or thinking is True
        budget = 20 if reasons else None
        if opens and thinking is False:
            budget = 0  # it is closed at once
        payload = masked.payload
        assert (payload.thinking, payload.opened) == (reasons, opens), text
        assert payload.thinking_budget == budget
        assert masked.suffix == []
        assert not admitted(admission, params, prompt).payload.thinking
    made.close()
