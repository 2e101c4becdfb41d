"""Tables of the fields of bodies, made from their models for the docs.

`python -m dlm.serving.fields PAGE...` writes them into pages, each between two comments.
"""

import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path

from pydantic.fields import FieldInfo

from dlm.anthropic.messages import MessagesBody
from dlm.openai.body import JsonModel
from dlm.openai.other_fields import ACCEPTED, NEUTRAL, NeutralFields
from dlm.openai.requests import ChatBody, CompletionBody
from dlm.openai.responses import ResponsesBody

_CHATS: Mapping[type[JsonModel], str] = {ChatBody: "chats", CompletionBody: "completions"}
_NEUTRAL_HEAD = "| field and values | otherwise a 400 with the reason |\n|---|---|"


def chat_tables() -> str:
    """Return the tables of chats and completions in Markdown."""
    rows = _rows(_CHATS)
    rows["accepted, without an effect"] = [f"`{name}`" for name in sorted(ACCEPTED)]
    neutral = {
        name: values for name, values in NEUTRAL.items() if name not in ChatBody.model_fields
    }
    return "\n".join(
        [
            _table(rows),
            "\nAccepted with these values, which change nothing; without one, null alone:\n",
            _NEUTRAL_HEAD,
            *_neutral_rows(neutral),
        ]
    )


def body_table(body: type[JsonModel]) -> str:
    """Return the table of one body in Markdown."""
    return _table(_rows({body: ""}))


def _rows(bodies: Mapping[type[JsonModel], str]) -> dict[str, list[str]]:
    """Return the names of fields by their descriptions. Fields that must be given come first."""
    rows: dict[str, list[str]] = {}
    for name, field in _fields(bodies).items():
        homes = [home for body, home in bodies.items() if name in body.model_fields]
        only = f" ({homes[0]})" if len(homes) < len(bodies) else ""
        rows.setdefault(field.description or "", []).append(f"`{name}`{only}")
    return rows


def _table(rows: Mapping[str, list[str]]) -> str:
    lines = (f"| {', '.join(names)} | {text} |" for text, names in rows.items())
    return "\n".join(["| field | |\n|---|---|", *lines])


def _neutral_rows(neutral: NeutralFields) -> list[str]:
    reasons: dict[str, list[str]] = {}
    for name, (values, reason) in neutral.items():
        shown = " or ".join(f"`{json.dumps(value)}`" for value in values)
        reasons.setdefault(reason, []).append(f"`{name}` {shown}".rstrip())
    return [f"| {', '.join(names)} | {reason} |" for reason, names in reasons.items()]


def _fields(bodies: Mapping[type[JsonModel], str]) -> dict[str, FieldInfo]:
    fields = {name: field for body in bodies for name, field in body.model_fields.items()}
    leading = ("messages", "prompt", "input")
    return dict(sorted(fields.items(), key=lambda pair: pair[0] not in leading))


def with_tables(page: str) -> str:
    """Return a page whose tables are the present ones."""
    for name, table in {
        "chats": chat_tables(),
        "responses": body_table(ResponsesBody),
        "messages": body_table(MessagesBody),
    }.items():
        begin = f"<!-- fields of {name}: made by python -m dlm.serving.fields -->\n"
        page = re.sub(
            f"(?<={re.escape(begin)}).*?(?=\n<!-- end of fields -->)",
            lambda _, table=table: table,
            page,
            count=1,
            flags=re.DOTALL,
        )
    return page


if __name__ == "__main__":
    for name in sys.argv[1:]:
        Path(name).write_text(with_tables(Path(name).read_text()))
