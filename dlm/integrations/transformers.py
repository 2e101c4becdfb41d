"""The constraint within transformers' own `generate`, as a logits processor.

    constrain = Constrain(model, tokenizer)
    processors = constrain(JsonSchema(schema), max_new_tokens=256)
    model.generate(input_ids, max_new_tokens=256, logits_processor=processors)

For `DiffusionGemmaForBlockDiffusion`, whose `generate` denoises canvases, and for causal models.

Constraints within `DiffusionGemmaForBlockDiffusion.generate`.

There the argmax of the processed logits is what is committed, canvas after canvas, and their
entropies and draws are what is accepted: what `dlm.logits.guided` rewrites logits for.

Constraints within `generate` of causal models: the tokens that may come next, and no others.

Greedy, drawn, or in beams: what a row has written is compared with what its matcher has read, and
beams that took each other's place are read again from where they differ.
"""

from collections.abc import Callable, Sequence
from functools import partial
from sys import maxsize
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from dlm.errors import DlmError
from dlm.grammar import Compiled, Compiler, Fixed, Frontier, Matcher, Reasoning, Spec, Vocabulary
from dlm.grammar.masks.bits import unpacked
from dlm.grammar.tokens import common_prefix
from dlm.logits.guided import GuidedCanvas, LogitsGuide, name_rows_


class CanvasProcessor(LogitsProcessor):
    """For one call of `generate`. `B` prompts, canvases of `L` positions, `V` tokens."""

    def __init__(self, constraints: Sequence[Frontier | None], vocabulary: Vocabulary):
        """One of each prompt; None leaves its logits as they are."""
        self._constraints, self._vocabulary = list(constraints), vocabulary
        self._ended = [False] * len(self._constraints)
        self._said: Tensor | None = None  # [B, n] prompts, and canvases committed behind them
        self._guide = LogitsGuide(len(vocabulary), work=maxsize)

    def __call__(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        input_ids: Int[Tensor, "B n"],
        scores: Float[Tensor, "B L V"],
        cur_step: int | Int[Tensor, ""],
    ) -> Float[Tensor, "B L V"]:
        """`cur_step` counts the passes over this canvas that are left, this one with them."""
        self._follow(input_ids)
        L, fixed = scores.shape[1], Fixed(last=int(cur_step) == 1)
        guided = scores.clone(memory_format=torch.contiguous_format)
        canvases = [
            GuidedCanvas(constraint=one, first=i * L, length=L, fixed=fixed)
            for i, one in enumerate(self._constraints)
            if one is not None and not self._ended[i]
        ]
        for read in self._guide.guide_(guided.flatten(0, 1), canvases):
            if isinstance(read, Exception):
                raise read
        rows = torch.arange(L, device=scores.device)
        for i, ended in enumerate(self._ended):
            if ended:
                name_rows_(guided[i], rows, torch.full_like(rows, self._vocabulary.pad))
        return guided

    def _follow(self, input_ids: Int[Tensor, "B n"]) -> None:
        """Commit the canvas that has come to `input_ids` since the last call."""
        if len(input_ids) != len(self._constraints):
            raise DlmError(
                f"{len(self._constraints)} constraints for a batch of {len(input_ids)} prompts"
            )
        before, self._said = self._said, input_ids
        n = input_ids.shape[1] if before is None else before.shape[1]
        if before is not None and not torch.equal(input_ids[:, :n], before):
            raise DlmError("these prompts are others: each call of `generate` takes new processors")
        if input_ids.shape[1] == n:
            return
        for i, tokens in enumerate(input_ids[:, n:].tolist()):
            constraint = self._constraints[i]
            if constraint is None or self._ended[i]:
                continue
            stops = self._vocabulary.stops
            end = next((at for at, token in enumerate(tokens, 1) if token in stops), None)
            constraint.commit(tokens[:end])
            self._ended[i] = end is not None


class TokenProcessor(LogitsProcessor):
    """For one call of `generate`. `R` rows, as many for each prompt, beams say; `V` tokens."""

    def __init__(
        self,
        matchers: Sequence[Callable[[], Matcher] | None],
        vocabulary: Vocabulary,
        budget: int,
    ):
        """What makes a matcher, for each prompt; None leaves its logits as they are. `budget`
        bounds a row's tokens, the stop among them."""
        self._matchers, self._vocabulary, self._budget = list(matchers), vocabulary, budget
        self._prompts: Tensor | None = None  # [R, n]
        self._rows: list[_Row | None] = []

    def __call__(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, input_ids: Int[Tensor, "R n"], scores: Float[Tensor, "R V"]
    ) -> Float[Tensor, "R V"]:
        if self._prompts is None:
            self._begin(input_ids)
        begin = self._begun(input_ids)
        scores = scores.clone()
        for row, tokens, logits in zip(
            self._rows, input_ids[:, begin:].tolist(), scores, strict=True
        ):
            if row is None or not self._follow(row, tokens) or row.matcher.ended:
                continue
            words = row.matcher.allowed(self._budget - row.matcher.position)
            forbidden = torch.from_numpy(unpacked(~words)[: len(logits)].astype(bool))
            logits.masked_fill_(forbidden.to(logits.device), -torch.inf)
        return scores

    def _begin(self, input_ids: Int[Tensor, "R n"]) -> None:
        each, rest = divmod(len(input_ids), len(self._matchers))
        if rest or not each:
            raise DlmError(
                f"{len(self._matchers)} constraints for a batch of {len(input_ids)} rows"
            )
        self._prompts, self._beams = input_ids, each > 1
        self._rows = [make and _Row(make()) for make in self._matchers for _ in range(each)]

    def _begun(self, input_ids: Int[Tensor, "R n"]) -> int:
        """Where the answers begin."""
        prompts = input_ids if self._prompts is None else self._prompts
        n = prompts.shape[1]
        if input_ids.shape[0] != len(prompts) or not torch.equal(input_ids[:, :n], prompts):
            raise DlmError("these prompts are others: each call of `generate` takes new processors")
        return n

    def _follow(self, row: "_Row", tokens: list[int]) -> bool:
        """Read what a row has written. False where that is not allowed: of several beams one may
        be so where there are not as many tokens to go on with, and its score is -inf then."""
        stops = self._vocabulary.stops
        end = next((at for at, token in enumerate(tokens, 1) if token in stops), len(tokens))
        followed = row.follow(tokens[:end])
        if not followed and not self._beams:
            raise DlmError(
                f"token {tokens[len(row.said)]} was written, which the constraint forbids: "
                "does another logits processor come behind it?"
            )
        return followed


class _Row:
    """What one sequence has written, as far as its matcher takes it."""

    def __init__(self, matcher: Matcher):
        self.matcher = matcher
        self.said: list[int] = []

    def follow(self, tokens: list[int]) -> bool:
        """Read `tokens`, from where they are new; False if the grammar does not take them."""
        kept = common_prefix(self.said, tokens)
        self.matcher.rollback(len(self.said) - kept)
        kept += self.matcher.accept_all(tokens[kept:])
        self.said = tokens[:kept]
        return kept == len(tokens)


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
