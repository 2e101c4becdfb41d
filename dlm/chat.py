"""Conversion of conversations to token ids, by the chat template of the model.

The caller's text is text, even if it spells a control token: only the template writes these. So
each character of the caller's with which a control token could begin is replaced by a stand-in
before the template is rendered; afterwards the caller's characters can be distinguished from the
template's. One drawback: a template that looks for control tokens in a message, to strip its
reasoning for example, finds none.
"""

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any

import jinja2
from transformers import (
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)
from transformers.models.auto.tokenization_auto import get_tokenizer_config

from dlm.errors import DlmError, RequestError
from dlm.grammar.regex import SURROGATES
from dlm.grammar.schema.documents import without_nulls
from dlm.grammar.specs.tools import function_of
from dlm.images import without_pictures
from dlm.request import Request

_TURN = "<|turn>model\n"  # beginning of a model's turn
_NO_THOUGHT = "<|channel>thought\n<channel|>"  # an empty thought channel
# Hieroglyphs are rare, and no filter of a template changes or escapes them.
_STAND_INS = [chr(c) for c in range(0x13000, 0x13400)]
_TEMPLATE_ERRORS = (AttributeError, LookupError, RecursionError, TypeError, ValueError)
_PIECE = 65_536  # characters searched at a time


class Chat:
    """Tokenizer and chat template. Neither is ever changed, so any number of threads may use
    them."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self.tokenizer = tokenizer
        self._turn, self._no_thought = self._encode(_TURN), self._encode(_NO_THOUGHT)
        added = tokenizer.added_tokens_decoder
        self._control = {token.content: i for i, token in added.items() if token.special}
        names = sorted(self._control, key=len, reverse=True)  # longest first, as in the tokenizer
        self._names = re.compile("|".join(map(re.escape, names)) or "(?!)")
        self._longest_name = len(names[0]) if names else 0

    @classmethod
    def load(cls, directory: str | Path) -> "Chat":
        try:
            return cls(_tokenizer(str(directory)))
        except (AttributeError, OSError, TypeError, ValueError) as error:
            raise DlmError(f"{directory} holds no tokenizer that can be read: {error}") from error

    def prompt(self, request: Request) -> list[int]:
        """Return the prompt of a request as tokens. Without thinking, an empty thought channel is
        added where the model's turn has just begun: the model would write it itself, but no grammar
        allows it. Only raw tokens without a constraint stay exactly as they are."""
        if request.token_ids is not None or request.text is not None:
            tokens = self.raw(request.text) if request.text else list(request.token_ids or ())
            if request.constraint is None:
                return tokens
        else:
            messages = request.messages or [{"role": "user", "content": request.prompt}]
            tokens = self._render(messages, request.tools, request.thinking)
        return tokens if request.thinking else tokens + self.no_thought_after(tokens)

    def no_thought_after(self, prompt: Sequence[int]) -> list[int]:
        """Return an empty thought channel if `prompt` ends where the model's turn begins."""
        opened = list(prompt[-len(self._turn) :]) == self._turn
        return list(self._no_thought) if opened else []

    def raw(self, text: str) -> list[int]:
        """Return the tokens of a text in which the names of control tokens are control tokens."""
        if SURROGATES.search(text):
            raise RequestError("the text holds half a surrogate pair, which is no text")
        begin, tokens = self.tokenizer.bos_token_id, self._encode(text)
        if isinstance(begin, int) and tokens[:1] != [begin]:
            tokens.insert(0, begin)
        return tokens

    def _render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        thinking: bool,
    ) -> list[int]:
        if self.tokenizer.chat_template is None:
            raise RequestError("this model has no chat template: give token_ids, not messages")
        messages = [*map(without_pictures, messages)]
        table = self._stand_ins([messages, tools])
        try:
            text = self.tokenizer.apply_chat_template(
                [_replaced(message, table) for message in messages],
                tools=[_replaced(_declared(tool), table) for tool in tools] or None,
                enable_thinking=thinking,
                add_generation_prompt=True,
                tokenize=False,
            )
        except (jinja2.TemplateError, *_TEMPLATE_ERRORS) as error:
            # `raise_exception` in a template raises just this class, with its author's message.
            own = type(error) is jinja2.TemplateError
            reason = str(error) if own else "it takes the form that OpenAI's API has"
            what = "messages and tools" if tools else "messages"
            raise RequestError(
                f"the chat template cannot render {what}: {reason}",
                field=None if tools else "messages",
            ) from error
        return self._tokenize(str(text), table)

    def _stand_ins(self, written: Any) -> dict[int, str]:
        """Return the stand-in of each character that needs one; empty if none begins a control
        token. No stand-in occurs in the caller's text, so each one in a rendering can be replaced
        back."""
        used = set[str]().union(*(one for one in leaves(written) if isinstance(one, str)))
        if SURROGATES.search("".join(used)):
            raise RequestError("messages hold half a surrogate pair, which is no text")
        begin = sorted({name[0] for name in self._control} & used)
        free = [c for c in _STAND_INS if c not in used]
        if len(free) < len(begin):
            raise RequestError(
                "messages hold every hieroglyph of U+13000 to U+133FF: leave one out"
            )
        return {ord(c): stand_in for c, stand_in in zip(begin, free, strict=False)}

    def _tokenize(self, rendered: str, table: Mapping[int, str]) -> list[int]:
        """Tokenize a rendering; control tokens that only the caller's text spells stay text."""
        text = rendered
        for c, stand_in in table.items():
            text = text.replace(stand_in, chr(c))
        names = list(self._named(rendered))
        if [n.span() for n in names] == [n.span() for n in self._named(text)]:
            return self._encode(text)
        tokens, at = [], 0
        for name in names:
            tokens += [*self._spell(text[at : name.start()]), self._control[name[0]]]
            at = name.end()
        return tokens + self._spell(text[at:])

    def _named(self, text: str) -> Iterator[re.Match[str]]:
        """Yield the names of control tokens, a piece at a time: no other thread runs during a
        search."""
        at = 0
        while at < len(text):
            end = at + _PIECE
            found = self._names.finditer(text, at, end + self._longest_name)
            at = end
            for name in found:
                if name.start() >= end:
                    break
                yield name
                at = max(at, name.end())

    def _spell(self, text: str) -> list[int]:
        """Tokenize `text` as text, including the names of control tokens."""
        tokens = self._speller.encode(text, add_special_tokens=False, split_special_tokens=True)
        if not set(self._control.values()).isdisjoint(tokens):
            raise RequestError("messages spell a control token that the tokenizer cannot split")
        return tokens

    @cached_property
    def _speller(self) -> PreTrainedTokenizerBase:
        """Tokenizer that splits the names of control tokens. This is a setting of a tokenizer,
        which would affect all its users: hence a copy."""
        if not isinstance(self.tokenizer, PreTrainedTokenizerFast):
            return self.tokenizer
        speller = copy.deepcopy(self.tokenizer)
        speller.backend_tokenizer.encode_special_tokens = True
        return speller

    def _encode(self, text: str) -> list[int]:
        if isinstance(self.tokenizer, PreTrainedTokenizerFast):
            # The wrapper is slow. A batch lets other threads run.
            backend = self.tokenizer.backend_tokenizer
            return list(backend.encode_batch_fast([text], add_special_tokens=False)[0].ids)
        return self.tokenizer.encode(text, add_special_tokens=False)


