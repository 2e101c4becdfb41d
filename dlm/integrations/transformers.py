"""Constraints within transformers' own `generate`, as logits processors.

    constrain = Constrain(model, tokenizer)
    processors = constrain(JsonSchema(schema), max_new_tokens=256)
    model.generate(input_ids, max_new_tokens=256, logits_processor=processors)

`CanvasProcessor` is for `DiffusionGemmaForBlockDiffusion`, whose `generate` denoises canvases. It
commits the argmax of the processed logits, and accepts positions by their entropies and samples;
`dlm.logits.guided` rewrites the logits accordingly.

`BlockProcessor` is for a loop of one's own that reveals masks, where a model's remote code has no
place for a processor.

`TokenProcessor` is for causal models, greedy, sampled or with beams: it masks the tokens that may
not come next. A row's tokens are compared with those that its matcher has read, and read again from
the first difference, since beams replace each other.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from sys import maxsize

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
from dlm.grammar.masks import unpacked
from dlm.grammar.vocabulary import common_prefix
from dlm.integrations.causal_lm import special_tokens
from dlm.integrations.unmasking import standing
from dlm.logits.guided import GuidedCanvas, LogitsGuide, name_rows_

Prompt = Sequence[int]  # tokens
_OTHER_PROMPTS = "the prompts have changed: each call of `generate` needs new processors"


class CanvasProcessor(LogitsProcessor):
    """Processor for one call of `generate` with canvases: `B` prompts, `L` positions, `V` ids."""

    def __init__(
        self,
        constraints: Sequence[Callable[[Prompt], Frontier] | None],
        vocabulary: Vocabulary,
    ):
        """`constraints` has a function for each prompt that makes its constraint; None leaves its
        logits as they are."""
        self._makers, self._vocabulary = list(constraints), vocabulary
        self._constraints: list[Frontier | None] = []
        self._ended = [False] * len(self._makers)
        self._committed: Tensor | None = None  # [B, n] prompts and committed canvases
        self._guide = LogitsGuide(len(vocabulary), work=maxsize)

    def __call__(  # pyright: ignore[reportIncompatibleMethodOverride]
        self,
        input_ids: Int[Tensor, "B n"],
        scores: Float[Tensor, "B L V"],
        cur_step: int | Int[Tensor, ""],
    ) -> Float[Tensor, "B L V"]:
        """`cur_step` is the number of passes over this canvas that are left, including this one."""
        self._follow(input_ids)
        L, fixed = scores.shape[1], Fixed(last=int(cur_step) == 1)
        guided = scores.clone(memory_format=torch.contiguous_format)
        canvases = [
            GuidedCanvas(constraint=constraint, first=i * L, length=L, fixed=fixed)
            for i, constraint in enumerate(self._constraints)
            if constraint is not None and not self._ended[i]
        ]
        for guidance in self._guide.guide_(guided.flatten(0, 1), canvases):
            if isinstance(guidance, Exception):
                raise guidance
        rows = torch.arange(L, device=scores.device)
        for i, ended in enumerate(self._ended):
            if ended:
                name_rows_(guided[i], rows, torch.full_like(rows, self._vocabulary.pad))
        return guided

    def _follow(self, input_ids: Int[Tensor, "B n"]) -> None:
        """Commit the canvas that `input_ids` has gained since the last call, if any."""
        if len(input_ids) != len(self._makers):
            raise DlmError(
                f"{len(self._makers)} constraints for a batch of {len(input_ids)} prompts"
            )
        before, self._committed = self._committed, input_ids
        if before is None:
            prompts = input_ids.tolist()
            self._constraints = [
                make and make(prompt) for make, prompt in zip(self._makers, prompts, strict=True)
            ]
        n = input_ids.shape[1] if before is None else before.shape[1]
        if before is not None and not torch.equal(input_ids[:, :n], before):
            raise DlmError(_OTHER_PROMPTS)
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
    """Processor for one call of `generate` by tokens: `R` rows, equally many for each prompt (its
    beams), and `V` tokens."""

    def __init__(
        self,
        matchers: Sequence[Callable[[Prompt], Matcher] | None],
        vocabulary: Vocabulary,
        budget: int,
    ):
        """`matchers` has a function for each prompt that makes a matcher; None leaves its logits as
        they are. `budget` bounds a row's tokens, the stop token included."""
        self._matchers, self._vocabulary, self._budget = list(matchers), vocabulary, budget
        self._prompts: Tensor | None = None  # [R, n]
        self._rows: list[_Row | None] = []

    def __call__(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, input_ids: Int[Tensor, "R n"], scores: Float[Tensor, "R V"]
    ) -> Float[Tensor, "R V"]:
        prompts = self._begin(input_ids) if self._prompts is None else self._prompts
        n = prompts.shape[1]
        if input_ids.shape[0] != len(prompts) or not torch.equal(input_ids[:, :n], prompts):
            raise DlmError(_OTHER_PROMPTS)
        scores = scores.clone()
        for row, tokens, logits in zip(self._rows, input_ids[:, n:].tolist(), scores, strict=True):
            if row is None or not self._follow(row, tokens) or row.matcher.ended:
                continue
            words = row.matcher.allowed(self._budget - row.matcher.position)
            forbidden = torch.from_numpy(unpacked(~words)[: len(logits)].astype(bool))
            logits.masked_fill_(forbidden.to(logits.device), -torch.inf)
        return scores

    def _begin(self, input_ids: Int[Tensor, "R n"]) -> Int[Tensor, "R n"]:
        """Make the rows' matchers; `input_ids` are the prompts, which are returned."""
        beams, extra = divmod(len(input_ids), len(self._matchers))
        if extra or not beams:
            raise DlmError(
                f"{len(self._matchers)} constraints for a batch of {len(input_ids)} rows"
            )
        self._prompts, self._beams = input_ids, beams > 1
        makers = [make for make in self._matchers for _ in range(beams)]
        self._rows = [
            make and _Row(make(prompt))
            for make, prompt in zip(makers, input_ids.tolist(), strict=True)
        ]
        return input_ids

    def _follow(self, row: "_Row", tokens: list[int]) -> bool:
        """Read the tokens of a row; return False if the grammar forbids them. That may happen to
        one of several beams, with a score of -inf, if fewer tokens than beams are allowed. Raises
        `DlmError` if there is only one."""
        stops = self._vocabulary.stops
        end = next((at for at, token in enumerate(tokens, 1) if token in stops), len(tokens))
        followed = row.follow(tokens[:end])
        if not followed and not self._beams:
            raise DlmError(
                f"token {tokens[len(row.tokens)]} was written, which the constraint forbids: "
                "does another logits processor come after it?"
            )
        return followed


