"""Admission of requests: checks, and all preparation before the scheduler.

No step changes anything here, so any number of threads may call it at once.
"""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count
from time import perf_counter

from dlm.chat import Prompts, PromptTokens
from dlm.decisions.decide import Decider
from dlm.decisions.questions import Decision
from dlm.errors import ContextLengthError, RequestError, failure
from dlm.grammar import Compiler, InvalidGrammarError, Reasoning, Spec, Task, Tools, Vocabulary
from dlm.logits.sampling import fixed, generator
from dlm.loop.canvas_grid import CanvasGrid
from dlm.loop.interfaces import Model
from dlm.policy import Policy
from dlm.prompt_size import check_size, prompt_field
from dlm.request import Request, check_tokens
from dlm.sequence import Sequence
from dlm.stream import Stream

_PROMPT_FIELDS = "prompt messages text token_ids tools thinking".split()  # it depends on these


@dataclass(frozen=True, slots=True)
class Prepared:
    """Admitted request or decision, before `Engine.start`."""

    sequences: list[Sequence]  # one for a request; one for each question of a decision
    compiling: Task | None

    @property
    def number(self) -> int:
        """Its number in every event."""
        return self.sequences[0].number

    @property
    def prompt_tokens(self) -> int:
        return sum(len(sequence.prompt) for sequence in self.sequences)

    def discard(self) -> None:
        """Drop it without starting it."""
        if self.compiling is not None:
            self.compiling.leave()


