"""Table of the fields of a chat and a completion, made from their models for docs/serving.md.

`python -m dlm.openai.fields docs/serving.md` writes it into the page, between two comments.
"""

import json
import re
import sys
from pathlib import Path

from pydantic.fields import FieldInfo

from dlm.openai.body import JsonModel
from dlm.openai.other_fields import LABELS, NEUTRAL
from dlm.openai.requests import ChatBody, CompletionBody

BEGIN, END = "<!-- fields: made by python -m dlm.openai.fields -->", "<!-- end of fields -->"
_BODIES: dict[type[JsonModel], str] = {ChatBody: "chats", CompletionBody: "completions"}


def fields_table() -> str:
    """Return the table in Markdown. Fields with one description share a row."""
    rows: dict[str, list[str]] = {}
    for name, field in _fields().items():
        homes = [home for body, home in _BODIES.items() if name in body.model_fields]
        only = f" ({homes[0]})" if len(homes) < len(_BODIES) else ""
        rows.setdefault(field.description or "", []).append(f"`{name}`{only}")
    rows["accepted, without an effect"] = [f"`{name}`" for name in sorted(LABELS)]
    reasons: dict[str, list[str]] = {}
    for name, (values, reason) in NEUTRAL.items():
        if name not in ChatBody.model_fields:  # others are neutral in decisions only
            shown = " or ".join(f"`{json.dumps(value)}`" for value in values)
            reasons.setdefault(reason, []).append(f"`{name}` {shown}".rstrip())
    return "\n".join(
        [
            "| field | |\n|---|---|",
            *(f"| {', '.join(names)} | {text} |" for text, names in rows.items()),
            "\nAccepted with these values, which change nothing; without one, null alone:\n",
            "| field and values | otherwise a 400 with the reason |\n|---|---|",
            *(f"| {', '.join(names)} | {reason} |" for reason, names in reasons.items()),
        ]
    )


def _fields() -> dict[str, FieldInfo]:
    """Return the fields of all bodies by name, those that must be given first."""
    fields = {name: field for body in _BODIES for name, field in body.model_fields.items()}
    return dict(sorted(fields.items(), key=lambda pair: pair[0] not in ("messages", "prompt")))


def with_table(page: str) -> str:
    """Return a page whose table is the present one."""
    return re.sub(
        f"(?<={re.escape(BEGIN)}\n).*?(?=\n{re.escape(END)})",
        lambda _: fields_table(),
        page,
        flags=re.DOTALL,
    )


if __name__ == "__main__":
    for name in sys.argv[1:]:
        Path(name).write_text(with_table(Path(name).read_text()))
