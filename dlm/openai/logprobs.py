"""Log-probabilities in bodies of chats, completions and responses, and in their answers.

The numbers are those of `dlm.logprobs`. How many an answer has is bounded, since they are kept as
JSON values until it ends: about 400 bytes each.
"""

import codecs
from collections.abc import Iterable, Sequence
from typing import Annotated

from pydantic import Field

from dlm.errors import RequestError
from dlm.grammar.vocabulary.pieces import TokenPieces
from dlm.logprobs import MOST_TOP, TokenLogprob
from dlm.openai.body import Body, Each, JsonModel, Takes, wrong
from dlm.openai.other_fields import closest
from dlm.request import Request

_MOST_NUMBERS = 1 << 16  # of all answers to a body
_LEAST = -9999.0  # stands for a probability of 0, as in vLLM: JSON has no infinity

_DESCRIPTION = """log-probabilities of the answer's tokens and, of each, up to 20 of the likeliest \
ones, `top_logprobs` in a chat and `logprobs` itself in a completion: see \
[Log-probabilities](#log-probabilities)"""


def _checked(field: str, count: int) -> int:
    if not 0 <= count <= MOST_TOP:
        raise wrong(field, count, f"0 to {MOST_TOP}")
    return count


class ChatLogprobFields(JsonModel):
    """Fields of a chat about log-probabilities."""

    logprobs: bool | None = Field(None, description=_DESCRIPTION)
    top_logprobs: int | None = Field(None, description=_DESCRIPTION)

    @property
    def alternatives(self) -> int | None:
        """`logprobs` of the requests. Raises `RequestError`."""
        count = _checked("top_logprobs", self.top_logprobs or 0)
        if count and not self.logprobs:
            raise RequestError("top_logprobs must have logprobs beside it, which must be true")
        return count if self.logprobs else None


class TextLogprobFields(JsonModel):
    """Field of a completion about log-probabilities."""

    logprobs: Annotated[int | bool, Takes(f"0 to {MOST_TOP}")] | None = Field(
        None, description=_DESCRIPTION
    )

    @property
    def alternatives(self) -> int | None:
        """`logprobs` of the requests. Raises `RequestError`."""
        if self.logprobs is None or self.logprobs is False:
            return None
        if self.logprobs is True:
            raise wrong("logprobs", True, f"0 to {MOST_TOP}")
        return _checked("logprobs", self.logprobs)


TEXT_LOGPROBS = "message.output_text.logprobs"  # entry of `include`
_INCLUDABLE = (  # OpenAI's entries
    TEXT_LOGPROBS,
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
    "message.input_image.image_url",
    "computer_call_output.output.image_url",
    "code_interpreter_call.outputs",
    "reasoning.encrypted_content",
)


class ResponseLogprobFields(JsonModel):
    """Fields of a response about log-probabilities."""

    include: Each[str] | None = Field(
        None,
        description=f"`{TEXT_LOGPROBS}`: log-probabilities of the text's tokens (see \
[Log-probabilities](serving.md#log-probabilities)). OpenAI's other entries have no effect, and \
unknown ones are a 400",
    )
    top_logprobs: int | None = Field(
        None,
        description=f"up to {MOST_TOP} of each token's likeliest alternatives; above 0 it asks for \
log-probabilities without `include` too",
    )

    @property
    def alternatives(self) -> int | None:
        """`logprobs` of the request. Raises `RequestError`."""
        for i, entry in enumerate(self.include or ()):
            if entry not in _INCLUDABLE:
                meant = closest(entry[:60], _INCLUDABLE)
                hint = f", or send {meant} if that is meant" if meant else ""
                raise RequestError(
                    f"include[{i}] is {entry!r:.60}, which is unknown here: leave it out{hint}",
                    field="include",
                )
        count = _checked("top_logprobs", self.top_logprobs or 0)
        return count if count or TEXT_LOGPROBS in (self.include or ()) else None


def check_numbers(requests: Iterable[Request]) -> None:
    """Raise `RequestError` if the choices of a body may have too many log-probabilities."""
    _check_numbers(requests, "logprobs", "max_tokens of all answers")


def check_response_numbers(requests: Iterable[Request]) -> None:
    """Raise `RequestError` if a response may have too many log-probabilities."""
    _check_numbers(requests, "top_logprobs", "max_output_tokens")


def _check_numbers(requests: Iterable[Request], field: str, tokens: str) -> None:
    numbers = sum(
        request.max_tokens * (1 + request.logprobs)
        for request in requests
        if request.logprobs is not None
    )
    if numbers > _MOST_NUMBERS:
        raise RequestError(
            f"{field} must be for fewer tokens: {tokens}, times 1 + the alternatives of a token, "
            f"must be at most {_MOST_NUMBERS}, got {numbers}",
            field=field,
        )


def _text(token: int, vocabulary: TokenPieces) -> str:
    """Return a token's text, or for a control token, which has none, its number as in vLLM."""
    return vocabulary.pieces[token].decode("utf-8", "replace") or f"token_id:{token}"


def _entries(
    logprobs: Sequence[TokenLogprob], vocabulary: TokenPieces, no_bytes: list[int] | None
) -> list[Body]:
    """Return the entries of tokens; `no_bytes` is `bytes` of a control token."""

    def body(token: int, logprob: float) -> Body:
        piece = vocabulary.pieces[token]
        return {
            "token": _text(token, vocabulary),
            "logprob": max(logprob, _LEAST),
            "bytes": list(piece) or no_bytes,
        }

    return [
        body(entry.token, entry.logprob) | {"top_logprobs": [body(*other) for other in entry.top]}
        for entry in logprobs
    ]


def chat_logprobs(logprobs: Sequence[TokenLogprob], vocabulary: TokenPieces) -> Body:
    """Return `logprobs` of a choice of a chat."""
    return {"content": _entries(logprobs, vocabulary, None), "refusal": None}


def response_logprobs(logprobs: Sequence[TokenLogprob], vocabulary: TokenPieces) -> list[Body]:
    """Return `logprobs` of a text of a response, in which `bytes` are always a list."""
    return _entries(logprobs, vocabulary, [])


class TextLogprobs:
    """`logprobs` of a completion's choice, whole or piece by piece."""

    def __init__(self, vocabulary: TokenPieces):
        self._vocabulary, self._offset = vocabulary, 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def next(self, logprobs: Sequence[TokenLogprob]) -> Body:
        """Return the field for the tokens that follow those of earlier calls."""
        offsets = []
        for entry in logprobs:
            offsets.append(self._offset)
            self._offset += len(self._decoder.decode(self._vocabulary.pieces[entry.token]))
        return {
            "text_offset": offsets,
            "token_logprobs": [max(entry.logprob, _LEAST) for entry in logprobs],
            "tokens": [_text(entry.token, self._vocabulary) for entry in logprobs],
            "top_logprobs": [
                {_text(token, self._vocabulary): number for token, number in entry.top}
                for entry in logprobs
            ],
        }
