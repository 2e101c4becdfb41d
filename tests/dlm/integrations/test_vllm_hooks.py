"""Wrappers of the plugin around a double of vLLM: for its own model, and for every other one."""

import asyncio
import json
from types import SimpleNamespace

import pytest
import vllm_package
from vllm_configs import FORGED, OTHERS, config
from vllm_params import TOOL, Outputs, Params

import dlm.integrations.vllm as plugin
from dlm.integrations import plugins
from dlm.integrations.vllm import hooks, needs, own
from dlm.integrations.vllm.payload import KEY, TOOLS, Payload, ToolsText


@pytest.fixture
def vllm(monkeypatch):
    """The package with the plugin in it."""
    classes = vllm_package.installed(monkeypatch)
    classes.hooks = hooks.install()
    own.register([own.GEMMA])
    return classes


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("value", FORGED)
def test_arguments_for_another_model_reach_vllm_as_they_are(vllm, other, value):
    processor = vllm.InputProcessor(other, tokenizer=object())
    params = Params(
        Outputs(regex="a"), extra_args={KEY: value, TOOLS: value}, seed=3, ignore_eos=True
    )
    before = vars(params).copy()
    processor.process_inputs("one", "a prompt", params, ("generate",), priority=2)
    assert processor.called == (("one", "a prompt", params, ("generate",)), {"priority": 2})
    engine = vllm.AsyncLLM(processor)
    asyncio.run(engine.add_request("one", {"type": "token", "prompt_token_ids": [1]}, params))
    assert engine.called[0][2] is params
    assert vars(params) == before
    processor.process_inputs(some="thing", of="a newer version")
    assert processor.called == ((), {"some": "thing", "of": "a newer version"})
    asyncio.run(engine.add_request(some="thing"))
    assert engine.called == ((), {"some": "thing"})


@pytest.mark.parametrize("other", OTHERS)
@pytest.mark.parametrize("value", FORGED)
def test_tools_and_bodies_for_another_model_stay_as_they_are(vllm, other, value):
    parser = vllm.DelegatingParser(
        "tokenizer", [TOOL], model_config=other.model_config, chat_template_kwargs=[1], more=1
    )
    body = vllm.ChatBody(tools=[TOOL], tool_choice="auto", vllm_xargs={KEY: value})
    assert parser.adjust_request(body) is body
    assert body.adjusted
    assert body.vllm_xargs == {KEY: value}
    body = vllm.ChatBody(tools=[TOOL], tool_choice="required")
    assert parser.adjust_request(body).structured_outputs.regex == "theirs"
    for read in (vllm.DelegatingParser().parse, vllm.DelegatingParser().parse_delta):
        for arguments in (("x", body, [1]), ("x", [1], body), ()):
            assert read(*arguments, more=1) == (arguments, {"more": 1})
    format = Outputs(json={})
    assert vllm.ChatBody(response_format=format).extract_structured_outputs() is format
    assert not hasattr(format, hooks.FIELD)


@pytest.fixture
def processor(vllm, chat):
    return vllm.InputProcessor(config(), chat.tokenizer)


SERVED = ("generate", own.TASK)


def test_a_constraint_for_the_own_model_becomes_a_payload(vllm, processor):
    request = processor.process_inputs(
        "one", "a prompt", Params(Outputs(regex="[a-f]"), seed=3), SERVED
    )
    params = request.sampling_params
    assert Payload.of(params.extra_args) is not None
    assert params.structured_outputs is None
    assert params.seed is None


@pytest.fixture
def masked(vllm):
    own.register([own.NEMOTRON])
    made = config(own.NEMOTRON.architecture)
    made.model_config.hf_config = SimpleNamespace(mask_token_id=4)
    return made


def test_a_model_of_masks_takes_its_guess(vllm, chat, masked):
    processor = vllm.InputProcessor(masked, chat.tokenizer)
    constrained = Params(Outputs(regex="[a-f]"), temperature=0.7, top_p=0.5)
    params = processor.process_inputs("one", "x", constrained, SERVED).sampling_params
    payload = Payload.of(params.extra_args)
    assert (params.temperature, params.top_p, payload.top_p) == (0.0, 1.0, 0.5)
    assert 4 not in payload.squeezed
    assert constrained.temperature == 0.7
    free = Params(temperature=0.7)
    assert processor.process_inputs("two", "x", free, SERVED).sampling_params is free
    assert free.temperature == 0.7


def test_a_request_without_a_constraint_is_not_changed(vllm, processor):
    params = Params(seed=3, extra_args={"other": 1})
    request = processor.process_inputs("one", "a prompt", params, SERVED)
    assert request.sampling_params is params
    assert params == Params(seed=3, extra_args={"other": 1})


