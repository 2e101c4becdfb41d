"""Names that the plugin needs of vLLM, looked up in its source rather than by its version.

The source is read, not imported: some of it would claim a GPU. Knows no module of vLLM's as such.
"""

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

_MODEL = "model_executor/models/diffusion_gemma.py"
OUTPUTS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
_TOOL_FIELDS = ("tools", "tool_choice", "parallel_tool_calls", "vllm_xargs")
MOVED = (  # attributes of vLLM's request states that a step of a canvas moves
    "canvas",
    "argmax_canvas",
    "step",
    "is_encoder_phase",
    "confident",
    "accepted_canvas_history",
    "accepted_canvas_history_len",
    "self_conditioning_embeds",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """A class, with methods by the names of their first parameters, and attributes."""

    file: str  # below vLLM's package
    name: str
    methods: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    attributes: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()  # methods that the class itself calls


@dataclass(frozen=True, slots=True, kw_only=True)
class NeededFunction:
    """A function of a module, by the names of its first parameters."""

    file: str
    name: str
    parameters: tuple[str, ...]


NEEDS = (
    Need(
        file=_MODEL,
        name="DiffusionGemmaForConditionalGeneration",
        methods={"get_model_state_cls": ()},
    ),
    Need(
        file=_MODEL,
        name="DiffusionGemmaModelState",
        methods={
            "custom_sampler": ("sampler",),
            "add_request": ("req_index", "new_req_data"),
            "remove_request": ("req_id",),
            "get_supported_generation_tasks": (),
        },
        attributes=("diffusion_states", "_req_id_to_index"),
    ),
    Need(
        file=_MODEL,
        name="DiffusionSampler",
        methods={"__call__": ("logits", "input_batch")},
        attributes=("req_states",),
    ),
    Need(
        file=_MODEL,
        name="DiffusionGemmaRequestStates",
        methods={"add_request": ("slot_idx",), "remove_request": ("slot_idx",)},
        attributes=(*MOVED, "max_steps", "max_denoising_steps"),
    ),
    Need(
        file="v1/worker/gpu/input_batch.py",
        name="InputBatch",
        methods={"make_dummy": ("cls", "num_reqs", "num_tokens", "input_buffers")},
        attributes=("num_reqs", "num_draft_tokens", "idx_mapping_np", "cu_num_logits_np"),
    ),
    Need(file="v1/worker/gpu/states.py", name="RequestState", attributes=("draft_tokens",)),
    Need(
        file="v1/worker/gpu/model_runner.py",
        name="GPUModelRunner",
        calls=("custom_sampler", "get_supported_generation_tasks"),
    ),
    Need(
        file="v1/core/sched/output.py",
        name="NewRequestData",
        attributes=("req_id", "prompt_token_ids", "prefill_token_ids", "sampling_params"),
    ),
    Need(
        file="v1/engine/input_processor.py",
        name="InputProcessor",
        methods={
            "process_inputs": ("request_id", "prompt", "params", "supported_tasks"),
            "tokenizer": (),
        },
        attributes=("vllm_config", "model_config"),
    ),
    Need(
        file="v1/engine/async_llm.py",
        name="AsyncLLM",
        methods={
            "add_request": ("request_id", "prompt", "params"),
            "get_supported_tasks": (),
        },
        attributes=("input_processor",),
    ),
    Need(
        file="v1/engine/__init__.py",
        name="EngineCoreRequest",
        attributes=("prompt_token_ids", "sampling_params"),
    ),
    Need(
        file="v1/structured_output/__init__.py",
        name="StructuredOutputManager",
        methods={"accept_tokens": ("request", "new_token_ids")},
        attributes=("vllm_config",),
    ),
    Need(
        file="v1/core/sched/scheduler.py",
        name="Scheduler",
        methods={"_update_request_with_output": ("request", "new_token_ids")},
        attributes=("vllm_config",),
        calls=("accept_tokens", "_update_request_with_output"),
    ),
    Need(
        file="v1/request.py",
        name="RequestStatus",
        attributes=("FINISHED_STOPPED", "FINISHED_LENGTH_CAPPED"),
    ),
    Need(
        file="entrypoints/openai/chat_completion/serving.py",
        name="OpenAIServingChat",
        methods={"chat_completion_full_generator": ("request", "result_generator")},
    ),
    Need(
        file="sampling_params.py",
        name="SamplingParams",
        methods={"clone": ()},
        attributes=(
            "structured_outputs",
            "extra_args",
            "max_tokens",
            "top_k",
            "top_p",
            "stop",
            "stop_token_ids",
            "ignore_eos",
            "seed",
            "thinking_token_budget",
        ),
    ),
    Need(file="sampling_params.py", name="StructuredOutputsParams", attributes=OUTPUTS),
    Need(
        file="tool_parsers/gemma4_engine_tool_parser.py",
        name="Gemma4EngineToolParser",
        methods={"adjust_request": ("request",)},
    ),
    Need(
        file="parser/abstract_parser.py",
        name="DelegatingParser",
        methods={
            "parse": ("model_output", "request", "enable_auto_tools", "model_output_token_ids"),
            "parse_delta": ("delta_text", "delta_token_ids", "request"),
        },
    ),
    Need(
        file="parser/abstract_parser.py",
        name="Parser",
        methods={"reasoning_parser": ()},
    ),
    Need(
        file="entrypoints/openai/chat_completion/protocol.py",
        name="ChatCompletionRequest",
        methods={"extract_structured_outputs": ()},
        attributes=_TOOL_FIELDS,
    ),
    Need(
        file="entrypoints/openai/responses/protocol.py",
        name="ResponsesRequest",
        methods={"extract_structured_outputs": ()},
        attributes=_TOOL_FIELDS,
    ),
    Need(
        file="entrypoints/openai/completion/protocol.py",
        name="CompletionRequest",
        methods={"extract_structured_outputs": ()},
    ),
    Need(
        file="model_executor/models/registry.py",
        name="_ModelRegistry",
        methods={"register_model": ("model_arch", "model_cls")},
        attributes=("models",),
    ),
    Need(
        file="model_executor/models/registry.py",
        name="_LazyRegisteredModel",
        attributes=("module_name", "class_name"),
    ),
    Need(
        file="config/model.py",
        name="ModelConfig",
        methods={"is_diffusion": (), "architecture": (), "try_get_generation_config": ()},
        attributes=("max_model_len",),
    ),
    NeededFunction(file="parser/metrics.py", name="record_tool_parser_invocation", parameters=()),
    NeededFunction(
        file="tokenizers/registry.py",
        name="cached_tokenizer_from_config",
        parameters=("model_config",),
    ),
    Need(file="exceptions.py", name="VLLMValidationError"),
)
_REFUSAL = "sampling_params.py", "_validate_structured_outputs", "is_diffusion"


def missing(root: Path) -> list[str]:
    """Return what the package of vLLM at `root` lacks, in words; empty: the plugin can work."""
    trees = {file: _parsed(root / file) for file in sorted({need.file for need in NEEDS})}
    problems = [f"{file} cannot be read" for file, tree in trees.items() if tree is None]
    for need in NEEDS:
        if (tree := trees[need.file]) is None:
            continue
        problems += (
            _lacking(need, tree) if isinstance(need, Need) else _lacking_function(need, tree)
        )
    file, method, flag = _REFUSAL
    if (tree := trees[file]) is not None and not _refuses(tree, method, flag):
        problems.append("a refusal of constraints for diffusion models: it may have its own by now")
    return problems


def _parsed(path: Path) -> ast.Module | None:
    try:
        return ast.parse(path.read_text())
    except (OSError, SyntaxError, UnicodeDecodeError):
        return None


def _lacking(need: Need, tree: ast.Module) -> Iterator[str]:
    made = next((n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == need.name), None)
    if made is None:
        yield f"{need.name} in {need.file}"
        return
    methods = {node.name: node for node in made.body if isinstance(node, _FUNCTIONS)}
    for name, parameters in need.methods.items():
        method = methods.get(name)
        if method is None:
            yield f"{need.name}.{name}"
            continue
        arguments = tuple(argument.arg for argument in method.args.args if argument.arg != "self")
        if arguments[: len(parameters)] != parameters:
            actual = ", ".join(arguments)
            yield f"{need.name}.{name}({', '.join(parameters)}), whose parameters are {actual}"
    called = {
        node.func.attr
        for node in ast.walk(made)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    }
    yield from (f"a call of {name} in {need.name}" for name in need.calls if name not in called)
    attributes = _attributes(made)
    yield from (f"{need.name}.{name}" for name in need.attributes if name not in attributes)


def _lacking_function(need: NeededFunction, tree: ast.Module) -> Iterator[str]:
    made = next((n for n in tree.body if isinstance(n, _FUNCTIONS) and n.name == need.name), None)
    if made is None:
        yield f"{need.name} in {need.file}"
        return
    arguments = tuple(argument.arg for argument in made.args.args)
    if arguments[: len(need.parameters)] != need.parameters:
        taken = ", ".join(arguments)
        yield f"{need.name}({', '.join(need.parameters)}), whose parameters are {taken}"


_FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef


def _attributes(made: ast.ClassDef) -> set[str]:
    """Fields of a class, and what its methods assign to `self`."""
    names = set()
    for node in made.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
        if isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    for node in ast.walk(made):
        targets = node.targets if isinstance(node, ast.Assign) else ()
        targets = (node.target,) if isinstance(node, ast.AnnAssign) else targets
        for target in targets:
            if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
                names |= {target.attr} if target.value.id == "self" else set()
    return names


def _refuses(tree: ast.Module, method: str, flag: str) -> bool:
    made = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == method]
    return any(isinstance(n, ast.Attribute) and n.attr == flag for m in made for n in ast.walk(m))
