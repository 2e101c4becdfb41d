"""Constraints within `generate` of causal models: the tokens that may come next, and no others.

Greedy, drawn, or in beams: what a row has written is compared with what its matcher has read, and
beams that took each other's place are read again from where they differ.
"""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import LogitsProcessor

from dlm.errors import DlmError
from dlm.grammar import Matcher, Vocabulary
from dlm.grammar.common import common
from dlm.grammar.masks.bits import unpacked


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
        kept = common(self.said, tokens)
        self.matcher.rollback(len(self.said) - kept)
        kept += self.matcher.accept_all(tokens[kept:])
        self.said = tokens[:kept]
        return kept == len(tokens)