@pytest.mark.parametrize("value", FORGED)
def test_a_forged_name_is_refused_for_the_own_model(vllm, processor, value):
    engine = vllm.AsyncLLM(processor, SERVED)
    prompt = {"type": "token", "prompt_token_ids": [2]}
    for name in (KEY, TOOLS, "dlm_more"):
        params = Params(extra_args={name: value})
        with pytest.raises(vllm.ValidationError, match="not a client's to send"):
            processor.process_inputs("one", "a prompt", params, SERVED)
        with pytest.raises(vllm.ValidationError, match="not a client's to send"):
            asyncio.run(engine.add_request("one", prompt, params))
        parser = vllm.DelegatingParser("tokenizer", None, model_config=config().model_config)
        for tools in (None, [TOOL]):
            body = vllm.ChatBody(tools=tools, vllm_xargs={name: value})
            with pytest.raises(vllm.ValidationError, match="not a client's to send"):
                parser.adjust_request(body)


def test_constraints_are_refused_if_the_worker_does_not_serve_them(vllm, processor):
    params = Params(Outputs(regex="a"))
    with pytest.raises(vllm.ValidationError, match="not served here: the check"):
        processor.process_inputs("one", "a prompt", params, ("generate",))
    engine = vllm.AsyncLLM(processor)
    prompt = {"type": "token", "prompt_token_ids": [2]}
    with pytest.raises(vllm.ValidationError, match="not served here: the check"):
        asyncio.run(engine.add_request("one", prompt, params))
    lax = Params(extra_args={TOOLS: ToolsText(json.dumps({"tools": [TOOL]}))})
    request = asyncio.run(engine.add_request("one", prompt, lax))
    assert request.sampling_params.extra_args is None


@pytest.fixture(params=["noise", "masks"])
def parser_of(request, vllm, masked):
    """Return a parser of one of the plugin's models."""
    served = {"noise": config(), "masks": masked}[request.param].model_config

    def made(**kwargs):
        return vllm.DelegatingParser("tokenizer", None, model_config=served, **kwargs)

    made.masked = served is masked.model_config
    return made


def test_tools_go_along_with_a_request_of_an_own_model(vllm, parser_of, monkeypatch):
    def adjusted(**fields):
        return parser_of().adjust_request(vllm.ChatBody(**fields))

    passed = adjusted(tools=[TOOL], tool_choice="auto", vllm_xargs={"other": 1})
    assert type(passed.vllm_xargs[TOOLS]) is ToolsText
    assert passed.vllm_xargs["other"] == 1
    assert json.loads(passed.vllm_xargs[TOOLS])["tools"] == [TOOL]
    assert passed.adjusted
    own_format = Outputs(json={})
    passed = adjusted(tools=[TOOL], tool_choice="required", response_format=own_format)
    assert (passed.structured_outputs, passed.response_format) == (None, own_format)
    assert adjusted(tools=[TOOL], tool_choice="none").vllm_xargs is None
    monkeypatch.setenv("DLM_VLLM_TOOLS", "0")
    left = adjusted(tools=[TOOL], tool_choice="required")
    assert left.structured_outputs.regex == "theirs"
    assert left.vllm_xargs is None


@pytest.mark.parametrize("field", ["structured_outputs", "response_format"])
def test_a_constraint_of_a_masked_model_is_read_by_the_plugin(vllm, parser_of, field):
    for thinks in (None, True, False):
        kwargs = {} if thinks is None else {"chat_template_kwargs": {"enable_thinking": thinks}}
        parser, format = parser_of(**kwargs), Outputs(regex="a")
        body = parser.adjust_request(vllm.ChatBody(**{field: format}))
        assert getattr(body, field) is format
        expected = {"responses": False} | ({} if thinks is None else {"thinking": thinks})
        passed = body.vllm_xargs and json.loads(body.vllm_xargs[TOOLS])
        assert passed == (expected if parser_of.masked else None)
        assert parser.adjust_request(vllm.ChatBody()).vllm_xargs is None


def test_errors_name_the_field_that_the_client_sent(vllm, processor):
    bad = {"type": "string", "pattern": "("}
    for body, field in (
        (vllm.ChatBody(response_format=Outputs(json=bad)), "response_format.json_schema.schema"),
        (vllm.ResponsesBody(response_format=Outputs(json=bad)), "text.format.schema"),
        (vllm.ChatBody(structured_outputs=Outputs(json=bad)), "structured_outputs.json"),
    ):
        params = Params(body.extract_structured_outputs())
        with pytest.raises(vllm.ValidationError) as refused:
            processor.process_inputs("one", "a prompt", params, SERVED)
        assert str(refused.value).startswith(field)


