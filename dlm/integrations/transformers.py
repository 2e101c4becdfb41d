"""The constraint within transformers' own `generate`, as a logits processor.

    constrain = Constrain(model, tokenizer)
    processors = constrain(JsonSchema(schema), max_new_tokens=256)
    model.generate(input_ids, max_new_tokens=256, logits_processor=processors)

For `DiffusionGemmaForBlockDiffusion`, whose `generate` denoises canvases, and for causal models.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from transformers import LogitsProcessorList, PreTrainedModel, PreTrainedTokenizerBase

from dlm.errors import DlmError
from dlm.grammar import Compiled, Compiler, Frontier, Matcher, Reasoning, Spec, Vocabulary
from dlm.integrations.canvas_processor import CanvasProcessor
from dlm.integrations.token_processor import TokenProcessor


class Constrain:
    """Makes logits processors for one model. Grammars that were compiled once are remembered."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        thought: tuple[str, str] | None = None,
    ):
        """Stop tokens are those of the model's generation config. `thought` are the texts that open
        and close reasoning; by default Gemma 4's, if the tokenizer has them."""
        settings: Any = model.generation_config
        stops = settings.eos_token_id
        if stops is None:
            raise DlmError("the model's generation_config has no eos_token_id: no text could end")
        stops = (stops,) if isinstance(stops, int) else tuple(stops)
        pad = stops[0] if settings.pad_token_id is None else settings.pad_token_id
        size = model.config.get_text_config().vocab_size
        self.vocabulary = Vocabulary.from_tokenizer(tokenizer, size, stops, pad, thought)
        self._compiler = Compiler(self.vocabulary)
        self._in_canvases = hasattr(model.config, "canvas_length")

    def __call__(
        self,
        constraints: Spec | Sequence[Spec | None] | None,
        max_new_tokens: int,
        thinking: bool = False,
        thinking_budget: int | None = None,
    ) -> LogitsProcessorList:
        """For one call of `generate`, with the same `max_new_tokens`: one constraint for each of
        its prompts, None for free text. With `thinking`, reasoning may come first.

        A prompt ends where the answer begins: without thinking, Gemma 4's behind an empty thought
        channel, as `Chat.prompt` has it. The text closes within `max_new_tokens`. Raises
        `GrammarError` for a constraint that cannot be kept in so many, and `DlmError` for one that
        only a check of the finished text decides: nothing can be taken back within `generate`.
        """
        if constraints is None or isinstance(constraints, Spec):
            constraints = [constraints]
        reasoning = Reasoning.of(self.vocabulary, thinking_budget) if thinking else None
        compiled = [spec and self._compile(spec) for spec in constraints]
        if self._in_canvases:
            kept = [one and Frontier(one, max_new_tokens, reasoning) for one in compiled]
            return LogitsProcessorList([CanvasProcessor(kept, self.vocabulary)])
        made = [one and _matchers(one, max_new_tokens, reasoning) for one in compiled]
        return LogitsProcessorList([TokenProcessor(made, self.vocabulary, max_new_tokens)])

    def _compile(self, spec: Spec) -> Compiled:
        compiled = self._compiler.compile(spec)
        if compiled.checked:
            raise DlmError(
                f"this {spec.kind} asks for more than a grammar can say: dlm.Engine checks it at "
                "the end, and takes back what is wrong, which `generate` cannot"
            )
        return compiled


def _matchers(
    compiled: Compiled, budget: int, reasoning: Reasoning | None
) -> Callable[[], Matcher]:
    """Makes matchers. Raises `GrammarError` if no text fits the budget."""
    matcher = Matcher(compiled, reasoning)
    matcher.check_budget(budget)
    return partial(Matcher, compiled, reasoning)
