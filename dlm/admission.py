"""Whether a request can be served, and what is made of it ahead of its turn.

Nothing here is moved by a step, so that any thread may ask, and several at once.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count
from time import perf_counter

from dlm.chat import Chat, leaves
from dlm.decisions.decide import Decider
from dlm.decisions.questions import Decision
from dlm.errors import RequestError, failure
from dlm.grammar import Compiler, Reasoning, Spec, Task, Vocabulary
from dlm.logits.sampling import fixed, generator
from dlm.loop.decoding import Model
from dlm.policy import Policy
from dlm.request import Request, check_tokens
from dlm.sequence import Sequence
from dlm.stream import Stream

_RENDERED = ("role", "content", "tool_calls")  # of messages; of the rest templates show little
_SHAPES_PROMPT = "prompt messages text token_ids tools thinking".split()  # fields of a request
_VALUES = 4  # strings, numbers and keys for each position: a message's role and content are two


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request or a decision that was admitted, before `Engine.start`."""

    sequences: list[Sequence]  # one; of a decision one for each question
    compiling: Task | None

    @property
    def number(self) -> int:
        """In every event about it."""
        return self.sequences[0].number

    @property
    def prompt_tokens(self) -> int:
        return sum(len(sequence.prompt) for sequence in self.sequences)

    def discard(self) -> None:
        """It will not be started."""
        if self.compiling is not None:
            self.compiling.leave()


class Admission:
    """Checks requests, numbers them, tokenizes their prompts, has their grammars compiled."""

    def __init__(
        self,
        model: Model,
        chat: Chat,
        policy: Policy,
        vocabulary: Vocabulary,
        compiler: Compiler,
        room: Callable[[int], int],
        capacity: int | None,
        decider: Decider,
    ):
        """`room` says how many tokens an answer may have if the model has so many positions left;
        `capacity` is the cache's, in tokens; None: it grows."""
        self._decider = decider
        self._model, self._chat, self._policy, self._room = model, chat, policy, room
        self._vocabulary, self._compiler, self._capacity = vocabulary, compiler, capacity
        self._reasoning = Reasoning.of(vocabulary)
        self._numbers = count()  # one call of `next` is one instruction: no number comes twice

    def compile(self, spec: Spec) -> Task:
        """Raises `RequestError` for what the policy refuses."""
        self._policy.check(spec)
        return self._compiler.submit(spec)

    def admit(self, request: Request | Decision, like: Prepared | None = None) -> Prepared:
        """Raises `RequestError` for a request that cannot be served. `like` is a request admitted
        before: if both have one prompt, it is tokenized once."""
        if isinstance(request, Decision):
            return Prepared(self._decider.sequences(request, next(self._numbers)), None)
        prompt = None if like is None else _prompt_of(request, like.sequences[0])
        if prompt is None:
            self._check_size(request)
            prompt = self._chat.prompt(request)
            check_tokens("prompt: token", prompt, self._model.vocab_size)
        check_tokens("stop_token_ids:", request.stop_token_ids, self._model.vocab_size)
        request = self._fitted(prompt, request)
        seed, heat = fixed(request.seed), float(request.temperature)  # they may be numpy's
        request = replace(request, seed=seed, temperature=heat)
        spec = request.constraint
        try:
            compiling = None if spec is None else self.compile(spec)
            calls = spec is not None and spec.calls
        except Exception as error:
            problem = failure(error)
            raise problem from problem.__cause__
        stream = Stream(
            vocabulary=self._vocabulary,
            reasoning=self._reasoning if spec is None or request.thinking else None,
            calls=calls,
            free=spec is None or spec.opens_free,
            stop=tuple(request.stop) if spec is None or spec.opens_free else (),
        )
        sequence = Sequence(
            number=next(self._numbers),
            request=request,
            prompt=prompt,
            stream=stream,
            rng=generator(seed, self._model.device),
        )
        if compiling is not None:
            _time(compiling, sequence)
        return Prepared([sequence], compiling)

    def _check_size(self, request: Request) -> None:
        """Refuses what can never fit before it is rendered and tokenized, which would take long."""
        positions = self._model.max_positions
        most = positions * self._vocabulary.longest
        for name in ("prompt", "text"):
            length = len(getattr(request, name) or "")
            if length > most:
                raise RequestError(f"{name} has {length} characters: at most {most} ever fit")
        characters = values = 0
        for message in request.messages or ():
            for key, value in message.items():
                for one in leaves({key: value}):
                    if key in _RENDERED:
                        characters += len(one) if isinstance(one, str) else 1
                        values += 1
        if characters > most or values > positions * _VALUES:
            raise RequestError(
                f"messages hold {characters} characters in {values} values: "
                f"at most {most} in {positions * _VALUES} ever fit",
                field="messages",
            )

    def _fitted(self, prompt: list[int], request: Request) -> Request:
        """A request for which there is room, in the model's positions and in the cache."""
        wanted = request.max_tokens
        room = self._room(max(0, self._model.max_positions - len(prompt)))
        free = wanted if self._capacity is None else self._capacity - len(prompt)
        most = min(wanted, room, free)
        if most == wanted or (most > 0 and request.fit):
            return replace(request, max_tokens=most)
        if room < wanted and not (request.fit and room):
            raise RequestError(
                f"{len(prompt)} prompt tokens leave {room} for the answer, "
                f"fewer than max_tokens {wanted}",
                field="max_tokens" if room else None,  # no value of it would do
            )
        raise RequestError(
            f"{len(prompt)} prompt tokens and max_tokens {wanted} are more than "
            f"the cache holds: {self._capacity}"
        )


def _prompt_of(request: Request, other: Sequence) -> list[int] | None:
    """The tokens of a request's prompt, if `other` has the very same."""
    bound = other.request.constraint is not None
    same = other.asked is None and bound == (request.constraint is not None)
    same = same and all(
        getattr(request, name) is getattr(other.request, name) for name in _SHAPES_PROMPT
    )
    return other.prompt if same else None


def _time(compiling: Task, sequence: Sequence) -> None:
    """Note how long a grammar takes to compile; nothing where it was compiled before."""
    begun, stats = perf_counter(), sequence.stats

    def note(_: object) -> None:
        stats.compiling = perf_counter() - begun

    if not compiling.done():
        compiling.add_done_callback(note)