def test_a_line_says_that_constraints_are_served_if_the_own_model_is_loaded(vllm, chat, caplog):
    caplog.set_level("INFO", "vllm.dlm")
    vllm.InputProcessor(OTHERS[0], chat.tokenizer)
    assert "served" not in caplog.text
    vllm.InputProcessor(config(), chat.tokenizer)
    assert "constraints are served with a model" in caplog.text


def test_a_class_that_another_plugin_registered_is_not_the_own_model(vllm, chat):
    vllm.registry.register_model(vllm_package.ARCHITECTURE, "another.plugin:Model")
    assert own.own_model(config().model_config) is None
    processor = vllm.InputProcessor(config(), chat.tokenizer)
    params = Params(Outputs(regex="a"))
    assert processor.process_inputs("one", "x", params, SERVED).sampling_params is params


def test_hooks_are_put_in_once_and_all_of_them_are_taken_out(monkeypatch):
    classes = vllm_package.installed(monkeypatch)
    functions = {
        (made, name): getattr(made, name)
        for made in vars(classes).values()
        if isinstance(made, type)
        for name in ("__init__", "process_inputs", "add_request", "adjust_request")
        if hasattr(made, name)
    }
    first, second = hooks.install(), hooks.install()
    second.undo()
    assert (
        classes.InputProcessor.process_inputs
        is not functions[classes.InputProcessor, "process_inputs"]
    )
    assert classes.InputProcessor.process_inputs.__name__ == "process_inputs"
    first.undo()
    assert {key: getattr(*key) for key in functions} == functions


@pytest.mark.parametrize(
    ("owner", "name"),
    [("StructuredOutputManager", "accept_tokens"), ("AsyncLLM", "add_request")],
)
def test_no_hook_stays_if_one_cannot_be_put_in(monkeypatch, owner, name):
    classes = vllm_package.installed(monkeypatch)
    process = classes.InputProcessor.process_inputs
    delattr(getattr(classes, owner), name)
    with pytest.raises(AttributeError, match=name):
        hooks.install()
    assert classes.InputProcessor.process_inputs is process


@pytest.fixture
def registering(monkeypatch):
    """The double of vLLM, as the plugin finds it at its start."""
    classes = vllm_package.installed(monkeypatch)
    monkeypatch.setattr(plugins, "find_spec", lambda _: SimpleNamespace(origin="/vllm/__init__.py"))
    monkeypatch.setattr(needs, "missing", lambda _: [])
    monkeypatch.setattr(needs, "servable", lambda _: [own.GEMMA])
    return classes


def test_the_plugin_registers_its_model_and_its_hooks(registering, caplog):
    plugin.register()
    plugin.register()
    assert own.own_model(config().model_config) is own.GEMMA
    assert hasattr(registering.InputProcessor.process_inputs, "wrapped_by_dlm")
    assert not caplog.records


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        ("registry", "register_model"),
        ("StructuredOutputManager", "accept_tokens"),
        ("Scheduler", "_update_request_with_output"),
        ("InputProcessor", "process_inputs"),
    ],
)
def test_whatever_is_missing_at_the_start_vllm_stays_as_it_is(registering, caplog, owner, name):
    owner = getattr(registering, owner)
    delattr(owner if isinstance(owner, type) else type(owner), name)
    before = vars(registering.InputProcessor).copy()
    plugin.register()
    assert dict(vars(registering.InputProcessor)) == before
    assert own.own_model(config().model_config) is None
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "left as it is" in record.getMessage()
    assert name in record.getMessage()


def test_a_model_that_lacks_something_is_left_alone_and_named(registering, caplog, monkeypatch):
    lacking = {own.NEMOTRON: ["MaskedDiffusionSampler.req_states"]}
    monkeypatch.setattr(needs, "unservable", lambda _: lacking)
    registering.registry.models[own.NEMOTRON.architecture] = "vLLM's own"
    plugin.register()
    assert own.own_model(config().model_config) is own.GEMMA
    assert registering.registry.models[own.NEMOTRON.architecture] == "vLLM's own"
    assert own.own_model(config(own.NEMOTRON.architecture).model_config) is None
    (record,) = caplog.records
    assert "NemotronLabsDiffusionModel of vLLM is left as it is" in record.getMessage()
    assert "MaskedDiffusionSampler.req_states" in record.getMessage()


def test_missing_names_are_in_the_warning_and_nothing_is_changed(registering, caplog, monkeypatch):
    monkeypatch.setattr(needs, "missing", lambda _: ["RequestState.draft_tokens"])
    before = vars(registering.InputProcessor).copy()
    plugin.register()
    assert dict(vars(registering.InputProcessor)) == before
    assert "RequestState.draft_tokens" in caplog.text
