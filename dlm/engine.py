"""Engine: a fixed number of slots, and a step that advances all of them by one pass."""

from collections import abc
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, Literal, get_args, overload

from dlm.admission import Admission, Prepared
from dlm.call_form import call_form
from dlm.chat import Chat, Prompts
from dlm.commands import CommandQueue
from dlm.config import DecodeConfig
from dlm.constraining import ConstraintBuilder
from dlm.decisions.decide import By
from dlm.decisions.questions import Decision, Question, QuestionAnswer
from dlm.engine_loading import load_engine
from dlm.errors import DlmError, RequestError, failure, forget_frames
from dlm.event_routes import EventRoutes
from dlm.events import Event, Failed, Finished, StreamEvent
from dlm.grammar import Compiler, Spec, Task, Unfinished, Vocabulary, Workers
from dlm.loading import Loading
from dlm.logits.masks import MaskTable
from dlm.loop.canvas_grid import CanvasGrid
from dlm.loop.decoding import Decoding, EngineContext
from dlm.loop.diffusion import Diffusion
from dlm.loop.interfaces import Cache, ImageReader, Model
from dlm.loop.pass_plan import PassPlan
from dlm.models.families import BUILT_IN as BUILT_IN
from dlm.models.families import DEFAULT
from dlm.models.family import Family
from dlm.occupancy import Occupancy
from dlm.policy import Policy
from dlm.request import Request, Result
from dlm.scheduler import Scheduler
from dlm.sequence import Sequence
from dlm.threads import using
from dlm.together import Progress, Together
from dlm.warm_up import warm_up


