"""Calls and reasoning of a masked model in vLLM: admitted, written by a worker, and read."""

import json
from types import SimpleNamespace

import calling
import jsonschema
import pytest
from exhaustive import by_default
from vllm_masks import MASK, POLICIES, LikingMasks, MaskRequest, worker_of
from vllm_params import Outputs, Params
from weightless import Knowing

from dlm.chat import Chat
from dlm.errors import RequestError
from dlm.grammar import BudgetError, Compiler
from dlm.integrations.vllm.calls import AnswerReader, WholeAnswer
from dlm.integrations.vllm.front_end import FrontEnd
from dlm.integrations.vllm.own import NEMOTRON
from dlm.integrations.vllm.payload import RESPONSES, THINKING, TOOLS, ToolsText

INTEGERS = {"type": "array", "items": {"type": "integer"}, "maxItems": 3}
SHORT = {"type": "string", "maxLength": 4}


def holding(**properties):
    return {"type": "object", "properties": properties, "required": [*properties]}


SCHEMAS = {
    "nested": holding(id={"type": "string", "pattern": "^[A-Z]{2}$"}, of=holding(sums=INTEGERS)),
    "references": holding(n={"type": "integer"}, next={"$ref": "#/$defs/node"})
    | {"$defs": {"node": {"anyOf": [{"type": "null"}, holding(text=SHORT)]}}},
    "dictionary": {"type": "object", "additionalProperties": {"type": "integer"}}
    | {"minProperties": 2},
    "tuple": holding(
        of={
            "type": "array",
            "prefixItems": [{"enum": ["red", "blue"]}, {"type": "number"}, {"type": "boolean"}],
            "items": False,
            "minItems": 3,
        }
    ),
    "union": holding(of={"anyOf": [{"type": "null"}, SHORT, {"type": "boolean"}]}),
}
CANVASES = [
    (16, "joint"),
    (4, "prefix"),
    (32, "joint"),
    (4, "joint"),
    (16, "prefix"),
    (32, "prefix"),
]
policies = pytest.mark.parametrize("policy", by_default([*POLICIES], 1))
canvases = pytest.mark.parametrize(
    ("policy", "L", "order"), by_default([(p, *c) for c in CANVASES for p in POLICIES], 1)
)


def tool(name, schema, **more):
    return {"type": "function", "function": {"name": name, "parameters": schema, **more}}


def call_text(name, **texts):
    """Return a call in the model's form, from the texts of its arguments."""
    values = "".join(f"<parameter={key}>\n{text}\n</parameter>\n" for key, text in texts.items())
    return f"<tool_call>\n<function={name}>\n{values}</function>\n</tool_call>"


class Served:
    """A front end and its worker's compiler, of a tokenizer with Qwen's tags."""

    def __init__(self, directory):
        self.chat = Chat.load(calling.write(directory, "nemotron"), NEMOTRON.markup)
        model = SimpleNamespace(
            try_get_generation_config=lambda: {"eos_token_id": [1, calling.IDS["<|im_end|>"]]},
            get_vocab_size=lambda: calling.SIZES["vocab_size"],
            max_model_len=1024,
            hf_config=SimpleNamespace(mask_token_id=MASK),
        )
        config = SimpleNamespace(model_config=model, parallel_config=SimpleNamespace())
        self.front_end = FrontEnd(config, self.chat.tokenizer, NEMOTRON)
        params, _ = self.admitted(outputs=Outputs(regex="a"))
        self.vocabulary = params.extra_args[TOOLS].reading.vocabulary
        self.compiler = Compiler(self.vocabulary)

    def admitted(self, prompt="Hi.", outputs=None, max_tokens=200, thinking=None, **body):
        """Return the parameters of a request, whose tools note how it is read, and its payload."""
        fields = {**body, RESPONSES: False} | ({} if thinking is None else {THINKING: thinking})
        params = Params(outputs, {TOOLS: ToolsText(json.dumps(fields))}, max_tokens)
        admitted = self.front_end.admit(params, self.encoded(prompt))
        return params, admitted and admitted.payload

    def encoded(self, text):
        return self.chat.tokenizer.encode(text, add_special_tokens=False)

    def least(self, **request):
        """Return the least budget of a request."""
        with pytest.raises(BudgetError) as refused:
            self.admitted(max_tokens=1, **request)
        return int(str(refused.value).partition("the shortest answer takes ")[2].split()[0])

    def knowing(self, payload, *texts):
        """Return a model that knows the texts of answers, by the order of their requests."""
        compiled = self.compiler.unpack(payload.rules)
        stop = self.vocabulary.stops[0]
        answers = {key: [*self.vocabulary.encode(text), stop] for key, text in enumerate(texts)}
        return Knowing(compiled, answers, right=1.0, slope=0.0)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    return Served(tmp_path_factory.mktemp("calling") / "model")


