"""The engine: a fixed number of slots, and one step that takes all of them a pass further."""

from collections import abc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, get_args, overload

import torch

from dlm.admission import Admission, Prepared
from dlm.chat import Chat
from dlm.config import DecodeConfig
from dlm.decisions.decide import By, Decider
from dlm.decisions.questions import Decision, Question, QuestionAnswer
from dlm.errors import DlmError, RequestError, failure, forget_frames
from dlm.event_routes import CommandQueue, EventRoutes, StreamEvent, streamed
from dlm.events import End, Event, Failed
from dlm.grammar import (
    Compiled,
    Compiler,
    GrammarError,
    Reasoning,
    Spec,
    Task,
    Vocabulary,
    Workers,
)
from dlm.loop.decoding import Decoding, EngineContext, Model
from dlm.loop.diffusion import Diffusion
from dlm.loop.pass_plan import Cache
from dlm.models import ModelError, checkpoint
from dlm.models.backends import Kernels
from dlm.models.graphs import Graphs
from dlm.policy import Policy
from dlm.request import Request, Result
from dlm.scheduler import Scheduler
from dlm.sequence import Sequence
from dlm.storage import Storage

BUILT_IN = Path(checkpoint.__file__).parent / "tiny"


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupancy:
    """How much an engine has to do."""

    running: int  # requests, and questions of decisions
    waiting: int  # requests, and decisions
    cache: float  # share of its memory that holds keys and values


