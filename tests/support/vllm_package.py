"""A package `vllm` as far as the plugin wraps it: its modules are put into `sys.modules`.

Functions of its classes return or record what they are called with, so that a test sees whether
the plugin changed anything.
"""

import enum
import sys
from types import ModuleType, SimpleNamespace

from vllm_params import Outputs, Params

ARCHITECTURE = "DiffusionGemmaForBlockDiffusion"


class Registry:
    def __init__(self):
        self.models = {
            ARCHITECTURE: SimpleNamespace(module_name="vllm.models", class_name="Theirs")
        }

    def register_model(self, name, where):
        module, made = where.split(":")
        self.models[name] = SimpleNamespace(module_name=module, class_name=made)


class InputProcessor:
    def __init__(self, vllm_config, tokenizer=None):
        self.vllm_config, self.model_config = vllm_config, vllm_config.model_config
        self.tokenizer = tokenizer

    def process_inputs(self, *args, **kwargs):
        self.called = args, kwargs
        params = kwargs.get("params", args[2] if len(args) > 2 else None)
        return SimpleNamespace(prompt_token_ids=[2, 5], sampling_params=params)


class AsyncLLM:
    def __init__(self, input_processor, tasks=("generate",)):
        self.input_processor, self.tasks = input_processor, tasks

    async def get_supported_tasks(self):
        return self.tasks

    async def add_request(self, *args, **kwargs):
        self.called = args, kwargs
        if len(args) < 3:
            return None
        process = self.input_processor.process_inputs
        return process(*args[:3], supported_tasks=self.tasks, **kwargs)


class DelegatingParser:
    """Parser that makes a constraint of tools that must be called, as vLLM's does."""

    reasoning_parser = None

    def __init__(self, tokenizer=None, tools=None, **kwargs):
        self.made_with = tokenizer, tools, kwargs

    def adjust_request(self, request):
        request.adjusted = True
        if request.tools and request.tool_choice == "required":
            request.structured_outputs, request.response_format = Outputs(regex="theirs"), None
        return request

    def parse(self, *args, **kwargs):
        return args, kwargs

    parse_delta = parse


class Body:
    """A body of a request; `fields` are those that a client sent."""

    def __init__(self, **fields):
        self.fields = fields
        self.tools, self.tool_choice = fields.get("tools"), fields.get("tool_choice")
        self.vllm_xargs = fields.get("vllm_xargs")
        self.structured_outputs = fields.get("structured_outputs")
        self.response_format = fields.get("response_format")

    def model_dump(self, mode, include, exclude_none):
        return {name: value for name, value in self.fields.items() if name in include}

    def extract_structured_outputs(self):
        return self.structured_outputs or self.response_format


class ChatBody(Body):
    pass


class CompletionBody(Body):
    pass


class ResponsesBody(Body):
    text = None


class StructuredOutputManager:
    def __init__(self, vllm_config):
        self.vllm_config = vllm_config

    def accept_tokens(self, *args, **kwargs):
        self.called = args, kwargs
        return "theirs"


class Status(enum.IntEnum):
    RUNNING = 1
    FINISHED_STOPPED = 2
    FINISHED_LENGTH_CAPPED = 3


class Scheduler:
    """Ends a request at token 1 or 106, as vLLM's does."""

    def __init__(self, vllm_config):
        self.vllm_config = vllm_config

    def _update_request_with_output(self, *args, **kwargs):
        self.called = args, kwargs
        if len(args) < 2:
            return None
        request, tokens = args
        for position, token in enumerate(tokens, 1):
            if token in (1, 106):
                request.status, request.stop_reason = Status.FINISHED_STOPPED, token
                del tokens[position:]
                return tokens, True
        return tokens, False


class OpenAIServingChat:
    async def chat_completion_full_generator(self, *args, **kwargs):
        self.called = args, kwargs
        if len(args) < 2:
            return None
        choices = {}
        async for result in args[1]:
            for one in result.outputs:
                choices[one.index] = SimpleNamespace(index=one.index, finish_reason="tool_calls")
        return SimpleNamespace(choices=[*choices.values()])


class ValidationError(ValueError):
    pass


_MESSAGES = (
    *("DeltaMessage", "DeltaToolCall", "DeltaFunctionCall", "FunctionCall"),
    "make_tool_call_id",
)


def installed(monkeypatch):
    """Put the package into `sys.modules` for one test, with new classes; returns them."""

    def copied(made):
        return type(made.__name__, made.__bases__, dict(vars(made)))

    classes = SimpleNamespace(
        registry=copied(Registry)(),
        InputProcessor=copied(InputProcessor),
        AsyncLLM=copied(AsyncLLM),
        DelegatingParser=copied(DelegatingParser),
        ChatBody=copied(ChatBody),
        CompletionBody=copied(CompletionBody),
        ResponsesBody=copied(ResponsesBody),
        StructuredOutputManager=copied(StructuredOutputManager),
        Scheduler=copied(Scheduler),
        OpenAIServingChat=copied(OpenAIServingChat),
        ValidationError=ValidationError,
    )
    for body in (classes.ChatBody, classes.CompletionBody, classes.ResponsesBody):
        body.extract_structured_outputs = Body.extract_structured_outputs
    protocol = "vllm.entrypoints.openai"
    modules = {
        "vllm": {"ModelRegistry": classes.registry, "__version__": "0.0"},
        f"{protocol}.chat_completion.protocol": {"ChatCompletionRequest": classes.ChatBody},
        f"{protocol}.chat_completion.serving": {"OpenAIServingChat": classes.OpenAIServingChat},
        f"{protocol}.completion.protocol": {"CompletionRequest": classes.CompletionBody},
        f"{protocol}.responses.protocol": {"ResponsesRequest": classes.ResponsesBody},
        "vllm.sampling_params": {"SamplingParams": Params},
        "vllm.exceptions": {"VLLMValidationError": ValidationError},
        "vllm.parser.abstract_parser": {"DelegatingParser": classes.DelegatingParser},
        "vllm.parser.engine": {"parser_engine": SimpleNamespace(**dict.fromkeys(_MESSAGES))},
        "vllm.parser.metrics": {"record_tool_parser_invocation": None},
        "vllm.v1.core.sched.scheduler": {"Scheduler": classes.Scheduler},
        "vllm.v1.engine.async_llm": {"AsyncLLM": classes.AsyncLLM},
        "vllm.v1.engine.input_processor": {"InputProcessor": classes.InputProcessor},
        "vllm.v1.structured_output": {"StructuredOutputManager": classes.StructuredOutputManager},
    }
    for name, values in modules.items():
        parts = name.split(".")
        for end in range(1, len(parts) + 1):
            path = ".".join(parts[:end])
            if path not in sys.modules or not hasattr(sys.modules[path], "_double"):
                module = ModuleType(path)
                module._double, module.__path__ = True, []
                monkeypatch.setitem(sys.modules, path, module)
        for key, value in values.items():
            monkeypatch.setattr(sys.modules[name], key, value, raising=False)
    return classes