def written(served, requests, **how):
    """Return what a worker makes of admitted requests, in one batch."""
    worker = worker_of(served.compiler, len(requests), **how)
    for slot, (params, payload) in enumerate(requests):
        worker.add(slot, MaskRequest(key=slot, budget=params.max_tokens, payload=payload))
    worker.run()
    return [worker.requests[slot] for slot in range(len(requests))]


def read(params, tokens, size=None, apart=True):
    """Return an answer, read whole or in pieces of a `size`."""
    reader, answer = AnswerReader(params.extra_args[TOOLS].reading, apart), WholeAnswer()
    pieces = [tokens[i : i + (size or len(tokens))] for i in range(0, len(tokens), size or 10**6)]
    for number, piece in enumerate(pieces, 1):
        answer.add(reader.feed(piece, ended=number == len(pieces)))
    return answer


def check(served, params, request, schemas):
    """Check that an answer is calls that fit, read alike in any pieces; return them."""
    assert request.reason in ("stop", "length"), request.reason
    assert request.output[-1] in served.vocabulary.stops
    assert len(request.output) <= params.max_tokens
    answer = read(params, request.output)
    for call in answer.calls:
        jsonschema.validate(json.loads(call.arguments), schemas[call.name])
    for size in (1, 5):
        assert read(params, request.output, size) == answer
    return answer


@canvases
def test_required_and_named_calls_fit_in_exactly_the_shortest_budget_and_in_more(
    served, policy, L, order
):
    """Whatever the model wants: it is sure of garbage, or unsure of everything."""
    tools, requests = [tool(name, schema) for name, schema in SCHEMAS.items()], []
    for name in SCHEMAS:
        named = {"type": "function", "function": {"name": name}}
        least = served.least(tools=tools, tool_choice=named)
        for budget in (least, least + 24):
            requests.append(served.admitted(tools=tools, tool_choice=named, max_tokens=budget))
    requests.append(served.admitted(tools=tools, tool_choice="required", max_tokens=90))
    answers = written(served, requests, policy=policy, L=L, steps=min(L, 6), order=order)
    called = []
    for (params, _), request in zip(requests, answers, strict=True):
        answer = check(served, params, request, SCHEMAS)
        assert (answer.content, answer.reasoning) == ("", "")
        called.append([call.name for call in answer.calls])
    assert called[:-1] == [[name] for name in SCHEMAS for _ in range(2)]
    assert called[-1]


@policies
def test_a_model_calls_beside_text_or_not_at_all_as_it_wants(served, policy):
    tools = [tool("f", holding(a=SHORT, n={"type": "integer"})), tool("g", holding(of=INTEGERS))]
    calls = call_text("f", a="é", n="7"), call_text("g", of="[1, 20]")
    texts = ("Just text.", f"Let me see.\n{calls[0]}", "\n".join(calls))
    requests = [served.admitted(tools=tools, tool_choice="auto") for _ in texts]
    model = served.knowing(requests[0][1], *texts)
    answers = written(served, requests, policy=policy, model=LikingMasks(MASK, model.size, model))
    schemas = {each["function"]["name"]: each["function"]["parameters"] for each in tools}
    plain, mixed, called = (
        check(served, params, request, schemas)
        for (params, _), request in zip(requests, answers, strict=True)
    )
    assert plain == WholeAnswer(content="Just text.")
    assert (mixed.content, [call.arguments for call in mixed.calls]) == (
        "Let me see.",
        ['{"a": "é", "n": 7}'],
    )
    assert [call.name for call in called.calls] == ["f", "g"]
    assert called.content == ""


def test_tools_that_may_not_be_called_leave_the_answer_free(served):
    assert served.admitted(tools=[tool("f", holding(a=SHORT))], tool_choice="none")[1] is None


THOUGHT = f"Shall I write {call_text('f', a='x')} or <tool_call> alone?"


@policies
@pytest.mark.parametrize("opened", [True, False], ids=["opened by the prompt", "asked for"])
def test_reasoning_comes_before_calls_and_calls_within_it_are_none(served, policy, opened):
    wishes = {"prompt": "Hi.<think>\n"} if opened else {"thinking": True}
    body = {"tools": [tool("f", holding(a=SHORT))], "tool_choice": "required"}
    requests = [served.admitted(**wishes, **body)]
    text = f"{'' if opened else '<think>'}{THOUGHT}</think>{call_text('f', a='ok')}"
    model = served.knowing(requests[0][1], text)
    (request,) = written(served, requests, policy=policy, model=model, L=32)
    params, _ = requests[0]
    answer = check(served, params, request, {"f": holding(a=SHORT)})
    assert answer.reasoning == THOUGHT
    assert [call.arguments for call in answer.calls] == ['{"a": "ok"}']
    within = read(params, request.output, 3, apart=False)
    opening = "" if opened else "<think>"
    assert (within.content, within.reasoning) == (f"{opening}{THOUGHT}</think>", "")
    assert within.calls == answer.calls


