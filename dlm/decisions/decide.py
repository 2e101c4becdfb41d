"""Decisions: typed questions about an input, answered with probabilities from one pass each.

Each question has its own prompt, slot and canvas. Several questions on one canvas would put labels
where the model has never seen an answer begin, and the noise of one answer would affect another.
The input that questions share is encoded once all the same: its cache pages are shared.

A canvas of pure noise is read at a temperature of 1. If the labels differ in their first tokens,
these are compared. Otherwise the probability of a label is summed over all its spellings, each of
which is a product over positions. Positions of a canvas are predicted independently, so such a
product counts one doubt several times: it gives 0.9 to 0.1 where each of two tokens gives 0.75 to
0.25.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dlm.chat import Chat
from dlm.decisions.labels import FirstTokens, Labels
from dlm.decisions.likelihood import log_probabilities
from dlm.decisions.questions import Decision, Question, QuestionAnswer, at
from dlm.decisions.running import (
    LabelSet,
    PendingDecision,
    RunningQuestion,
    answer_of,
    reading_units,
)
from dlm.errors import RequestError
from dlm.grammar import Vocabulary
from dlm.logits.sampling import fixed, generator
from dlm.loop.interfaces import Cache, CausalLM, Denoiser, Model
from dlm.policy import Policy
from dlm.request import Request, check_tokens
from dlm.sequence import Sequence as Running
from dlm.stream import Stream

By = Literal["canvas", "causal"]


@dataclass(frozen=True, slots=True)
class _Prepared:
    """Checked question as tokens."""

    question: Question
    request: Request
    prompt: list[int]
    values: tuple[str, ...]  # of its labels
    spelled: list[list[int]]  # the labels as tokens


class Decider:
    """Converter of decisions to sequences for an engine; any number of threads may call it at
    once."""

    def __init__(
        self,
        model: Model,
        chat: Chat,
        policy: Policy,
        vocabulary: Vocabulary,
        capacity: int | None,
        by_canvas: bool,
    ):
        """`capacity` is the cache's, in tokens; None: it grows. `by_canvas` is whether passes read
        canvases."""
        self._model: Any = model
        self._chat, self._policy, self._vocabulary = chat, policy, vocabulary
        self._capacity, self._by_canvas = capacity, by_canvas

    def sequences(self, decision: Decision, number: int) -> list[Running]:
        """Return a sequence for each question, in their order; the canvas of each is to be read.
        Events about the decision have its `number`. Raises `RequestError` for a question that
        cannot be answered."""
        if not self._by_canvas:
            raise RequestError("this engine writes left to right: it decides by 'causal' alone")
        pending = PendingDecision(number, len(decision.questions))
        known: dict[tuple[str, ...], LabelSet] = {}
        made: list[Running] = []
        for one in self._prepared(decision, "canvas"):
            with at(len(made)):
                if one.values not in known:
                    known[one.values] = self._labels(one)
            sequence = Running(
                number=number,
                request=one.request,
                prompt=one.prompt,
                stream=Stream(vocabulary=self._vocabulary, reasoning=None, calls=False),
                rng=generator(fixed(one.request.seed), self._model.device),
                question=RunningQuestion(one.question, len(made), known[one.values], pending),
            )
            made.append(sequence)
        return made

    def by_causal(self, decision: Decision, cache: Cache, slots: int) -> list[QuestionAnswer]:
        """Return the answers of a model that reads labels left to right, one question after
        another. All `slots` are empty before and after. Raises `RequestError` for a question that
        cannot be answered."""
        if not isinstance(self._model, CausalLM):
            raise RequestError("by is 'causal': this model's encoder predicts no tokens")
        answers = []
        for one in list(self._prepared(decision, "causal")):
            rest = one.prompt, one.spelled, self._vocabulary.stops
            logs = log_probabilities(self._model, cache, range(slots), *rest)
            answers.append(answer_of(one.question, logs.numpy(), len(one.prompt)))
        return answers

    def _prepared(self, decision: Decision, by: By) -> Iterator[_Prepared]:
        """Yield the questions; each is checked before the next one is prepared."""
        if not isinstance(self._model, Denoiser):
            raise RequestError(f"a {type(self._model).__name__} has no canvases to read labels in")
        sizes, tokens = dict[tuple[str, ...], int](), 0
        spelled: dict[tuple[str, ...], list[list[int]]] = {}
        for place, question, request in decision.prompted():
            with at(place):
                values = tuple(label.value for label in question.labels)
                sizes[values] = sum(len(value.encode()) for value in values)
                self._policy.check_labels(sizes[values], sum(sizes.values()))
                if values not in spelled:
                    spelled[values] = [self._spelled(value) for value in values]
                prompt = self._chat.prompt(request)
                self._check_fits(prompt, values, spelled[values], by)
                tokens += len(prompt)
                self._policy.check_prompts(tokens)
            yield _Prepared(question, request, prompt, values, spelled[values])

    def _labels(self, one: _Prepared) -> LabelSet:
        """Return the labels to compare on a canvas: their first tokens, or all their spellings."""
        first = [tokens[0] for tokens in one.spelled]
        if len(set(first)) == len(first):
            return FirstTokens(first)
        labels, most = Labels(one.values, self._vocabulary), self._policy.step_work
        if max(labels.work, reading_units(labels)) > most:
            raise RequestError(
                f"its {len(first)} labels are too long, or have too little in common: to read them "
                f"takes more than the {most} units of work that a step has"
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
        if most > L:
            raise RequestError(
                f"the label {values[longest]!r:.80} takes {most} tokens with its stop, "
                f"more than a canvas: {L}"
            )
        check_tokens("token", prompt, model.vocab_size)
        if len(prompt) > (most_prompt := model.max_positions - L):
            raise RequestError(f"{len(prompt)} prompt tokens: this model takes up to {most_prompt}")
        needed = len(prompt) + (most if by == "causal" else 0)
        if capacity is not None and needed > capacity:
            raise RequestError(f"{needed} tokens are more than the cache holds: {capacity}")
