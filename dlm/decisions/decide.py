"""Decisions: typed questions about an input, answered with probabilities from one pass each.

Each question has its own prompt, slot and canvas. Several questions on one canvas would put labels
where the model has never seen an answer begin, and the noise of one answer would affect another.
The input that questions share is encoded once all the same: its cache pages are shared. Reasoning
that a chat template opens is closed at once, so that a label comes where answers do.

A canvas of pure noise is read at a temperature of 1. If the labels differ in their first tokens,
these are compared. Otherwise the probability of a label is summed over all its spellings, each of
which is a product over positions. Positions of a canvas are predicted independently, so such a
product counts one doubt several times: it gives 0.9 to 0.1 where each of two tokens gives 0.75 to
0.25.

A causal model gives probabilities by the chain rule over tokens (`log_probabilities`). Labels share
their beginnings: each slot goes through some of them in sorted order, and encodes only the new
tokens of each.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from dlm.chat import Prompts, PromptTokens
from dlm.decisions.questions import Decision, Question, QuestionAnswer, at
from dlm.decisions.running import (
    FirstTokens,
    Labels,
    LabelSet,
    PendingDecision,
    RunningQuestion,
    answer_of,
    reading_units,
)
from dlm.errors import ContextLengthError, RequestError, UndefinedLogitsError
from dlm.grammar import Reasoning, Vocabulary
from dlm.grammar.vocabulary import common_prefix
from dlm.kernels.vocab_rows import heated
from dlm.logits.sampling import fixed, generator
from dlm.loop.canvas_grid import CanvasGrid
from dlm.loop.interfaces import Cache, CausalLM, Denoiser, Model
from dlm.models.image_tokens import piece_length
from dlm.models.pages import CHUNK
from dlm.policy import Policy
from dlm.prompt_size import check_size
from dlm.request import Request
from dlm.sequence import Sequence as Running
from dlm.stream import Stream

By = Literal["canvas", "causal"]


@dataclass(frozen=True, slots=True)
class _Prepared:
    """Checked question as tokens."""

    question: Question
    request: Request
    prompt: PromptTokens
    values: tuple[str, ...]  # of its labels
    spelled: list[list[int]]  # the labels as tokens


class Decider:
    """Converter of decisions to sequences for an engine; any number of threads may call it at
    once."""

    def __init__(
        self,
        model: Model,
        prompts: Prompts,
        policy: Policy,
        vocabulary: Vocabulary,
        capacity: int | None,
        by_canvas: bool,
        grid: CanvasGrid,
    ):
        """`capacity` is the cache's, in tokens; None: it grows. `by_canvas` is whether passes read
        canvases."""
        self._model: Any = model
        self._prompts, self._policy, self._vocabulary = prompts, policy, vocabulary
        self._capacity, self._by_canvas, self._grid = capacity, by_canvas, grid
        self._reasoning = Reasoning.of(vocabulary)

    def sequences(self, decision: Decision, number: int) -> list[Running]:
        """Return a sequence for each question, in their order; the canvas of each is to be read.
        Events about the decision have its `number`. Raises `RequestError` for a question that
        cannot be answered."""
        if not self._by_canvas:
            raise RequestError("this engine writes left to right: it decides by 'causal' alone")
        pending = PendingDecision(number, len(decision.questions))
        label_sets: dict[tuple[str, ...], LabelSet] = {}
        made: list[Running] = []
        for prepared in self._prepared(decision, "canvas"):
            with at(len(made)):
                if prepared.values not in label_sets:
                    label_sets[prepared.values] = self._labels(prepared)
            sequence = Running(
                number=number,
                request=prepared.request,
                prompt=prepared.prompt.tokens,
                images=prepared.prompt.images,
                stream=Stream(vocabulary=self._vocabulary, reasoning=None, calls=False),
                rng=generator(fixed(prepared.request.seed), self._model.device),
                question=RunningQuestion(
                    prepared.question, len(made), label_sets[prepared.values], pending
                ),
            )
            made.append(sequence)
        return made

    def by_causal(self, decision: Decision, cache: Cache, slots: int) -> list[QuestionAnswer]:
        """Return the answers of a model that reads labels left to right, one question after
        another. All `slots` are empty before and after. Raises `RequestError` for a question that
        cannot be answered."""
        if not isinstance(self._model, CausalLM):
            raise RequestError("by is 'causal': this model's encoder predicts no tokens")
        if self._grid.caches == "whole":
            raise RequestError("by is 'causal': blocks of this model are cached whole")
        answers = []
        for prepared in list(self._prepared(decision, "causal")):
            prompt, stops = prepared.prompt.tokens, self._vocabulary.stops
            logs = log_probabilities(
                self._model, cache, range(slots), prompt, prepared.spelled, stops
            )
            answers.append(answer_of(prepared.question, logs.numpy(), len(prompt)))
        return answers

    def _prepared(self, decision: Decision, by: By) -> Iterator[_Prepared]:
        """Yield the questions; each is checked before the next one is prepared."""
        if not isinstance(self._model, Denoiser):
            raise RequestError(f"a {type(self._model).__name__} has no canvases to read labels in")
        sizes, tokens = dict[tuple[str, ...], int](), 0
        spelled: dict[tuple[str, ...], list[list[int]]] = {}
        try:
            check_size(decision.request, self._model.max_positions, self._vocabulary.longest)
        except ContextLengthError as error:
            raise error.reworded(str(error), "input") from None
        decision = replace(decision, request=self._prompts.fetched(decision.request))
        for place, question, request in decision.prompted():
            with at(place):
                values = tuple(label.value for label in question.labels)
                sizes[values] = sum(len(value.encode()) for value in values)
                self._policy.check_labels(sizes[values], sum(sizes.values()))
                if values not in spelled:
                    spelled[values] = [self._spelled(value) for value in values]
                prompt = self._prompts.encode(request)
                if self._reasoning is not None and not request.is_raw:
                    prompt = prompt._replace(tokens=self._reasoning.closed(prompt.tokens))
                self._check_fits(prompt.tokens, values, spelled[values], by)
                tokens += len(prompt.tokens)
                self._policy.check_prompts(tokens)
            yield _Prepared(question, request, prompt, values, spelled[values])

    def _labels(self, prepared: _Prepared) -> LabelSet:
        """Return the labels to compare on a canvas: their first tokens, or all their spellings."""
        first_tokens = [tokens[0] for tokens in prepared.spelled]
        if _differ_at_once(prepared.spelled):
            return FirstTokens(first_tokens)
        labels, most = Labels(prepared.values, self._vocabulary), self._policy.step_work
        if max(labels.work, reading_units(labels)) > most:
            raise RequestError(
                f"its {len(first_tokens)} labels are too long, or have too little in common: "
                f"reading them takes more than the {most} units of work that a step has"
            )
        return labels

    def _spelled(self, label: str) -> list[int]:
        """Return the tokenizer's tokens of a label; the fewest tokens if those spell another
        text."""
        vocabulary = self._vocabulary
        if len(label) > self._model.canvas_length * vocabulary.longest:
            raise RequestError(f"the label {label[:40]!r}... is longer than any canvas")
        tokens = vocabulary.encode(label)
        if b"".join(vocabulary.pieces[token] for token in tokens) == label.encode():
            return tokens
        fewest = vocabulary.fewest([label.encode()])
        if fewest is None:
            raise RequestError(f"the label {label!r:.80} cannot be spelled in this vocabulary")
        return fewest

    def _check_fits(
        self, prompt: list[int], values: Sequence[str], spelled: list[list[int]], by: By
    ) -> None:
        model, capacity = self._model, self._capacity
        longest = max(range(len(spelled)), key=lambda i: len(spelled[i]))
        L, most = model.canvas_length, len(spelled[longest]) + 1
        summed = by == "canvas" and not _differ_at_once(spelled)
        room = self._grid.first_room(len(prompt)) if summed else L
        if most > room:
            raise RequestError(
                f"the label {values[longest]!r:.80} has {most} tokens with its stop, "
                f"more than a canvas: {room}"
            )
        if len(prompt) > (most_prompt := model.max_positions - L):
            raise ContextLengthError(
                f"a prompt must have at most {most_prompt} tokens here, got {len(prompt)}",
                field="input",
                most=model.max_positions,
                longest_prompt=most_prompt,
                prompt=len(prompt),
            )
        needed = len(prompt) + (most if by == "causal" else 0)
        if capacity is not None and needed > capacity:
            raise ContextLengthError(
                f"{needed} tokens are more than the cache holds: {capacity}",
                field="input",
                most=capacity,
                longest_prompt=capacity - needed + len(prompt),
                prompt=len(prompt),
            )


def _differ_at_once(spelled: Sequence[Sequence[int]]) -> bool:
    """Whether labels differ in their first tokens, so that a canvas is read at one position."""
    return len({tokens[0] for tokens in spelled}) == len(spelled)


TokenTuple = tuple[int, ...]


@torch.inference_mode()
def log_probabilities(
    model: CausalLM,
    cache: Cache,
    slots: Sequence[int],
    prompt: Sequence[int],
    texts: Sequence[Sequence[int]],
    stops: Sequence[int],
) -> Float64[Tensor, " n"]:
    """Return the log-probability of each of `texts` after `prompt`, with any of `stops` after it,
    in nats. No text is empty, and no two are equal. `slots` are empty before and after; as many of
    them are used as there is memory for, and at least the first."""
    tree, order, used = _Tree(texts, stops), sorted(map(tuple, texts)), list[int]()
    needed = len(prompt) + max(map(len, texts))
    try:
        for slot in slots[: len(order)]:
            if used and not cache.fits(needed):
                break
            cache.reserve(slot, needed)
            used.append(slot)
            _encode_prompt(model, cache, slot, prompt[:-1])
        share = -(-len(order) // len(used))
        plans = {slot: order[i * share : (i + 1) * share] for i, slot in enumerate(used)}
        for index in range(share):
            todo = {slot: plan[index] for slot, plan in plans.items() if index < len(plan)}
            prefixes = {slot: plans[slot][index - 1] if index else None for slot in todo}
            _read(model, cache, tree, prompt, todo, prefixes)
    finally:
        for slot in used:
            cache.release(slot)
    return torch.tensor([tree.total(tuple(text)) for text in texts], dtype=torch.float64)


class _Tree:
    """Tree of the beginnings of all texts, with the log-probabilities of the tokens after each."""

    def __init__(self, texts: Sequence[Sequence[int]], stops: Sequence[int]):
        self._whole, self._stops = {tuple(text) for text in texts}, list(stops)
        self._following: dict[TokenTuple, dict[int, None]] = {}
        for text in self._whole:
            for end in range(len(text)):
                self._following.setdefault(text[:end], {})[text[end]] = None
        self._logp: dict[TokenTuple, float] = {}  # of the last token after the ones before it
        self._stopped: dict[TokenTuple, float] = {}  # of a stop after a whole text

    def wanted(self, beginning: TokenTuple) -> list[int]:
        """Return the tokens that may come next; stops of a whole text are last."""
        stops = self._stops if beginning in self._whole else []
        return [*self._following.get(beginning, ()), *stops]

    def learn(self, beginning: TokenTuple, logp: Float[Tensor, " wanted"]) -> None:
        """Note the log-probabilities of `wanted(beginning)`."""
        following = self._following.get(beginning, {})
        for token, value in zip(following, logp.tolist(), strict=False):
            self._logp[(*beginning, token)] = value
        if beginning in self._whole:
            self._stopped[beginning] = float(logp[len(following) :].double().logsumexp(0))

    def total(self, text: TokenTuple) -> float:
        return sum(self._logp[text[: end + 1]] for end in range(len(text))) + self._stopped[text]


def _encode_prompt(model: CausalLM, cache: Cache, slot: int, prompt: Sequence[int]) -> None:
    """Encode a prompt in pieces; pages that another slot holds are shared."""
    cache.attach(slot, prompt)
    while (begin := cache.length(slot)) < len(prompt):
        length = piece_length(prompt[begin:], CHUNK - begin % CHUNK)
        model.predict({slot: prompt[begin : begin + length]}, {}, cache)


def _read(
    model: CausalLM,
    cache: Cache,
    tree: _Tree,
    prompt: Sequence[int],
    todo: dict[int, TokenTuple],
    prefixes: dict[int, TokenTuple | None],
) -> None:
    """Encode the texts in `todo`, by slot, in one pass; `prefixes` are the texts that the
    slots hold."""
    unread: dict[int, list[int]] = {}
    last: dict[int, int] = {}  # number of tokens in `unread` after which logits are needed
    beginnings: list[TokenTuple] = []
    for slot, text in todo.items():
        before = prefixes[slot]
        kept = cache.length(slot)
        if before is not None:
            kept = cache.rewind(slot, len(prompt) + common_prefix(before, text))
        unread[slot] = [*prompt, *text][kept:]
        ends = range(max(0, kept - len(prompt) + 1), len(text) + 1)
        last[slot] = len(ends)
        beginnings += [text[:end] for end in ends]
    logits = model.predict(unread, last, cache)
    logp = heated(logits, torch.ones_like(logits[:, 0].float()), model.softcap).log_softmax(-1)
    for text, values in _gathered(logp, tree, beginnings):
        if values.isnan().any():
            raise UndefinedLogitsError
        tree.learn(text, values)


def _gathered(
    logp: Float[Tensor, "n V"], tree: _Tree, texts: Sequence[TokenTuple]
) -> Iterator[tuple[TokenTuple, Tensor]]:
    """Yield the values wanted after each of `texts`; they are fetched in one copy."""
    continuations = [tree.wanted(text) for text in texts]
    sizes = [len(tokens) for tokens in continuations]
    rows = torch.arange(len(texts)).repeat_interleave(torch.tensor(sizes))
    tokens = torch.tensor([token for followers in continuations for token in followers])
    values = logp[rows.to(logp.device), tokens.to(logp.device)].cpu()
    yield from zip(texts, values.split(sizes), strict=True)