class _Row:
    """Tokens of one sequence, as far as its matcher accepts them."""

    def __init__(self, matcher: Matcher):
        self.matcher = matcher
        self.tokens: list[int] = []

    def follow(self, tokens: list[int]) -> bool:
        """Read `tokens` from the first new one; return False if the grammar forbids one."""
        kept = common_prefix(self.tokens, tokens)
        self.matcher.rollback(len(self.tokens) - kept)
        kept += self.matcher.accept_all(tokens[kept:])
        self.tokens = tokens[:kept]
        return kept == len(tokens)


class BlockProcessor:
    """Processor for one text that a loop of your own writes in blocks of masks: `L` positions, `V`
    tokens. The positions that the loop reveals must take the argmax of the processed logits."""

    def __init__(self, constraint: Frontier, vocabulary: Vocabulary, mask: int):
        self._constraint, self._stops, self._mask = constraint, vocabulary.stops, mask
        self._guide = LogitsGuide(len(vocabulary), work=maxsize)

    def __call__(
        self, block: Int[Tensor, " L"], logits: Float[Tensor, "L V"], last: bool = False
    ) -> Float[Tensor, "L V"]:
        """Return the logits of a pass over `block`, which holds the mask where no token stands.

        Each pass has a masked position that is not flat, and whose argmax may be revealed.
        `last` says that all positions are revealed after this pass. Raises `GrammarError` for a
        token that is not of processed logits.
        """
        guided = logits.clone(memory_format=torch.contiguous_format)
        guided[:, self._mask] = -torch.inf
        canvas = GuidedCanvas(
            constraint=self._constraint,
            first=0,
            length=len(block),
            fixed=Fixed(held=standing(block.tolist(), self._mask), last=last),
            masked=True,
        )
        (guidance,) = self._guide.guide_(guided, [canvas])
        if isinstance(guidance, Exception):
            raise guidance
        return guided

    def commit(self, block: Int[Tensor, " L"]) -> bool:
        """Move past a block without masks; returns whether the text has ended in it."""
        tokens = block.tolist()
        if self._mask in tokens:
            raise DlmError(f"position {tokens.index(self._mask)} of the block is still a mask")
        end = next((at for at, token in enumerate(tokens, 1) if token in self._stops), None)
        self._constraint.commit(tokens[:end])
        return end is not None


