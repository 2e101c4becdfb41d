"""Names that the plugin needs of vLLM, looked up in its source rather than by its version.

Some it needs for each model that it serves. A model that this vLLM does not have lacks nothing.
"""

import ast
from pathlib import Path

from dlm.integrations.needs import Need, NeededFunction, lacking, parsed
from dlm.integrations.vllm.own import GEMMA, NEMOTRON, OwnModel

_GEMMA = "model_executor/models/diffusion_gemma.py"
_NEMOTRON = "model_executor/models/nemotron_dllm.py"
OUTPUTS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
_TOOL_FIELDS = ("tools", "tool_choice", "parallel_tool_calls", "vllm_xargs")
NOISE = (  # attributes of request states that a step of a canvas of noise moves
    "canvas",
    "argmax_canvas",
    "step",
    "is_encoder_phase",
    "confident",
    "accepted_canvas_history",
    "accepted_canvas_history_len",
    "self_conditioning_embeds",
)
MASKS = (  # those that a step of a canvas of masks moves
    "canvas",
    "step",
    "is_encoder_phase",
    "unmask_logprobs",
    "unmask_ranks",
)


def _model_needs(
    file: str, model: str, state: str, sampler: str, states: str, tensors: tuple[str, ...]
) -> tuple[Need, ...]:
    """Return what is needed of a model: of its class, of those of its state and its sampler, and of
    its requests' states."""
    return (
        Need(file=file, name=model, methods={"get_model_state_cls": ()}),
        Need(
            file=file,
            name=state,
            methods={
                "custom_sampler": ("sampler",),
                "add_request": ("req_index", "new_req_data"),
                "remove_request": ("req_id",),
                "get_supported_generation_tasks": (),
            },
            attributes=("diffusion_states", "_req_id_to_index"),
        ),
        Need(
            file=file,
            name=sampler,
            methods={"__call__": ("logits", "input_batch")},
            attributes=("req_states",),
        ),
        Need(
            file=file,
            name=states,
            methods={"add_request": ("slot_idx",), "remove_request": ("slot_idx",)},
            attributes=(*tensors, "max_denoising_steps"),
        ),
    )


MODEL_NEEDS = {
    GEMMA: _model_needs(
        _GEMMA,
        "DiffusionGemmaForConditionalGeneration",
        "DiffusionGemmaModelState",
        "DiffusionSampler",
        "DiffusionGemmaRequestStates",
        (*NOISE, "max_steps"),
    ),
    NEMOTRON: _model_needs(
        _NEMOTRON,
        "NemotronLabsDiffusionForBlockDiffusion",
        "NemotronLabsDiffusionModelState",
        "MaskedDiffusionSampler",
        "NemotronLabsDiffusionRequestStates",
        (*MASKS, "mask_token_id"),
    ),
}
NEEDS = (
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
            "temperature",
        ),
    ),
    Need(file="sampling_params.py", name="StructuredOutputsParams", attributes=OUTPUTS),
    Need(
        file="parser/abstract_parser.py",
        name="DelegatingParser",
        methods={
            "adjust_request": ("request",),
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
        attributes=("max_model_len", "hf_config"),
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
    """Return what the package of vLLM at `root` lacks, in words; empty: the plugin can work, with
    any model that `servable` returns."""
    problems = lacking(root, NEEDS)
    file, method, flag = _REFUSAL
    if (tree := parsed(root / file)) is not None and not _refuses(tree, method, flag):
        problems.append("a refusal of constraints for diffusion models: it may have its own by now")
    if not servable(root):
        models = unservable(root) or MODEL_NEEDS
        problems += [text for model in models for text in lacking(root, MODEL_NEEDS[model])]
    return problems


def servable(root: Path) -> list[OwnModel]:
    """Return the models of vLLM at `root` that the plugin can serve."""
    return [model for model, needs in MODEL_NEEDS.items() if not lacking(root, needs)]


def unservable(root: Path) -> dict[OwnModel, list[str]]:
    """Return the models of vLLM at `root` that the plugin leaves alone, and what each lacks."""
    return {
        model: problems
        for model, needs in MODEL_NEEDS.items()
        if any((root / need.file).exists() for need in needs) and (problems := lacking(root, needs))
    }


def _refuses(tree: ast.Module, method: str, flag: str) -> bool:
    made = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == method]
    return any(isinstance(n, ast.Attribute) and n.attr == flag for m in made for n in ast.walk(m))