class Admission:
    """Checks, numbers, tokenization and compilation of requests."""

    def __init__(
        self,
        model: Model,
        prompts: Prompts,
        policy: Policy,
        vocabulary: Vocabulary,
        compiler: Compiler,
        answer_capacity: Callable[[int], int],
        grid: CanvasGrid,
        capacity: int | None,
        by_canvas: bool,
        channel: str,
    ):
        """`answer_capacity` maps the positions that the model has left to the tokens an answer may
        have. `capacity` is the cache's, in tokens; None: it grows. `by_canvas` is whether passes
        read canvases. `channel` is the name that reasoning begins with."""
        self.decider = Decider(model, prompts, policy, vocabulary, capacity, by_canvas, grid)
        self._answer_capacity, self._channel = answer_capacity, channel
        self._model, self._prompts, self._policy = model, prompts, policy
        self._vocabulary, self._compiler, self._capacity = vocabulary, compiler, capacity
        self._reasoning = Reasoning.of(vocabulary)
        self._numbers = count()  # `next` is atomic: each number is used once

    def compile(self, spec: Spec) -> Task:
        """Compile a spec in the background. Raises `RequestError` if the policy refuses it."""
        self._policy.check(spec)
        return self._compiler.submit(spec.in_form(self._vocabulary.calls))

    def tokens(self, request: Request) -> list[int]:
        """Return the prompt of a request in tokens of the vocabulary. Raises `RequestError`."""
        self._check_size(request)
        return self._prompts.tokens(request)

    def admit(self, request: Request | Decision, like: Prepared | None = None) -> Prepared:
        """Admit a request. Raises `RequestError` if it cannot be served. `like` is a request
        admitted before: if both have the same prompt, it is tokenized once."""
        if isinstance(request, Decision):
            return Prepared(self.decider.sequences(request, next(self._numbers)), None)
        request = self._in_form(request)
        prompt = None if like is None else _prompt_of(request, like.sequences[0])
        if prompt is None:
            self._check_size(request)
            prompt = self._encoded(request)
        check_tokens("stop_token_ids: a token", request.stop_token_ids, self._model.vocab_size)
        request = self._fit_tokens(len(prompt.tokens), request)
        seed = fixed(request.seed)
        request = replace(request, seed=seed)
        if request.temperature is not None:  # numpy's, maybe
            request = replace(request, temperature=float(request.temperature))
        spec = request.constraint
        try:
            compiling = None if spec is None else self.compile(spec)
            calls, opening = spec is not None and spec.calls, "" if spec is None else spec.opening
        except Exception as error:
            problem = failure(error)
            raise problem from problem.__cause__
        reasoning = self._reasoning
        continues = request.is_raw and spec is None and not request.thinking  # as it stands
        if reasoning is not None and not continues:
            reasoning = reasoning.after(prompt.tokens)
        if reasoning is not None and spec is not None:
            reasoning = reasoning.constrained(request.thinking)
        stream = Stream(
            vocabulary=self._vocabulary,
            reasoning=reasoning,
            channel=self._channel,
            calls=calls,
            opening=opening,
            free=spec is None or spec.opens_free,
            stop=tuple(request.stop) if spec is None or spec.opens_free else (),
        )
        sequence = Sequence(
            number=next(self._numbers),
            request=request,
            prompt=prompt.tokens,
            images=prompt.images,
            stream=stream,
            rng=generator(seed, self._model.device),
        )
        if compiling is not None:
            _note_compile_time(compiling, sequence)
        return Prepared([sequence], compiling)

    def _in_form(self, request: Request) -> Request:
        """Return the request with a constraint in the form of the model's calls. Raises
        `RequestError` if the model has none that is known."""
        spec = request.constraint
        if spec is None:
            return request
        try:
            written = spec.in_form(self._vocabulary.calls)
        except InvalidGrammarError as error:
            raise RequestError(str(error), field=spec.kind) from error
        return request if written is spec else replace(request, constraint=written)

    def _encoded(self, request: Request) -> PromptTokens:
        """Return the prompt of a request. Raises `RequestError`; if its tools are the reason, the
        error of their schemas."""
        try:
            return self._prompts.encode(request)
        except Exception:
            check_tools(request, self._vocabulary.calls)
            raise

    def _check_size(self, request: Request) -> None:
        check_size(request, self._model.max_positions, self._vocabulary.longest)

    def _fit_tokens(self, prompt: int, request: Request) -> Request:
        """Return the request with as many `max_tokens` as fit the model's positions and the cache,
        beside `prompt` tokens.
        Raises `RequestError` if those are fewer than requested, unless the request allows that by
        `fit`."""
        requested = request.max_tokens
        capacity = self._answer_capacity(max(0, self._model.max_positions - prompt))
        free = requested if self._capacity is None else self._capacity - prompt
        most = min(requested, capacity, free)
        if most == requested or (most > 0 and request.fit):
            return replace(request, max_tokens=most)
        limit = self._model.max_positions
        longest = limit - bisect_left(range(limit), 1, key=self._answer_capacity)
        problem = (
            f"{prompt} prompt tokens leave {capacity} for the answer, fewer than max_tokens "
            f"{requested}"
        )
        if capacity >= requested or (request.fit and capacity):
            limit, capacity = self._capacity or 0, max(0, free)
            longest = min(longest, limit - 1)
            problem = (
                f"{prompt} prompt tokens and max_tokens {requested} are more than the cache holds: "
                f"{limit}"
            )
        raise ContextLengthError(
            problem,
            field="max_tokens" if capacity else prompt_field(request),  # else no value fits
            most=limit,
            longest_prompt=longest,
            prompt=prompt,
        )


def check_tools(request: Request, form: str | None) -> None:
    """Raise the `RequestError` of tools, for a model that writes calls in a `form`, whose schemas
    have not been read yet."""
    tools = request.constraint
    if isinstance(tools, Tools) and not tools.at_once:
        try:
            tools.check(form)
        except InvalidGrammarError as error:
            raise RequestError(str(error)) from error


def _prompt_of(request: Request, other: Sequence) -> PromptTokens | None:
    """Return the prompt of `other` if the request has the same; otherwise None."""
    bound = other.request.constraint is not None
    same = other.question is None and bound == (request.constraint is not None)
    same = same and all(
        getattr(request, name) is getattr(other.request, name) for name in _PROMPT_FIELDS
    )
    return PromptTokens(other.prompt, other.images) if same else None


def _note_compile_time(compiling: Task, sequence: Sequence) -> None:
    """Note how long a grammar takes to compile, unless it is compiled already."""
    start, stats = perf_counter(), sequence.stats

    def note(_: object) -> None:
        stats.compiling = perf_counter() - start

    if not compiling.done():
        compiling.add_done_callback(note)