class Engine:
    """Engine that serves requests on one model.

    `add` admits a request or a decision. `step` runs one pass of the model for all running requests
    and returns their events; requests join and leave between passes. The result of a request
    depends on the request alone, never on what runs beside it.

    One thread at a time calls `step`, `generate`, `decide` and `close`. Any thread may at any time
    call `add`, its halves `prepare` and `start`, `cancel`, `compile` and `tokens`, read `busy`,
    `cold` and `occupancy`, and use `chat`, `prompts` and `vocabulary`. None of these waits for a
    step; what they change during a step takes effect after it.
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
        tower: ImageReader | None = None,
        threads: int | None = None,
        family: Family = DEFAULT,
    ):
        """`policy` limits requests. `thought` are the texts that open and close reasoning; by
        default those of the `family`, if the tokenizer has them. The `family` is by default that of
        the built-in model. `workers` are the processes that compile, by default the engine's own.
        `cache` has memory for `slots` requests; by default it grows. `decoding` is how the model
        writes, by default in canvases: `Diffusion()`. `tower` reads images; None: requests have
        none. `threads` are those of torch in a step; None: torch's own number. Raises `DlmError`
        for a model that cannot write in that way."""
        if slots < 1:
            raise DlmError(f"slots must be at least 1, got {slots}")
        if threads is not None and (type(threads) is not int or threads < 1):
            raise DlmError(f"threads must be at least 1, got {threads!r:.40}")
        self._threads = threads
        self.decoding: Decoding = decoding or Diffusion()
        self.model, self.chat = model, chat
        self.config, self.policy = config or DecodeConfig(), policy or Policy()
        self.decoding.check(model, self.config)
        self.config.check_tokens(model.vocab_size)
        self.vocabulary = Vocabulary.from_tokenizer(
            chat.tokenizer,
            model.vocab_size,
            self.config.stops,
            self.config.pad,
            thought,
            channel=family.markup.thought,
            call=family.markup.call,
            control=self.config.never_written,
            calls=None if family.markup.call is not None else call_form(chat),
        )
        seconds = self.policy.compile_seconds
        self._compiler = Compiler(self.vocabulary, seconds=seconds, workers=workers)
        self._cache = model.new_cache(slots) if cache is None else cache
        vocabulary = self.backends.get("vocabulary")
        grid = CanvasGrid(getattr(model, "canvas_length", 1), family.caches)
        context = EngineContext(
            model=model,
            cache=self._cache,
            config=self.config,
            policy=self.policy,
            vocabulary=self.vocabulary,
            compiler=self._compiler,
            masks=MaskTable(-(-model.vocab_size // 32)),
            by_kernel=None if vocabulary is None else vocabulary == "triton",
            grid=grid,
        )
        self._decoder = self.decoding.decoder(context)
        self._builder = ConstraintBuilder(self._decoder, self.policy)
        self._slots, self._scheduler = slots, Scheduler(slots, self._cache)
        self._events: list[Event] = []  # not returned by a step yet
        self.prompts = Prompts(chat, tower, self.policy, model.vocab_size)
        self._admission = Admission(
            model,
            self.prompts,
            self.policy,
            self.vocabulary,
            self._compiler,
            answer_capacity=partial(self.decoding.answer_capacity, model, grid),
            grid=grid,
            capacity=self._cache.capacity,
            by_canvas=self._decoder.decides,
            channel=family.markup.channel,
        )
        self._commands = CommandQueue()  # changes of the scheduler
        self._routes = EventRoutes(self._commands)
        self._closed = False

    @classmethod
    def load(
        cls,
        directory: str | Path | None = None,
        *,
        progress: Progress | None = None,
        **settings: Any,
    ) -> "Engine":
        """Load a model directory in Hugging Face layout; None: the built-in model.

        `settings` are the fields of `dlm.loading.Loading`. On a GPU the engine is warmed up, unless
        they say otherwise; `progress` is that of `warm_up`. `backends` has the kernels that were
        chosen. Torch's threads are one for a model on a GPU, or of up to 50 million parameters on a
        CPU, if no other number has been chosen (`torch.set_num_threads`, `OMP_NUM_THREADS`),
        otherwise torch's own.

        Raises `CheckpointError` or `DlmError` for an invalid directory, `DlmError` for a missing
        device, `BackendError` for kernels that cannot run, `ModelError` if a GPU lacks memory.
        """
        return cls.loaded(Loading(model=directory, **settings), progress)

    @classmethod
    def loaded(cls, loading: Loading, progress: Progress | None = None) -> "Engine":
        """Load what `loading` describes, as `load` does."""
        return load_engine(cls, loading, progress)

    def warm_up(self, progress: Progress | None = None) -> None:
        """Compile kernels and capture passes, so that no request waits for that.

        Captures the passes over canvases of up to all slots, at each kind of context, where passes
        are captured. For all other kernels it runs short requests. `progress` is called with the
        number of finished parts and of all. Raises `DlmError` while requests run.
        """
        if self.busy:
            raise DlmError("warm_up would take the slots of requests that are running")
        slots = self._slots if self._decoder.decides else 0  # for texts, or for questions
        warm_up(self.model, self._cache, slots, self.generate, self.policy, progress)

    @property
    def backends(self) -> abc.Mapping[str, str]:
        """Backend of each operation, "triton" or "torch"; "graphs" are "captured", or "eager" and
        why. Empty for models that have no such attribute."""
        backends, graphs = getattr(self.model, "backends", {}), getattr(self.model, "graphs", None)
        return {**backends, **({} if graphs is None else {"graphs": graphs.status})}

    @property
    def slots(self) -> int:
        """Number of requests that run at once."""
        return self._slots

    @property
    def busy(self) -> bool:
        """Whether a started request has not ended."""
        return bool(self._commands or self._scheduler or self._events or self._routes)

    @property
    def cold(self) -> bool:
        """Whether a grammar is not warmed up yet: steps do that while there is nothing else to
        do."""
        return self._compiler.cold

    @property
    def occupancy(self) -> Occupancy:
        """Current load; it may have changed by the time it is read."""
        running, waiting = len(self._scheduler.running), self._scheduler.waiting
        return Occupancy(running=running, waiting=waiting, cache=self._cache.usage)

    def compile(self, spec: Spec) -> Task:
        """Compile in the background, before the requests that use `spec`; returns a future of a
        `Compiled`. Raises `RequestError` if the policy refuses the spec; the future raises
        `InvalidGrammarError` if the grammar cannot be expressed."""
        return self._admission.compile(spec)

    def tokens(self, request: Request) -> list[int]:
        """Return the prompt of a request in tokens of the vocabulary. It is not admitted: it may be
        longer than the model's context, but not so long that it could never fit. Raises
        `RequestError`."""
        return self._admission.tokens(request)

    def add(self, request: Request | Decision) -> int:
        """Admit a request or a decision; returns its number, which is in every event about it.

        Raises `RequestError` if it cannot be served, before any work is done for it. An error that
        only compiling its grammar shows ends it later, as `Failed` with a `RequestError`: no other
        request waits for the compiler. `generate` waits, and raises.
        """
        prepared = self.prepare(request)
        self.start(prepared)
        return prepared.number

    def prepare(self, request: Request | Decision, like: Prepared | None = None) -> Prepared:
        """Do the first half of `add`, which may take long: check the request, tokenize its prompt,
        compile its grammar. It has a number then, and does not run yet. If it has the same prompt
        as `like`, which was prepared before, that is not tokenized again."""
        if self._closed:
            raise DlmError("the engine is closed: it admits no more requests")
        if not isinstance(request, Request | Decision):
            kind = type(request).__name__
            raise RequestError(f"a request must be a Request or a Decision, got a {kind}")
        return self._admission.admit(request, like)

    def start(self, prepared: Prepared, client: str = "") -> None:
        """Do the second half of `add`, which takes no time: queue the request. Slots, and passes
        over canvases, are shared among clients; `client` is the name of this one. Its requests are
        served in the order in which they were started."""
        for sequence in prepared.sequences:
            sequence.started = perf_counter()
        add = self._scheduler.add
        self._commands.post(partial(add, prepared.sequences, prepared.compiling, client))

    def reserve(self, slots: int) -> None:
        """Keep `slots` slots, 0 by default, for clients that have none: a new client then never
        waits for the requests of others to end. Raises `DlmError` if no slot is left to others."""
        if not 0 <= slots < self._slots:
            raise DlmError(f"reserved must be 0 to {self._slots - 1} of the slots, got {slots}")
        self._commands.post(partial(self._scheduler.reserve, slots))

    def cancel(self, number: int) -> None:
        """Drop a request, waiting or running; nothing happens if it has ended. A step under way may
        still return events of it. A stream of it raises `DlmError`."""
        self._routes.cancel(number)
        self._commands.post(partial(self._scheduler.cancel, number))

    def step(self) -> list[Event]:
        """Run one pass for all running requests and return the events. An error in one request ends
        only that one."""
        with self._commands.move(), using(self._threads):
            self._step()
            return self._routes.take()

    def stream(self, request: Request) -> abc.Iterator[StreamEvent]:
        """Run one request and yield its events: `Draft`, `Committed`, and `Finished` last. Other
        requests run beside it; their events wait for their streams or for `step`. The request is
        admitted at the first `next`; closing the iterator early cancels it. Raises what `add`
        raises, and the error of `Failed`."""
        if not isinstance(request, Request):
            raise RequestError(f"stream must be given a Request, got a {type(request).__name__}")
        prepared = self.prepare(request)
        events = self._routes.open(prepared.number)
        try:
            self.start(prepared)
            while True:
                while not events:
                    with self._commands.move(), using(self._threads):
                        self._step()
                event = events.popleft()
                if isinstance(event, Failed):
                    raise event.error
                if not isinstance(event, StreamEvent):
                    raise TypeError(f"a request ended as {type(event).__name__}")
                yield event
                if isinstance(event, Finished):
                    return
        finally:
            self.cancel(prepared.number)
            self._routes.close(prepared.number)

    def _step(self) -> None:
        plan = self._schedule()  # who enters, what is encoded, which canvases
        output = self._decoder.run(plan)  # one pass of the model, and one over its logits
        guidance = self._decoder.guide(output)  # every constraint, each within its share of work
        outcomes = self._decoder.settle(plan, output, guidance)  # each canvas moves by one step
        self._commit(outcomes)  # events
        self._commit(self._decoder.draft(output, outcomes, self._scheduler.running, self._events))
        self._for_each_running(self._decoder.judge)  # what was checked ahead ends now
        if not (plan or self._events):  # nothing can run
            self._compiler.warm_up(self.policy.step_work)
            self._scheduler.nap()
        self._routes.sort(self._events)
        self._events = []

    def _schedule(self) -> PassPlan:
        """Give slots to requests, and return what the next pass does for those that run."""
        self._admit()
        self._for_each_running(self._decoder.prepare)
        if self.decoding.shares_passes:
            self._scheduler.share()
        return self._decoder.plan(self._scheduler.running)

    def _for_each_running(self, act: abc.Callable[[int, Sequence, list[Event]], None]) -> None:
        for slot, sequence in list(self._scheduler.running.items()):
            if slot in self._scheduler.running:  # else its decision has failed
                with self._isolated(slot, sequence):
                    act(slot, sequence, self._events)

    def _admit(self) -> None:
        """Give free slots to requests that can run. Those that never can end with an error."""
        self._scheduler.begin_round()
        while (waiting := self._scheduler.next()) is not None:
            try:
                self._builder.build(waiting)
                slot, sequence = self._scheduler.enter(waiting)
            except Unfinished:
                self._scheduler.defer(waiting)  # its constraint takes more than a step's work
            except DlmError as error:
                self._fail(waiting.number, error)
            else:
                with self._isolated(slot, sequence):
                    self._decoder.begin(sequence)

    def _commit(self, outcomes: abc.Mapping[int, Any]) -> None:
        """Commit the outcomes of a pass, by slot."""
        for slot, outcome in outcomes.items():
            if sequence := self._scheduler.running.get(slot):  # else its decision has failed
                with self._isolated(slot, sequence):
                    self._decoder.commit(sequence, outcome, self._events)

    @contextmanager
    def _isolated(self, slot: int, sequence: Sequence) -> abc.Iterator[None]:
        """Let an exception within the context end this request, and no other. A request that has
        ended leaves its slot."""
        try:
            yield
        except Exception as error:
            self._fail(sequence.number, error)
            forget_frames(error)
        else:
            if sequence.ended:
                self._scheduler.leave(slot)

    def _fail(self, number: int, error: Exception) -> None:
        """End a request with an error."""
        self._events.append(Failed(request=number, error=failure(error)))
        self._scheduler.cancel(number)

    @overload
    def generate(self, requests: Request, *, progress: Progress | None = None) -> Result: ...
    @overload
    def generate(
        self,
        requests: abc.Sequence[Request],
        *,
        return_exceptions: Literal[False] = False,
        progress: Progress | None = None,
    ) -> list[Result]: ...
    @overload
    def generate(
        self,
        requests: abc.Sequence[Request],
        *,
        return_exceptions: bool,
        progress: Progress | None = None,
    ) -> list[Result | DlmError]: ...
    def generate(
        self,
        requests: Request | abc.Sequence[Request],
        *,
        return_exceptions: bool = False,
        progress: Progress | None = None,
    ) -> Any:
        """Run requests together until all have ended, and return their results. A request that
        cannot be served is refused with `RequestError` before any of them starts; the error of one
        that fails is raised after all have ended. With `return_exceptions`, either error stands in
        the place of a result, and the other requests run. `progress` is called at the start, and
        after each step in which requests have ended, with the number of these and of all."""
        if isinstance(requests, Request):
            return self.generate([requests], progress=progress)[0]
        if isinstance(requests, str) or not isinstance(requests, abc.Sequence):
            kind = type(requests).__name__
            raise RequestError(f"generate must be given a Request or a list of them, got a {kind}")
        if any(isinstance(one, Decision) for one in requests):
            raise RequestError("generate is given a Decision: `decide` answers questions")
        ends = self._run(requests, "generate", return_exceptions, progress)
        return [end.error if isinstance(end, Failed) else end.result for end in ends]

    def decide(
        self,
        request: Request,
        questions: abc.Sequence[Question | abc.Mapping[str, Any]],
        by: By = "canvas",
    ) -> list[QuestionAnswer]:
        """Answer typed questions about a request's input, with probabilities.

        A question without instructions is asked by the input itself. Each is answered from one pass
        over a canvas, as an added `Decision` is; or, with `by="causal"`, from the encoder's
        probabilities, left to right. Questions may be the protocol's JSON. Raises `RequestError`
        for an invalid question before any work is done, and `DlmError` while requests run.
        """
        if by not in get_args(By):
            raise RequestError(f"by must be {' or '.join(get_args(By))}, got {by!r}")
        decision = Decision(request=request, questions=questions)
        if by == "canvas":
            return self._run([decision], "decide")[0].answers
        with self._commands.move(), using(self._threads):
            if self.busy:
                raise DlmError("decide would take the slots of requests that are running")
            return self._admission.decider.by_causal(decision, self._cache, self._slots)

    def _run(
        self,
        requests: abc.Sequence[Request | Decision],
        who: str,
        return_exceptions: bool = False,
        progress: Progress | None = None,
    ) -> list[Any]:
        """Return the end of each request, in order. Raises the first error, unless it is to be
        returned."""
        if self.busy:
            raise DlmError(f"{who} would swallow the events of requests that were added before")
        try:
            return Together(requests, return_exceptions, progress).run(self)
        except BaseException:
            self._events.clear()
            raise

    def await_constraint(self, number: int) -> None:
        """Wait until a request that was started has its constraint, which its first step needs.
        Raises `DlmError` if it never can run. Only for the thread that steps."""
        if (waiting := self._scheduler.find(number)) is not None:
            self._builder.finish(waiting)

    def close(self) -> None:
        """End the compiler processes: requests that wait for one fail, and no more are admitted."""
        self._closed = True
        self._compiler.close()
