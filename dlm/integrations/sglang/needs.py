"""Names that the plugin needs of SGLang, looked up in its source rather than by its version."""

import ast
from pathlib import Path

from dlm.integrations.needs import AnyNeed, Need, NeededFunction, NeededVariable, lacking, parsed

_ALGORITHMS = "srt/dllm/algorithm"
_BACKEND = "srt/constrained/base_grammar_backend.py"
_BATCH = "srt/managers/schedule_batch.py"
_DISPATCHED = "dispatch_json", "dispatch_regex", "dispatch_ebnf", "dispatch_structural_tag"

NEEDS: tuple[AnyNeed, ...] = (
    NeededVariable(file=f"{_ALGORITHMS}/__init__.py", name="algo_name_to_cls"),
    NeededFunction(file=f"{_ALGORITHMS}/__init__.py", name="get_algorithm", parameters=("config",)),
    Need(
        file=f"{_ALGORITHMS}/base.py",
        name="DllmAlgorithm",
        methods={
            "init_step_state": ("forward_batch",),
            "validate_request": ("cls", "req"),
            "max_steps": ("block_size",),
            "prepare_inputs": ("model_runner", "forward_batch", "states"),
            "step": ("forward_batch", "full_logits", "states"),
            "run": ("model_runner", "forward_batch", "algo_states"),
        },
        attributes=("block_size", "mask_id", "fdfo"),
        calls=("step", "max_steps"),
    ),
    Need(file=f"{_ALGORITHMS}/low_confidence.py", name="LowConfidence", attributes=("threshold",)),
    Need(
        file=f"{_ALGORITHMS}/joint_threshold.py",
        name="JointThreshold",
        attributes=("threshold", "edit_threshold", "penalty_lambda"),
    ),
    Need(
        file=f"{_ALGORITHMS}/joint_threshold_indel.py",
        name="JointThresholdInDel",
        attributes=("threshold", "edit_threshold"),
    ),
    Need(
        file=f"{_ALGORITHMS}/gemma4_renoise.py",
        name="Gemma4Renoise",
        methods={"validate_request": ("cls", "req")},
        attributes=("max_denoising_steps", "requires_separate_context_encoding"),
    ),
    Need(
        file="srt/dllm/config.py",
        name="DllmConfig",
        methods={"from_server_args": ("server_args",), "validate_request": ("req",)},
        attributes=(
            "block_size",
            "mask_id",
            "delete_token_id",
            "split_token_id",
            "requires_separate_context_encoding",
        ),
    ),
    Need(
        file="srt/dllm/mixin/scheduler.py",
        name="SchedulerDllmMixin",
        methods={"get_new_batch_dllm": (), "validate_dllm_request": ("req",)},
        attributes=("dllm_config",),
    ),
    Need(
        file="srt/managers/scheduler.py",
        name="Scheduler",
        methods={"_add_request_to_queue": ("req",)},
        attributes=("grammar_manager", "model_config"),
        calls=("get_new_batch_dllm", "validate_dllm_request", "process_req_with_grammar"),
    ),
    Need(
        file=_BATCH,
        name="Req",
        methods={
            "finished": (),
            "update_finish_state": (),
            "set_finish_with_abort": ("error_msg", "status_code", "err_type"),
        },
        attributes=(
            "grammar",
            "sampling_params",
            "origin_input_ids",
            "output_ids",
            "to_finish",
            "finished_reason",
            "finished_len",
            "require_reasoning",
        ),
    ),
    Need(
        file=_BATCH,
        name="FINISH_ABORT",
        methods={"__init__": ("message", "status_code", "err_type")},
    ),
    Need(file=_BATCH, name="FINISH_LENGTH", methods={"__init__": ("length",)}),
    Need(
        file="srt/constrained/grammar_manager.py",
        name="GrammarManager",
        methods={
            "has_waiting_grammars": (),
            "process_req_with_grammar": ("req",),
            "get_ready_grammar_requests": (),
        },
        attributes=("grammar_backend", "scheduler"),
    ),
    Need(
        file=_BACKEND,
        name="BaseGrammarBackend",
        methods={
            "get_cached_or_future_value": ("key", "require_reasoning"),
            "set_cache": ("key", "value"),
            **dict.fromkeys(_DISPATCHED, ("key_string",)),
        },
        attributes=("cache",),
        calls=_DISPATCHED,
    ),
    Need(file=_BACKEND, name="BaseGrammarObject", methods={"copy": ()}),
    Need(file=_BACKEND, name="InvalidGrammarObject", methods={"__init__": ("error_message",)}),
    NeededFunction(
        file=_BACKEND,
        name="create_grammar_backend",
        parameters=("server_args", "tokenizer", "vocab_size", "eos_token_ids", "think_end_ids"),
    ),
    Need(
        file="srt/sampling/sampling_params.py",
        name="SamplingParams",
        attributes=(
            "json_schema",
            "regex",
            "ebnf",
            "structural_tag",
            "max_new_tokens",
            "ignore_eos",
            "stop_strs",
            "stop_regex_strs",
            "stop_token_ids",
            "custom_params",
        ),
    ),
    Need(
        file="srt/sampling/sampling_batch_info.py",
        name="SamplingBatchInfo",
        attributes=("grammars",),
    ),
    Need(
        file="srt/model_executor/forward_batch_info.py",
        name="ForwardBatch",
        attributes=("input_ids", "sampling_info", "extend_prefix_lens_cpu"),
    ),
    Need(
        file="srt/parser/reasoning_parser.py",
        name="ReasoningParser",
        attributes=("detector",),
    ),
    Need(
        file="srt/plugins/hook_registry.py",
        name="HookRegistry",
        methods={"register": ("cls", "target", "hook", "hook_type")},
    ),
    Need(
        file="srt/plugins/hook_registry.py",
        name="HookType",
        attributes=("BEFORE", "AFTER", "AROUND"),
    ),
    NeededFunction(file="srt/runtime_context.py", name="get_exec", parameters=()),
    NeededFunction(file="srt/runtime_context.py", name="get_serving", parameters=()),
)
_POLL = "get_ready_grammar_requests"


def missing(root: Path) -> list[str]:
    """Return what the package of SGLang at `root` lacks, in words; empty: the plugin can work."""
    return lacking(root, NEEDS)


def polls(root: Path) -> bool:
    """Return whether the SGLang at `root` itself queues requests of diffusion models whose
    constraints are compiled. Version 0.5.23 does that for causal models alone, in one place."""
    calls = [
        node
        for file in ("srt/managers/scheduler.py", "srt/dllm/mixin/scheduler.py")
        for node in ast.walk(parsed(root / file) or ast.Module([], []))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == _POLL
    ]
    return len(calls) > 1