def _declared(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a tool in the form for templates: with a schema of parameters, and without nulls."""
    function = function_of(tool)
    if function is None:
        return tool
    schema = function.get("parameters") or {"type": "object"}
    with suppress(RecursionError):  # too deep to be served, which is checked elsewhere
        schema = without_nulls(schema)
    if isinstance(schema, Mapping):
        function = {**function, "parameters": {"properties": {}, **schema}}
    return {"type": "function", "function": function}


def leaves(written: Any) -> Iterator[str | float | None]:
    """Yield all keys, and all values that hold no others. Raises `RequestError` for other than JSON
    data."""
    waiting = [written]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str | int | float | None):
            yield value
        elif isinstance(value, Mapping):
            waiting += [*value.keys(), *value.values()]
        elif isinstance(value, list | tuple):
            waiting += value
        else:
            raise RequestError(f"messages hold a {type(value).__name__}: they take JSON data")


def _replaced(written: Any, table: Mapping[int, str]) -> Any:
    """Return a copy of `written` with each character in `table` replaced."""
    if isinstance(written, str):
        for c, stand_in in table.items():
            written = written.replace(chr(c), stand_in)
        return written
    if isinstance(written, Mapping):
        return {_replaced(k, table): _replaced(v, table) for k, v in written.items()}
    if isinstance(written, list | tuple):
        return [_replaced(value, table) for value in written]
    return written


def _tokenizer(directory: str) -> PreTrainedTokenizerBase:
    """Load a tokenizer by `AutoTokenizer`. If the directory names the tokenizer's class, the
    model's own configuration class is not imported: it imports most of transformers and torch's
    compiler, which takes two seconds."""
    config = None
    if get_tokenizer_config(directory, local_files_only=True).get("tokenizer_class"):
        settings, _ = PreTrainedConfig.get_config_dict(directory, local_files_only=True)
        config = type(
            "Config", (PreTrainedConfig,), {"model_type": settings.get("model_type", "")}
        )()
    return AutoTokenizer.from_pretrained(directory, local_files_only=True, config=config)