class Engine:
    """Serves requests on one model.

    `add` admits a request or a decision, `step` runs one pass of the model for all that are running
    and tells what happened; they join and leave between passes, each at its own pace. What comes of
    a request depends on the request alone, never on what runs beside it.

    One thread at a time calls `step`, `generate`, `decide` and `close`. Any thread may at any time
    call `add`, its halves `prepare` and `start`, `cancel` and `compile`, and read `busy`, `cold`
    and `occupancy`. None of these waits for a step; what is asked for while one is under way counts
    from the next on. `chat` and `vocabulary` are for any thread too.
    """

    def __init__(
        self,
        model: Model,
        chat: Chat,
        config: DecodeConfig | None = None,
        slots: int = 8,
        policy: Policy | None = None,
        thought: tuple[str, str] | None = None,
        workers: Workers | None = None,
        cache: Cache | None = None,
        decoding: Decoding | None = None,
    ):
        """`policy` limits what requests may ask for. `thought` are the texts that open and close
        reasoning; by default Gemma 4's, if the tokenizer has them. `workers` are the processes that
        compile, by default the engine's own. `cache` has room for `slots` requests; by default it
        grows as they do. `decoding` is how the model writes, by default in canvases: `Diffusion()`.
        Raises `DlmError` for a model that cannot write so."""
        if slots < 1:
            raise DlmError(f"slots is {slots}: it takes at least 1")
        self.decoding: Decoding = decoding or Diffusion()
        self.model, self.chat = model, chat
        self.config, self.policy = config or DecodeConfig(), policy or Policy()
        self.decoding.check(model, self.config)
        self.vocabulary = Vocabulary.from_tokenizer(
            chat.tokenizer, model.vocab_size, self.config.stops, self.config.pad, thought
        )
        self._reasoning = Reasoning.of(self.vocabulary)
        seconds = self.policy.compile_seconds
        self._compiler = Compiler(self.vocabulary, seconds=seconds, workers=workers)
        self._cache = model.new_cache(slots) if cache is None else cache
        vocabulary = self.backends.get("vocabulary")
        self._parts = parts = EngineContext(
            model=model,
            cache=self._cache,
            config=self.config,
            policy=self.policy,
            vocabulary=self.vocabulary,
            compiler=self._compiler,
            by_kernel=None if vocabulary is None else vocabulary == "triton",
        )
        self._decoder = decoder = self.decoding.decoder(parts)
        self._slots = slots
        self._scheduler = Scheduler(slots, self._constrain, decoder.fits, decoder.begin)
        self._pipeline = self.decoding.passes(parts)
        self._events: list[Event] = []  # that no step has told of yet
        chatting, capacity = (model, chat, self.policy, self.vocabulary), self._cache.capacity
        self._decider = Decider(*chatting, capacity, decoder.decides)
        room = partial(self.decoding.room, model)
        self._admission = Admission(*chatting, self._compiler, room, capacity, self._decider)
        self._changes = CommandQueue()  # of who waits and who runs
        self._routes = EventRoutes(self._changes, self._step)
        self._closed = False

    @classmethod
    def load(
        cls,
        directory: str | Path | None = None,
        *,
        dtype: torch.dtype | None = None,
        device: str | torch.device | None = None,
        slots: int = 8,
        policy: Policy | None = None,
        kernels: Kernels = "auto",
        graphs: Graphs = "auto",
        activation_bits: int = 16,
        kv: str = "auto",
        cache_tokens: int | None = None,
        decoding: Decoding | None = None,
    ) -> "Engine":
        """The engine for a DiffusionGemma directory in Hugging Face layout; None: the built-in one.

        By default on the GPU in bf16 if there is one, else, and for the built-in one, which is
        small, on the CPU in fp32. `kernels` asks for Triton's or for plain torch, "auto" for
        Triton's wherever they run; `backends` tells what was chosen. Passes that encode nothing are
        CUDA graphs where kernels compute them and the cache does not grow; with `graphs="off"` none
        is. `activation_bits=4` quantises activations of linear layers in NVFP4 too, on GPUs that
        multiply four bits. Keys and values are stored as `kv` says, one of `KV_TYPES`, or "auto":
        as they are computed. The cache has memory for `cache_tokens` of all requests together, by
        default what is left of a GPU's, and further requests wait; on a CPU it grows by default.
        `decoding` is how the model writes.

        Raises `CheckpointError` or `DlmError` for a directory that is none, `DlmError` for a device
        and `BackendError` for kernels that cannot be had, `ModelError` for slots that a GPU has no
        memory for.
        """
        if directory is None:
            directory, device = BUILT_IN, device or "cpu"
        directory = Path(directory)
        if not directory.is_dir():
            raise DlmError(f"no model directory at {directory}")
        stored = Storage.of(device, dtype, kv, cache_tokens)
        model, cache = stored.load(directory, slots, kernels, graphs, activation_bits)
        generation = directory / "generation_config.json"
        settings = checkpoint.read_json(generation) if generation.exists() else {}
        chat, config = Chat.load(directory), DecodeConfig.from_hf(settings)
        return cls(model, chat, config, slots, policy, cache=cache, decoding=decoding)

    @property
    def backends(self) -> abc.Mapping[str, str]:
        """Who computes what: "triton" or "torch" by operation; "graphs" are "captured", or "eager"
        and why. Models that are no Gemma may not say."""
        backends, graphs = getattr(self.model, "backends", {}), getattr(self.model, "graphs", None)
        return {**backends, **({} if graphs is None else {"graphs": graphs.told})}

    @property
    def busy(self) -> bool:
        """Some request that was started has not ended."""
        return bool(self._changes or self._scheduler or self._events or self._routes)

    @property
    def cold(self) -> bool:
        """Some grammar is yet to be warmed up: steps go on with it while there is nothing else."""
        return self._compiler.cold

    @property
    def occupancy(self) -> Occupancy:
        """What is going on; by the time that it is read it may be less or more."""
        usage = self._cache.usage
        return Occupancy(
            running=len(self._scheduler.running), waiting=self._scheduler.waiting, cache=usage
        )

    def compile(self, spec: Spec) -> Task:
        """Compile in the background, ahead of the requests that use `spec`: a future of a
        `Compiled`.

        Raises `RequestError` for what the policy refuses; the future raises `InvalidGrammarError`
        where the grammar cannot be expressed.
        """
        return self._admission.compile(spec)

    def add(self, request: Request | Decision) -> int:
        """Admit a request, or a decision; its number is in every event about it.

        Raises `RequestError` for one that cannot be served, before any work is done for it. What
        only compiling its grammar shows ends it later, as `Failed` with a `RequestError`: the
        request waits for its compiler, nobody else does. `generate` waits, and raises.
        """
        prepared = self.prepare(request)
        self.start(prepared)
        return prepared.number

    def prepare(self, request: Request | Decision, like: Prepared | None = None) -> Prepared:
        """The first half of `add`, which may take long: the request is checked, its prompt is
        tokenized and its grammar compiles. It has a number, and nobody runs it yet. The prompt of a
        request that was prepared before is not tokenized again if this one is `like` it."""
        if self._closed:
            raise DlmError("the engine is closed: it admits no more requests")
        if not isinstance(request, Request | Decision):
            kind = type(request).__name__
            raise RequestError(f"a {kind} is no request: it takes a Request or a Decision")
        return self._admission.admit(request, like)

    def start(self, prepared: Prepared, client: str = "") -> None:
        """The other half of `add`, which takes no time: the request waits for its turn.

        Slots, and passes over canvases, are shared among clients; `client` is the name of the one
        that asks. The requests of one client are served in the order in which they were started.
        """
        for sequence in prepared.sequences:
            sequence.started = perf_counter()
        add = self._scheduler.add
        self._changes.post(partial(add, prepared.sequences, prepared.compiling, client))

    def reserve(self, slots: int) -> None:
        """Keep `slots` slots, 0 by default, for clients that have none, so that a new client never
        waits for others' requests to end. Raises `DlmError` if that leaves no slot to others."""
        if not 0 <= slots < self._slots:
            raise DlmError(f"reserved is {slots}: it takes 0 to {self._slots - 1} of the slots")
        self._changes.post(partial(self._scheduler.reserve, slots))

    def cancel(self, number: int) -> None:
        """Drop a request, waiting or running; one that has ended is left as it is. A step that is
        under way may still tell of it. A stream of it raises `DlmError`."""
        self._routes.cancel(number)
        self._changes.post(partial(self._cancel, number))

    def _cancel(self, number: int) -> None:
        for slot in self._scheduler.cancel(number):
            self._leave(slot)

    def step(self) -> list[Event]:
        """One pass for all that run, or for half of their canvases where they are many: then tells
        of the other half. What fails in one request ends that one alone."""
        return self._routes.step()

    def stream(self, request: Request) -> Iterator[StreamEvent]:
        """Run one request and yield its events: `Draft`, `Committed`, and `Finished` last.

        Other requests run beside it, and their events wait for their streams or for `step`. Closing
        the iterator early cancels the request. Raises what `add` raises, and the error of `Failed`.
        """
        return streamed(self, self._routes, request)

    def _step(self) -> list[Event]:
        for failed in self._scheduler.admit():
            self._fail(failed)
        running = self._scheduler.running
        for slot in list(running):
            self._alone(slot, self._decoder.prepare)
        if self.decoding.shares_passes:
            self._scheduler.share()
        for slot, outcome in self._pipeline.step(running):
            self._alone(slot, self._decoder.advance, outcome)
        if self._pipeline.idle and not self._events:
            self._compiler.warm_up(self.policy.step_work)
            self._scheduler.nap()
        events, self._events = self._events, []
        return events

    @overload
    def generate(self, requests: Request) -> Result: ...
    @overload
    def generate(self, requests: abc.Sequence[Request]) -> list[Result]: ...
    def generate(self, requests: Request | abc.Sequence[Request]) -> Result | list[Result]:
        """Run requests to their ends, together. One that cannot be served is refused with
        `RequestError` before any of them starts; one that fails raises after all have ended."""
        if isinstance(requests, Request):
            return self.generate([requests])[0]
        if isinstance(requests, str) or not isinstance(requests, abc.Sequence):
            kind = type(requests).__name__
            raise RequestError(f"generate is given a {kind}: it takes a Request or a list of them")
        if any(isinstance(one, Decision) for one in requests):
            raise RequestError("generate is given a Decision: `decide` answers questions")
        return [end.result for end in self._run(requests, "generate")]

    def decide(
        self,
        request: Request,
        questions: abc.Sequence[Question | abc.Mapping[str, Any]],
        by: By = "canvas",
    ) -> list[QuestionAnswer]:
        """Answer typed questions about a request's input, with probabilities.

        A question without instructions is what the input itself asks. Each is answered from one
        pass over a canvas, as a `Decision` is that is added; or, `by` "causal", from the
        probabilities of the model as it encodes, left to right. Questions may be the protocol's
        JSON. Raises `RequestError` before any work is done for what cannot be asked, `DlmError`
        while requests run.
        """
        if by not in get_args(By):
            raise RequestError(f"by is {by!r}: it takes {' or '.join(get_args(By))}")
        decision = Decision(request=request, questions=questions)
        if by == "canvas":
            return self._run([decision], "decide")[0].answers
        with self._changes.move():
            if self.busy:
                raise DlmError("decide would take the slots of requests that are running")
            return self._decider.by_causal(decision, self._cache, self._slots)

    def _run(self, requests: abc.Sequence[Request | Decision], who: str) -> list[Any]:
        """`Finished` or `Decided` of each, in their order. Raises what the first failed with."""
        if self.busy:
            raise DlmError(f"{who} would swallow the events of requests that were added before")
        numbers, ends = list[int](), dict[int, End]()
        try:
            self._add_all(requests, numbers)
            while self.busy:
                ends |= {event.request: event for event in self.step() if isinstance(event, End)}
        except BaseException:
            for number in numbers:
                self.cancel(number)
            self._events.clear()
            raise
        for number in numbers:
            if isinstance(end := ends[number], Failed):
                raise end.error
        return [ends[number] for number in numbers]

    def _add_all(self, requests: abc.Sequence[Request | Decision], numbers: list[int]) -> None:
        """Admit all of them, with their grammars compiled; `numbers` are theirs, one by one."""
        at, prepared = 0, None
        try:
            for at, request in enumerate(requests):  # noqa: B007
                prepared = self.prepare(request, prepared)
                numbers.append(prepared.number)
                self.start(prepared)
            for at, number in enumerate(numbers):  # noqa: B007
                self._scheduler.prepare(number)
        except DlmError as error:
            if len(requests) == 1 or isinstance(error, GrammarError | ModelError):
                raise
            raise type(error)(f"request {at}: {error}") from error

    def close(self) -> None:
        """End the processes that compile; requests that wait for one fail, and none is admitted."""
        self._closed = True
        self._compiler.close()

    def _constrain(self, sequence: Sequence, compiled: Compiled | None) -> None:
        """Give a request that is about to run its constraint; a question has none."""
        if sequence.asked is not None:
            return
        request, reasoning = sequence.request, None
        if request.thinking and self._reasoning is not None:
            reasoning = replace(self._reasoning, budget=request.thinking_budget)
        self.decoding.constrain(sequence, compiled, reasoning, self._parts)
        sequence.checked = compiled is not None and compiled.checked

    def _alone(self, slot: int, work: Callable[..., Iterator[Event]], *args: Any) -> None:
        """Do the `work` of one request. Whatever it raises ends that request, and no other."""
        sequence = self._scheduler.running.get(slot)
        if sequence is None:  # another question of its decision has failed
            return
        try:
            for event in work(slot, sequence, *args):
                self._events.append(event)
        except Exception as error:
            self._fail(Failed(request=sequence.number, error=failure(error)))
            forget_frames(error)
        else:
            if sequence.ended:
                self._leave(slot)

    def _fail(self, failed: Failed) -> None:
        self._events.append(failed)
        self._cancel(failed.request)

    def _leave(self, slot: int) -> None:
        self._cache.release(slot)
        left = self._scheduler.leave(slot)
        if left.checking is not None:
            left.checking.leave()
