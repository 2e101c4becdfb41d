"""Constrained answers in vLLM, read from their tokens by the readers of our own server.

vLLM's parsers of calls read text: they cannot tell a quote from the same characters in a string,
nor a number from a string that looks like one, and guess types by parts of the schema. They also
take all text before the end of a reasoning for reasoning, where there is none. The grammar wrote
values with their types, and `AnswerReader` returns exactly these, whole or piece by piece.
`reads_calls` and `reads_deltas` wrap the two methods of vLLM's parsers that its servers call for
every API: they read the answers of constrained requests, and pass others on.

A request is known by its `ToolsText`, which holds a `Reading` once it is admitted. Of vLLM, only
its messages are known.
"""

# pyright: reportMissingImports=false

import codecs
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from dlm.grammar import Tools
from dlm.grammar.calls import CallDelta, CallReader
from dlm.integrations.vllm.payload import TOOLS, Reading, ToolsText
from dlm.stream import Stream

_READER = "_dlm_reader"  # attribute of a parser of vLLM that reads a stream


@dataclass(slots=True)
class AnswerDelta:
    """A piece of an answer."""

    reasoning: str
    content: str
    calls: list[CallDelta]  # for each call its name and one piece of arguments


@dataclass(slots=True)
class WholeAnswer:
    """An answer, joined from its pieces."""

    reasoning: str = ""
    content: str = ""
    calls: list[CallDelta] = field(default_factory=list)  # one for each call

    def add(self, delta: AnswerDelta) -> None:
        self.reasoning += delta.reasoning
        self.content += delta.content
        for call in delta.calls:
            if call.name is not None:
                self.calls.append(CallDelta(call.index, call.name, ""))
            self.calls[call.index].arguments += call.arguments


class AnswerReader:
    """Reader of one answer of a constrained request."""

    def __init__(self, reading: Reading, apart: bool):
        """`apart`: reasoning is no part of the content. Otherwise it is, with its markers, as in a
        server of vLLM that has no parser of reasoning."""
        vocabulary, spec = reading.vocabulary, reading.spec
        self._calls: CallReader | None = None
        if isinstance(spec, Tools):
            self._calls = spec.reader(vocabulary)
        self._stream = Stream(
            vocabulary=vocabulary,
            reasoning=reading.reasoning,
            calls=spec.calls,
            opening=spec.opening,
            free=spec.opens_free,
            channel=reading.markup.channel,
        )
        self._reasoning = None if apart else _SpelledReasoning(reading)
        self._tokens: list[int] = []
        self._blank = ""  # the content, as long as it is whitespace
        self._begun = spec.calls is False  # whether the content has begun

    def feed(self, tokens: Sequence[int], ended: bool) -> AnswerDelta:
        """Read the next tokens; `ended`: they are the last. Content before a call that is only
        whitespace is left out. Raises `InvalidValueError` if a call is malformed."""
        self._tokens += tokens
        new = self._stream.emit(self._tokens, ended)
        calls: list[CallDelta] = []
        if self._calls is not None:
            calls = self._calls.feed(new.answer)
            if ended:
                calls += self._calls.end()
        reasoning, text = new.reasoning, new.text
        if self._reasoning is not None:
            reasoning, text = "", self._reasoning.feed(self._tokens, ended) + text
        if not self._begun:
            self._blank += text
            self._begun = not self._blank.isspace() if self._blank else False
            kept = self._begun or (ended and not (self._calls and self._calls.count))
            text, self._blank = (self._blank, "") if kept else ("", self._blank)
        return AnswerDelta(reasoning, text, calls)


class _SpelledReasoning:
    """The text of a reasoning with the names of its markers, piece by piece."""

    def __init__(self, reading: Reading):
        self._reasoning, self._pieces = reading.reasoning, reading.vocabulary.pieces
        self._names: dict[int, bytes] = {}  # of markers that are control tokens
        thought, names = reading.vocabulary.thought, reading.markup.thought
        if thought is not None and names is not None:
            for ids, name in zip((thought.open, thought.close), names, strict=True):
                if len(ids) == 1 and ids[0] in reading.vocabulary.control:
                    self._names[ids[0]] = name.encode()
        self._read = 0  # tokens
        self._text = codecs.getincrementaldecoder("utf-8")("replace")

    def feed(self, tokens: Sequence[int], ended: bool) -> str:
        """Return the next characters of the reasoning with which `tokens` begin."""
        if self._reasoning is None or self._reasoning.opening(tokens) is None:
            return ""
        end = len(tokens) - len(self._reasoning.split(list(tokens), ended)[1])
        new, self._read = tokens[self._read : end], end
        raw = b"".join(self._names.get(token, self._pieces[token]) for token in new)
        return self._text.decode(raw, ended)


def reading_of(request: Any) -> Reading | None:
    """Return how to read the answer of a request of vLLM; None: vLLM reads it."""
    tools = (getattr(request, "vllm_xargs", None) or {}).get(TOOLS)
    return tools.reading if isinstance(tools, ToolsText) else None


