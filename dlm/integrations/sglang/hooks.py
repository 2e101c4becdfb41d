"""Hooks into SGLang: its table of algorithms, and the functions that requests with grammars pass.

Each hook first asks whether it serves a request with a constraint of the plugin's, and otherwise
changes nothing. SGLang's registry of hooks puts them in place.
"""

# pyright: reportMissingImports=false

import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from sglang.srt.dllm import algorithm
from sglang.srt.dllm.config import DllmConfig
from sglang.srt.managers.schedule_batch import FINISH_ABORT, FINISH_LENGTH
from sglang.srt.parser.reasoning_parser import ReasoningParser
from sglang.srt.plugins.hook_registry import HookRegistry, HookType
from sglang.srt.runtime_context import get_exec, get_serving

from dlm.errors import DlmError, RequestError, failure
from dlm.grammar import BudgetError, Vocabulary
from dlm.integrations.sglang.algorithms import Constrained
from dlm.integrations.sglang.backend import BoundGrammar, DiffusionGrammarBackend
from dlm.integrations.sglang.masked import Masked
from dlm.integrations.sglang.noise import Renoised
from dlm.integrations.sglang.self_check import WORDS, check_algorithm
from dlm.integrations.sglang.settings import PluginSettings

_LOG = logging.getLogger("sglang.dlm")
_SRT = "sglang.srt"
_GRAMMARS = f"{_SRT}.constrained.grammar_manager.GrammarManager"
ALGORITHMS: dict[str, type[Constrained]] = {
    "LowConfidence": Masked,
    "JointThreshold": Masked,
    "JointThresholdInDel": Masked,
    "Gemma4Renoise": Renoised,
}


def install(polls: bool) -> None:
    """Register the hooks, and put constrained algorithms into SGLang's table. `polls`: whether
    SGLang itself queues requests with compiled constraints for diffusion models."""
    settings = PluginSettings.read()
    algorithms = {
        name: kind.of(algorithm.algo_name_to_cls[name], settings)
        for name, kind in ALGORITHMS.items()
        if not issubclass(algorithm.algo_name_to_cls[name], Constrained)
    }
    hooks = [
        (f"{_SRT}.constrained.base_grammar_backend.create_grammar_backend", created, "AROUND"),
        (f"{_GRAMMARS}.process_req_with_grammar", processed, "AFTER"),
        (f"{_GRAMMARS}.get_ready_grammar_requests", ready, "AFTER"),
        (f"{_SRT}.managers.schedule_batch.Req.update_finish_state", finishing, "AROUND"),
    ]
    if not polls:
        hooks.append((f"{_SRT}.managers.scheduler.Scheduler.get_new_batch_dllm", poll, "BEFORE"))
    for target, hook, kind in hooks:
        HookRegistry.register(target, hook, HookType[kind])
    algorithm.algo_name_to_cls.update(algorithms)


def created(
    original: Callable[..., Any],
    server_args: Any,
    tokenizer: Any,
    vocab_size: int,
    eos_token_ids: Any = None,
    think_end_ids: Any = None,
    **options: Any,
) -> Any:
    """Make the grammar backend: the plugin's own if the model is a diffusion model that it
    serves, and otherwise SGLang's. If the plugin's fails its check, SGLang's backend is made, and
    its algorithm is in its table again, which may refuse grammars."""
    execution = get_exec()
    name = execution.dllm.dllm_algorithm
    if name in ALGORITHMS and execution.kernel.grammar_backend != "none":
        try:
            return _backend(server_args, tokenizer, vocab_size, eos_token_ids, think_end_ids)
        except Exception:
            _LOG.exception("dlm: grammars are left to SGLang, since the plugin fails its check")
            _restore(name)
    return original(
        server_args,
        tokenizer,
        vocab_size,
        eos_token_ids=eos_token_ids,
        think_end_ids=think_end_ids,
        **options,
    )


def _restore(name: str) -> None:
    """Put SGLang's own algorithm back into its table."""
    table = algorithm.algo_name_to_cls
    if issubclass(table[name], Constrained):
        table[name] = table[name].__mro__[table[name].__mro__.index(Constrained) + 1]