class Constrain:
    """Factory of logits processors for one model. Compiled grammars are kept."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        thought: tuple[str, str] | None = None,
    ):
        """Stop tokens are those of the model's generation config. `thought` has the texts that open
        and close reasoning; None: those of Gemma 4, if the tokenizer has them."""
        stops, pad = special_tokens(model)
        size = model.config.get_text_config().vocab_size
        self.vocabulary = Vocabulary.from_tokenizer(tokenizer, size, stops, pad, thought)
        self._compiler = Compiler(self.vocabulary)
        self._reasoning = Reasoning.of(self.vocabulary)
        self._in_canvases = hasattr(model.config, "canvas_length")

    def __call__(
        self,
        constraints: Spec | Sequence[Spec | None] | None,
        max_new_tokens: int,
        thinking: bool = False,
        thinking_budget: int | None = None,
    ) -> LogitsProcessorList:
        """Return processors for one call of `generate` with the same `max_new_tokens`.

        `constraints` has one for each prompt, None for free text. With `thinking`, reasoning may
        come first, of at most `thinking_budget` tokens. Without it, reasoning that the end of a
        prompt has opened is closed at once, and a prompt of Gemma 4 has to end with an empty
        thought channel, as from `Chat.prompt`. Answers are complete within `max_new_tokens`.

        Raises `GrammarError` for a constraint that needs more tokens (`generate` raises it if the
        prompt has opened the reasoning, and there is no room to close it), and `DlmError` for one
        that only a check of the finished text decides, since `generate` cannot take tokens back.
        """
        if constraints is None or isinstance(constraints, Spec):
            constraints = [constraints]
        answers = [
            spec and self._answer(spec, max_new_tokens, thinking, thinking_budget)
            for spec in constraints
        ]
        if self._in_canvases:
            frontiers = [answer and answer.frontier for answer in answers]
            return LogitsProcessorList([CanvasProcessor(frontiers, self.vocabulary)])
        matchers = [answer and answer.matcher for answer in answers]
        return LogitsProcessorList([TokenProcessor(matchers, self.vocabulary, max_new_tokens)])

    def blocks(
        self,
        constraint: Spec,
        max_new_tokens: int,
        mask: int,
        thinking: bool = False,
        thinking_budget: int | None = None,
        prompt: Prompt = (),
    ) -> BlockProcessor:
        """Return a processor for one text whose blocks a loop of your own unmasks, such as those in
        the remote code of LLaDA2, SDAR and Nemotron-Labs-Diffusion, which take no processors.
        `mask` is the token of positions without a token: a control token, or `DlmError` is raised.
        `prompt` has the tokens before the text, whose end may have opened reasoning. Otherwise as a
        call of this object."""
        if mask not in self.vocabulary.control:
            raise DlmError(
                f"mask must be a control token of the tokenizer, got {mask}: a grammar takes any "
                "other token for text"
            )
        answer = self._answer(constraint, max_new_tokens, thinking, thinking_budget)
        return BlockProcessor(answer.frontier(prompt), self.vocabulary, mask)

    def _answer(
        self, spec: Spec, budget: int, thinking: bool, thinking_budget: int | None
    ) -> "_ConstrainedAnswer":
        """Compile a constraint. Raises `GrammarError` if no text fits the budget."""
        compiled = self._compiler.compile(spec)
        if compiled.checked:
            raise DlmError(
                f"this {spec.kind} requires more than a grammar can enforce: dlm.Engine checks the "
                "finished text and takes tokens back, which `generate` cannot"
            )
        reasoning = self._reasoning and replace(self._reasoning, budget=thinking_budget)
        answer = _ConstrainedAnswer(compiled, budget, reasoning, thinking)
        answer.matcher(())  # checks the budget before there is a prompt
        return answer


@dataclass(frozen=True, slots=True)
class _ConstrainedAnswer:
    """Answer under a constraint, before its prompt is known."""

    compiled: Compiled
    budget: int  # tokens, the stop included
    reasoning: Reasoning | None  # None: the tokenizer has no markers
    thinking: bool  # whether reasoning is requested

    def matcher(self, prompt: Prompt) -> Matcher:
        """Return a matcher of the text after `prompt`. Raises `GrammarError` if no text fits."""
        matcher = Matcher(self.compiled, self._reasoning_after(prompt))
        matcher.check_budget(self.budget)
        return matcher

    def frontier(self, prompt: Prompt) -> Frontier:
        """Return a frontier, likewise."""
        return Frontier(self.compiled, self.budget, self._reasoning_after(prompt))

    def _reasoning_after(self, prompt: Prompt) -> Reasoning | None:
        return self.reasoning and self.reasoning.after(prompt).constrained(self.thinking)