@canvases
def test_reasoning_that_the_prompt_opens_closes_in_time_for_a_valid_answer(
    served, policy, L, order
):
    outputs, prompt = Outputs(json=holding(n={"type": "integer"})), "<think>"
    least = served.least(prompt=prompt, outputs=outputs)
    budgets = least, least + 30
    requests = [
        served.admitted(prompt=prompt, outputs=outputs, max_tokens=budget) for budget in budgets
    ]
    answers = written(served, requests, policy=policy, L=L, steps=min(L, 6), order=order)
    for (params, _), request in zip(requests, answers, strict=True):
        answer = check(served, params, request, {})
        jsonschema.validate(json.loads(answer.content), outputs.json)


def test_reasoning_that_nobody_asks_for_is_closed_at_once(served):
    requests = [served.admitted("<think>", Outputs(choice=["yes", "no"]), thinking=False)]
    (request,) = written(served, requests)
    answer = check(served, requests[0][0], request, {})
    assert answer.reasoning == ""
    assert answer.content in ("yes", "no")


def test_a_structural_tag_is_read_as_the_text_that_it_is(served):
    tag = {"begin": "<a>", "content": {"type": "json_schema", "json_schema": SHORT}, "end": "</a>"}
    outputs = Outputs(structural_tag=json.dumps({"type": "structural_tag", "format": {
        "type": "tag", **tag}}))  # fmt: skip
    for prompt in ("Hi.", "<think>"):
        requests = [served.admitted(prompt, outputs, max_tokens=60)]
        (request,) = written(served, requests)
        answer = check(served, requests[0][0], request, {})
        inner = answer.content.removeprefix("<a>").removesuffix("</a>")
        assert len(answer.content) == len(inner) + 7
        jsonschema.validate(json.loads(inner), SHORT)


MIXED = holding(a={"type": ["string", "array"]})
REPEATED = holding(a={"type": "array", "items": SHORT, "uniqueItems": True})


@pytest.mark.parametrize(
    ("schema", "more", "problem"),
    [
        (MIXED, {"tool_choice": "required"}, "a grammar can enforce: .*writes texts without"),
        (MIXED, {"strict": True}, "a grammar can enforce: .*writes texts without quotes"),
        (REPEATED, {"tool_choice": "required"}, "^/tools/0/function/parameters/properties/a"),
        (holding(**{"a b": SHORT}), {"tool_choice": "required"}, "cannot be a name"),
    ],
)
def test_calls_that_a_reader_may_take_for_others_are_refused_if_they_are_relied_on(
    served, schema, more, problem
):
    strict = {"strict": more["strict"]} if "strict" in more else {}
    choice = more.get("tool_choice", "auto")
    with pytest.raises(RequestError, match=problem):
        served.admitted(tools=[tool("f", schema, **strict)], tool_choice=choice)
    params, _ = served.admitted(tools=[tool("f", schema)], tool_choice="auto")
    assert params.extra_args[TOOLS].reading is not None


def test_a_template_that_shows_no_calls_leaves_lax_tools_free_and_refuses_others(
    served, tmp_path_factory
):
    directory = tmp_path_factory.mktemp("plain")
    plain = Served.__new__(Served)
    calling.write(directory / "model", "nemotron")
    template = directory / "model" / "chat_template.jinja"
    template.write_text(template.read_text().replace("message.tool_calls", "message.nothing"))
    plain.chat = Chat.load(directory / "model", NEMOTRON.markup)
    config = served.front_end._vllm_config
    plain.front_end = FrontEnd(config, plain.chat.tokenizer, NEMOTRON)
    tools = [tool("f", holding(a=SHORT))]
    assert plain.admitted(tools=tools, tool_choice="auto")[1] is None
    with pytest.raises(RequestError, match="chat template shows no form of calls"):
        plain.admitted(tools=tools, tool_choice="required")
    _, payload = plain.admitted(outputs=Outputs(json=SHORT))
    assert payload is not None


@policies
def test_free_requests_are_those_of_the_engine_beside_calls(served, policy):
    tools = [tool("f", SCHEMAS["nested"])]
    admitted = served.admitted(tools=tools, tool_choice="required", max_tokens=60)
    free = Params(max_tokens=16), None

    def outputs(plugin):
        made = [(admitted[0], admitted[1] if plugin else None), free, free]
        return [answer.output for answer in written(served, made, policy=policy, plugin=plugin)]

    theirs, ours = outputs(False), outputs(True)
    assert ours[1:] == theirs[1:]
    assert ours[0] != theirs[0]


@pytest.mark.parametrize("forged", [{"rules": b"no pickle"}, {"opened": True, "thinking": False}])
def test_a_forged_payload_ends_no_other_request(served, forged):
    tools = [tool("f", SCHEMAS["tuple"])]
    params, payload = served.admitted(tools=tools, tool_choice="required", max_tokens=60)
    fields = payload.data() | forged
    broken, other = written(served, [(params, type(payload)(**fields)), (params, payload)])
    assert broken.reason == "error" if "rules" in forged else broken.reason in ("stop", "length")
    check(served, params, other, {"f": SCHEMAS["tuple"]})
