"""Form in which a checkpoint writes calls of tools, as its chat template shows it.

A conversation with a call is rendered, and the form is the one whose reader finds that call in it.
So a template that a user has changed names its own form, and one that leaves calls out has none.
"""

import logging
from contextlib import suppress
from typing import Any

from dlm.chat import Chat
from dlm.errors import RequestError, TemplateError
from dlm.grammar import InvalidValueError, ToolCall
from dlm.grammar.calls import MARKUPS, AnswerReading
from dlm.grammar.calls.token_text import ARGUMENTS_MARK, OPEN_MARK
from dlm.grammar.vocabulary import MistralListMarkers, MistralMarkers

_LOG = logging.getLogger("dlm")
_NAME, _ARGUMENTS = "look_it_up", {"place": "Oslo", "days": 3}
_TOOL = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": "Look it up.",
        "parameters": {
            "type": "object",
            "properties": {"place": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["place", "days"],
        },
    },
}
_CONTROL = {kind.form: kind.names for kind in (MistralMarkers, MistralListMarkers)}
_ID = "call00000"  # nine letters and digits, as some templates require
_MESSAGES: list[dict[str, Any]] = [
    {"role": "user", "content": "Hello"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {
                "id": _ID,
                "type": "function",
                "function": {"name": _NAME, "arguments": _ARGUMENTS},
            }
        ],
    },
    {"role": "tool", "tool_call_id": _ID, "name": _NAME, "content": "Rain."},
]


def call_form(chat: Chat) -> str | None:
    """Return the name of the form, one of `MARKUPS`; None if the template shows none of them, or
    one with tags that are control tokens here: no text has those, so no call could be written."""
    try:
        rendered = chat.template("tool_use").render(_MESSAGES, [_TOOL], thinking=False)
    except (RequestError, TemplateError):
        return None
    form = next((form for form in MARKUPS if _shows(rendered, form, chat)), None)
    texts = (MARKUPS[form].opening, *MARKUPS[form].tags) if form else ()
    tags = [tag for tag in chat.control if any(tag in text for text in texts)]
    if tags:
        _LOG.warning(
            "requests with tools are refused: calls in the form %s have the text %s, which "
            'is a control token of this tokenizer ("special" in its added tokens)',
            form,
            tags[0],
        )
        return None
    return form


def _shows(rendered: str, form: str, chat: Chat) -> bool:
    """Return whether the call in a rendering has this form."""
    opening, names = MARKUPS[form].opening, _CONTROL.get(form, ())
    if names and chat.control.keys() >= set(names):
        for name, mark in zip(names, (OPEN_MARK, ARGUMENTS_MARK), strict=False):
            rendered = rendered.replace(name, mark)
        opening = OPEN_MARK
    if not opening:
        return False
    return any(
        _begins_with_call(rendered[at:], form)
        for at in range(len(rendered))
        if rendered.startswith(opening, at)
    )


def _begins_with_call(text: str, form: str) -> bool:
    reader: Any = MARKUPS[form].reader(AnswerReading(anywhere=False))
    with suppress(InvalidValueError):
        reader.feed_text(text)
        return reader.answer().tool_calls[:1] == (ToolCall(_NAME, _ARGUMENTS),)
    return False