def _backend(
    server_args: Any, tokenizer: Any, vocab_size: int, eos_token_ids: Any, think_end_ids: Any
) -> DiffusionGrammarBackend:
    """Return the plugin's grammar backend, after a check of the algorithm that it works with."""
    config = DllmConfig.from_server_args(server_args)
    stops = {tokenizer.eos_token_id, *(eos_token_ids or ())} - {None}
    stops = sorted(token for token in stops if token < vocab_size)
    pad = tokenizer.pad_token_id
    pad = pad if pad is not None and pad < vocab_size else stops[0]
    vocabulary = Vocabulary.from_tokenizer(
        tokenizer, vocab_size, stops, pad, control=_special(config)
    )
    thought = None
    if think_end_ids and (name := get_serving().reasoning_parser):
        parser = ReasoningParser(model_type=name, stream_reasoning=False, tokenizer=tokenizer)
        opening = tokenizer.encode(parser.detector.think_start_token, add_special_tokens=False)
        thought = opening, list(think_end_ids)
    backend = DiffusionGrammarBackend(vocabulary, thought)
    checked = algorithm.get_algorithm(config)
    check_algorithm(checked, backend.compiled(WORDS), vocab_size, server_args.device)
    _LOG.info("dlm: constraints are served with this diffusion model")
    return backend


def _special(config: Any) -> list[int]:
    """Return the tokens of a diffusion model that are no text: masks, and marks of edits."""
    tokens = config.mask_id, config.delete_token_id, config.split_token_id
    return [token for token in tokens if token is not None and token >= 0]


def processed(result: Any, manager: Any, req: Any, *args: Any, **options: Any) -> Any:
    """Bind a constraint that was kept ready."""
    _bind(req, manager.scheduler)
    return result


def ready(result: Any, manager: Any, *args: Any, **options: Any) -> Any:
    """Bind the constraints that have been compiled."""
    for req in result:
        _bind(req, manager.scheduler)
    return result


def poll(scheduler: Any, *args: Any, **options: Any) -> None:
    """Queue the requests whose constraints are compiled. SGLang itself does that for causal models
    alone, so that a diffusion model's request would wait for ever."""
    manager = scheduler.grammar_manager
    own = isinstance(manager.grammar_backend, DiffusionGrammarBackend)
    if own and manager.has_waiting_grammars():
        for req in manager.get_ready_grammar_requests():
            scheduler._add_request_to_queue(req)


def finishing(original: Callable[..., Any], req: Any, *args: Any, **options: Any) -> Any:
    """End a request that failed, with its reason. An answer that its budget squeezed ends with the
    reason `length`."""
    grammar = req.grammar
    if not isinstance(grammar, BoundGrammar):
        return original(req, *args, **options)
    if not req.finished() and req.to_finish is None and (error := grammar.check()) is not None:
        req.to_finish = FINISH_ABORT(str(error), *_status(error))
    result = original(req, *args, **options)
    reason = req.finished_reason
    if reason is not None and not isinstance(reason, FINISH_ABORT) and grammar.squeezed:
        length = len(req.output_ids) if req.finished_len is None else req.finished_len
        if req.output_ids[length - 1] in grammar.stops:
            length -= 1  # SGLang drops it itself where a stop is the reason
        req.finished_len, req.finished_reason = length, FINISH_LENGTH(length=length)
    return result


def _bind(req: Any, scheduler: Any) -> None:
    """Bind a request's constraint to it. If no answer fits, that is the request's error."""
    grammar = req.grammar
    if not isinstance(grammar, BoundGrammar) or grammar.bound:
        return
    if req.sampling_params.max_new_tokens == 0:  # it only reads the prompt that others share
        req.grammar = None
        return
    prompt = len(req.origin_input_ids)
    budget = min(req.sampling_params.max_new_tokens, _room(scheduler, prompt))
    custom = req.sampling_params.custom_params
    limit = custom.get("thinking_budget") if isinstance(custom, dict) else None
    limit = limit if type(limit) is int else None
    try:
        grammar.bind(prompt, lambda: req.output_ids, budget, req.require_reasoning, limit)
    except Exception as error:
        problem = failure(error)
        req.set_finish_with_abort(str(problem), *_status(problem))


def _room(scheduler: Any, prompt: int) -> int:
    """Return how many tokens fit the context after a prompt. SGLang ends a request once a whole
    block does not; blocks of masks begin with the context's, and canvases of noise after it."""
    block, context = scheduler.dllm_config.block_size, scheduler.model_config.context_len
    if scheduler.dllm_config.requires_separate_context_encoding:
        return (context - prompt) // block * block
    return context // block * block - prompt


def _status(error: DlmError) -> tuple[HTTPStatus, str]:
    """Return the status of HTTP, and SGLang's kind of error, of a request that failed."""
    if isinstance(error, RequestError) or isinstance(error.__cause__, BudgetError):
        return HTTPStatus.BAD_REQUEST, "BadRequestError"
    return HTTPStatus.INTERNAL_SERVER_ERROR, "InternalServerError"
