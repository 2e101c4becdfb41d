"""Whether a request can be served, and what is made of it ahead of its turn.

Nothing here is moved by a step, so that any thread may ask, and several at once.
"""

from concurrent.futures import Future
from dataclasses import dataclass
from itertools import count
from time import perf_counter

import torch

from dlm.chat import Chat
from dlm.denoise import Denoiser
from dlm.errors import DlmError, RequestError, failure
from dlm.grammar import Compiled, Compiler, Reasoning, Spec, Vocabulary
from dlm.policy import Policy
from dlm.request import Request
from dlm.sequence import Sequence
from dlm.stream import Stream

Compiling = Future[Compiled]


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request that was admitted, before `Engine.start`."""

    sequence: Sequence
    compiling: Compiling | None

    @property
    def number(self) -> int:
        """In every event about it."""
        return self.sequence.number

    @property
    def prompt_tokens(self) -> int:
        return len(self.sequence.prompt)


class Admission:
    """Checks requests, numbers them, tokenizes their prompts, has their grammars compiled."""

    def __init__(
        self,
        model: Denoiser,
        chat: Chat,
        policy: Policy,
        vocabulary: Vocabulary,
        compiler: Compiler,
        capacity: int | None,
    ):
        """`capacity` is the cache's, in tokens; None: it grows."""
        self._model, self._chat, self._policy = model, chat, policy
        self._vocabulary, self._compiler, self._capacity = vocabulary, compiler, capacity
        self._reasoning = Reasoning.of(vocabulary)
        self._numbers = count()  # one call of `next` is one instruction: no number comes twice

    def compile(self, spec: Spec) -> Compiling:
        """Raises `RequestError` for what the policy refuses."""
        self._policy.check(spec)
        return self._compiler.submit(spec)

    def admit(self, request: Request) -> Prepared:
        """Raises `RequestError` for a request that cannot be served."""
        prompt = self._chat.prompt(request)
        self._check_room(prompt, request)
        spec = request.constraint
        try:
            compiling = None if spec is None else self.compile(spec)
            calls = spec is not None and spec.calls
        except DlmError:
            raise
        except Exception as error:
            raise failure(error) from error
        stream = Stream(
            vocabulary=self._vocabulary,
            reasoning=self._reasoning if spec is None or request.thinking else None,
            calls=calls,
        )
        sequence = Sequence(
            number=next(self._numbers),
            request=request,
            prompt=prompt,
            stream=stream,
            rng=torch.Generator(self._model.device).manual_seed(request.seed),
        )
        if compiling is not None:
            _time(compiling, sequence)
        return Prepared(sequence, compiling)

    def _check_room(self, prompt: list[int], request: Request) -> None:
        V, L = self._model.vocab_size, self._model.canvas_length
        for token in prompt:
            if not isinstance(token, int) or not 0 <= token < V:
                raise RequestError(f"token {token!r} is outside of {V} tokens")
        room, canvases = self._model.max_positions - len(prompt), -(-request.max_tokens // L)
        if canvases * L > room:
            raise RequestError(
                f"{len(prompt)} prompt tokens leave {max(0, room // L * L)} for the answer, "
                f"fewer than max_tokens {request.max_tokens}"
            )
        most = len(prompt) + request.max_tokens
        if self._capacity is not None and most > self._capacity:
            raise RequestError(
                f"{len(prompt)} prompt tokens and max_tokens {request.max_tokens} are more than "
                f"the cache holds: {self._capacity}"
            )


def _time(compiling: Compiling, sequence: Sequence) -> None:
    """Note how long a grammar takes to compile; nothing where it was compiled before."""
    begun, stats = perf_counter(), sequence.stats

    def note(_: Compiling) -> None:
        stats.compiling = perf_counter() - begun

    if not compiling.done():
        compiling.add_done_callback(note)