Function = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class MessageClasses:
    """vLLM's classes for parts of an answer, and its functions for tool calls."""

    delta: Function
    delta_call: Function
    delta_function: Function
    function: Function
    call_id: Callable[[], str]
    record: Function  # counts the use of a tool parser in vLLM's metrics

    @classmethod
    def of_vllm(cls) -> Self:
        from vllm.parser.engine import parser_engine
        from vllm.parser.metrics import record_tool_parser_invocation

        return cls(
            delta=parser_engine.DeltaMessage,
            delta_call=parser_engine.DeltaToolCall,
            delta_function=parser_engine.DeltaFunctionCall,
            function=parser_engine.FunctionCall,
            call_id=parser_engine.make_tool_call_id,
            record=record_tool_parser_invocation,
        )


def _argument(args: Sequence[Any], kwargs: Mapping[str, Any], place: int, name: str) -> Any:
    """Return an argument of vLLM's that is passed by its place or by its name."""
    return args[place] if place < len(args) else kwargs.get(name)


def reads_calls(classes: MessageClasses, original: Function) -> Function:
    """Wrap the method of vLLM's parsers that reads a whole answer."""

    def parse(self: Any, *args: Any, **kwargs: Any) -> Any:
        request = _argument(args, kwargs, 1, "request")
        reading = reading_of(request)
        if reading is None:
            return original(self, *args, **kwargs)
        tokens = _argument(args, kwargs, 3, "model_output_token_ids")
        answer = WholeAnswer()
        reader = AnswerReader(reading, apart=self.reasoning_parser is not None)
        answer.add(reader.feed(list(tokens), ended=True))
        if reading.spec.calls:
            classes.record(is_tool_called=bool(answer.calls), is_streaming=False, request=request)
        content = answer.content.strip() if answer.calls else answer.content
        calls = [
            classes.function(id=classes.call_id(), name=call.name, arguments=call.arguments)
            for call in answer.calls
        ]
        return answer.reasoning or None, content or None, calls or None

    return parse


def says_length(original: Function) -> Function:
    """Wrap the method of vLLM's chats that makes a whole answer. With calls it says "tool_calls",
    even if the answer was cut short: a client would run the last call."""

    async def chat_completion_full_generator(self: Any, *args: Any, **kwargs: Any) -> Any:
        if reading_of(kwargs.get("request", args[0] if args else None)) is None:
            return await original(self, *args, **kwargs)
        return await ended(self, *args, **kwargs)

    async def ended(
        serving: Any, request: Any, result_generator: Any, *args: Any, **kwargs: Any
    ) -> Any:
        reasons: dict[int, str | None] = {}

        async def watched() -> Any:
            async for result in result_generator:
                reasons.update({output.index: output.finish_reason for output in result.outputs})
                yield result

        answer = await original(serving, request, watched(), *args, **kwargs)
        for choice in getattr(answer, "choices", ()):
            if reasons.get(choice.index) == "length":
                choice.finish_reason = "length"
        return answer

    return chat_completion_full_generator


def reads_deltas(classes: MessageClasses, original: Function) -> Function:
    """Wrap the method of vLLM's parsers that reads a stream."""

    def parse_delta(self: Any, *args: Any, **kwargs: Any) -> Any:
        request = _argument(args, kwargs, 2, "request")
        reading = reading_of(request)
        if reading is None:
            return original(self, *args, **kwargs)
        tokens = _argument(args, kwargs, 1, "delta_token_ids")
        reader = getattr(self, _READER, None)
        if reader is None:
            reader = AnswerReader(reading, apart=self.reasoning_parser is not None)
            setattr(self, _READER, reader)
        delta = reader.feed(tokens, ended=kwargs["finished"])
        if reading.spec.calls:
            classes.record(is_tool_called=bool(delta.calls), is_streaming=True, request=request)
        return _message(delta, request.include_reasoning, classes)

    return parse_delta


def _message(delta: AnswerDelta, with_reasoning: bool, classes: MessageClasses) -> Any:
    """Return a piece of an answer as vLLM's message, with one entry for each call; None if it is
    empty."""
    entries: dict[int, dict[str, Any]] = {}
    for call in delta.calls:
        entry = entries.setdefault(call.index, {})
        if call.name is not None:
            entry["name"] = call.name
        if call.arguments:
            entry["arguments"] = entry.get("arguments", "") + call.arguments
    calls = [
        classes.delta_call(
            index=index,
            function=classes.delta_function(**entry),
            **({"id": classes.call_id(), "type": "function"} if "name" in entry else {}),
        )
        for index, entry in entries.items()
    ]
    texts = {"content": delta.content, "reasoning": delta.reasoning if with_reasoning else ""}
    fields: dict[str, Any] = {name: text for name, text in texts.items() if text}
    if calls:
        fields["tool_calls"] = calls
    return classes.delta(**fields) if fields else None
