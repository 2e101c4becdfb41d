"""Decisions: typed questions about an input, answered with probabilities from one pass each.

Each question has a slot and a canvas of its own, behind its own prompt. To pack several into one
canvas would put labels where the model has never seen an answer begin, and let one answer's noise
show in another's. What questions share, the input, is encoded once all the same: its pages are.

A canvas is read at a temperature of 1, all noise. Where the labels are told apart by their first
tokens, these are compared. Positions of a canvas are predicted independently: the product over a
label of several tokens counts one doubt several times, and says 0.9 to 0.1 where each of two tokens
says 0.75 to 0.25. Where first tokens tell too little, that product is taken, over all spellings of
the labels: their exact posterior.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch

from dlm import questions
from dlm.causal import CausalLM
from dlm.chat import Chat
from dlm.class_table import ClassTable
from dlm.config import DecodeConfig
from dlm.decoding import Model
from dlm.denoise import Denoiser, denoise
from dlm.errors import DlmError, RequestError
from dlm.grammar import Labels, ScoresByClass, Vocabulary
from dlm.likelihood import log_probabilities
from dlm.mask_table import MaskTable
from dlm.questions import Answer, Question
from dlm.request import Request
from dlm.sequence import Sequence as Running
from dlm.stream import Stream
from dlm.turn import Cache, turn_of

By = Literal["canvas", "causal"]


@dataclass(frozen=True, slots=True)
class _Asked:
    """A question, ready to be put to a model."""

    question: Question
    prompt: list[int]
    spelled: list[list[int]]  # its labels' tokens, as the tokenizer writes them
    labels: Labels | None  # None: their first tokens tell them apart


class Decider:
    """Asks the questions of one request at a time; slots are empty before and after."""

    def __init__(
        self,
        model: Model,
        chat: Chat,
        vocabulary: Vocabulary,
        cache: Cache,
        config: DecodeConfig,
        slots: int,
        encode_tokens: int,
        by_kernel: bool | None = None,
    ):
        """A pass encodes `encode_tokens` of prompts; `by_kernel` is `vocab_pass`'s."""
        self._model: Any = model
        self._chat, self._vocabulary, self._cache = chat, vocabulary, cache
        self._config = replace(config, t_min=1.0, t_max=1.0)
        self._slots, self._encode_tokens, self._by_kernel = slots, encode_tokens, by_kernel
        self._masks, self._classes = MaskTable(-(-model.vocab_size // 32)), ClassTable()

    def decide(
        self, request: Request, asked: Sequence[Question | Mapping[str, Any]], by: By
    ) -> list[Answer]:
        """The answers, in the order of the questions.

        Raises `RequestError`, before any work is done, for what cannot be asked.
        """
        if not 1 <= len(asked) <= questions.MOST_QUESTIONS:
            raise RequestError(f"{len(asked)} questions: it takes 1 to {questions.MOST_QUESTIONS}")
        if by not in ("canvas", "causal"):
            raise RequestError(f"by is {by!r}: it takes canvas or causal")
        if not isinstance(self._model, Denoiser):
            raise RequestError(f"a {type(self._model).__name__} has no canvases to read labels in")
        if request.constraint is not None or request.thinking:
            raise RequestError("a decision takes a request without a constraint and thinking")
        model = self._causal_model() if by == "causal" else None
        ready = []
        for i, one in enumerate(asked):
            try:
                ready.append(self._prepared(request, one, by))
            except RequestError as error:
                raise RequestError(f"question {i}: {error}") from error
        scored = self._by_canvas(request, ready) if model is None else self._by_causal(model, ready)
        return [_answer(one, logs) for one, logs in zip(ready, scored, strict=True)]

    def _prepared(self, request: Request, one: Question | Mapping[str, Any], by: By) -> _Asked:
        question = one if isinstance(one, Question) else questions.question_of(one)
        values = [label.value for label in question.labels]
        spelled = [self._spelled(value) for value in values]
        longest = max(range(len(values)), key=lambda i: len(spelled[i]))
        L, most = self._model.canvas_length, len(spelled[longest]) + 1
        if most > L:
            raise RequestError(
                f"the label {values[longest]!r:.80} takes {most} tokens with its stop, "
                f"more than a canvas: {L}"
            )
        apart = by == "causal" or len({tokens[0] for tokens in spelled}) == len(spelled)
        labels = None if apart else Labels(values, self._vocabulary)
        prompt = self._chat.prompt(_with_question(request, question))
        self._check_room(prompt, most, by)
        return _Asked(question, prompt, spelled, labels)

    def _spelled(self, label: str) -> list[int]:
        """The tokenizer's own tokens, or, where these are no text or another, the fewest."""
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

    def _check_room(self, prompt: list[int], most: int, by: By) -> None:
        model, capacity = self._model, self._cache.capacity
        for token in prompt:
            if not isinstance(token, int) or not 0 <= token < model.vocab_size:
                raise RequestError(f"token {token!r} is outside of {model.vocab_size} tokens")
        room = model.max_positions - model.canvas_length
        if len(prompt) > room:
            raise RequestError(f"{len(prompt)} prompt tokens: this model takes up to {room}")
        needed = len(prompt) + (most if by == "causal" else 0)
        if capacity is not None and needed > capacity:
            raise RequestError(f"{needed} tokens are more than the cache holds: {capacity}")

    def _by_canvas(self, request: Request, ready: list[_Asked]) -> list[np.ndarray]:
        """The log-weights of each question's labels, as many questions at a time as have room."""
        waiting, found = list(enumerate(ready)), dict[int, np.ndarray]()
        running: dict[int, Running] = {}
        free = list(range(self._slots))
        try:
            while waiting or running:
                while waiting and free and self._cache.fits(len(waiting[0][1].prompt)):
                    number, one = waiting.pop(0)
                    slot = free.pop()
                    self._cache.reserve(slot, len(one.prompt))
                    running[slot] = self._begun(request, number, one.prompt)
                for slot, sequence in running.items():
                    if not sequence.attached:
                        attached = self._cache.attach(slot, sequence.prompt)
                        sequence.attached = attached is not None
                for slot, scores in self._pass(running).items():
                    number = running.pop(slot).number
                    found[number] = self._read(ready[number], scores)
                    self._cache.release(slot)
                    free.append(slot)
        finally:
            for slot in running:
                self._cache.release(slot)
        return [found[number] for number in range(len(ready))]

    def _begun(self, request: Request, number: int, prompt: list[int]) -> Running:
        """A question in its slot, with a canvas of noise."""
        model, L = self._model, self._model.canvas_length
        rng = torch.Generator(model.device).manual_seed(request.seed)
        stream = Stream(vocabulary=self._vocabulary, reasoning=None, calls=False)
        begun = Running(number=number, request=request, prompt=prompt, stream=stream, rng=rng)
        noise = torch.randint(model.vocab_size, (L,), generator=rng, device=model.device)
        begun.begin_canvas(noise, model.no_soft_embedding())
        return begun

    def _pass(self, running: Mapping[int, Running]) -> dict[int, ScoresByClass]:
        """Go on with all of them; says what those canvases look like that came to be denoised."""
        turn = turn_of(running, self._cache, self._encode_tokens)
        more = self._config, self._masks, self._by_kernel, self._classes
        reading = denoise(self._model, self._cache, turn, *more)
        return {} if reading is None else dict(zip(turn.canvases, reading.scores, strict=True))

    def _read(self, one: _Asked, scores: ScoresByClass) -> np.ndarray:
        if one.labels is not None:
            classes = scores.by_class(one.labels.classes, one.labels.count, {})
            return one.labels.log_masses(classes)
        first = [tokens[0] for tokens in one.spelled]
        of = torch.zeros(self._model.vocab_size, dtype=torch.int32)
        of[first] = torch.arange(1, len(first) + 1, dtype=torch.int32)
        return scores.by_class(of, len(first) + 1, {}).mass[0, 1:]

    def _by_causal(self, model: CausalLM, ready: list[_Asked]) -> list[np.ndarray]:
        """The same, one question after another: the labels of each take all slots."""
        found = []
        for one in ready:
            rest = one.prompt, one.spelled, self._vocabulary.stops
            logs = log_probabilities(model, self._cache, range(self._slots), *rest)
            found.append(logs.numpy())
        return found

    def _causal_model(self) -> CausalLM:
        if not isinstance(self._model, CausalLM):
            raise RequestError("by is 'causal': this model's encoder predicts no tokens")
        return self._model


def _with_question(request: Request, question: Question) -> Request:
    """The request, with what the question asks behind its input."""
    if not question.instructions:
        return request
    if request.prompt is not None:
        return replace(request, prompt=f"{request.prompt}\n\n{question.text}")
    if request.messages is None:
        raise RequestError("instructions cannot be put behind token_ids: give a prompt or messages")
    *before, last = request.messages
    if last["role"] == "user" and isinstance(last["content"], str):
        said = {**last, "content": f"{last['content']}\n\n{question.text}"}
        return replace(request, messages=[*before, said])
    return replace(
        request, messages=[*request.messages, {"role": "user", "content": question.text}]
    )


def _answer(one: _Asked, logs: np.ndarray) -> Answer:
    """From log-weights to probabilities."""
    total = np.logaddexp.reduce(logs)
    if not total > -np.inf:
        raise DlmError("the model gives none of the labels any probability")
    values = [label.value for label in one.question.labels]
    probabilities = dict(zip(values, np.exp(logs - total).tolist(), strict=True))
    return one.question.answer(probabilities, float(np.exp(total)), len(one.prompt))
