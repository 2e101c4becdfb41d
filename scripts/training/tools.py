"""Requests that call for a tool, and the calls in Gemma 4's native form."""

import json
import re
from decimal import Decimal
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from training import kinds
from training.draws import Draw, Split
from training.samples import Sample, dumps, object_schema, plain

TOOLS = Path(__file__).parent / "lists" / "tools.txt"


@cache
def tools() -> dict[str, tuple[dict[str, str], tuple[str, ...]]]:
    """Name -> parameters with their kinds, and requests that name all of them."""
    found = {}
    for part in TOOLS.read_text(encoding="utf-8").split("== ")[1:]:
        name, *lines = part.strip().splitlines()
        requests = tuple(line[2:] for line in lines if line.startswith("- "))
        parameters = dict(line.split(": ", 1) for line in lines if not line.startswith("- "))
        found[name] = (parameters, requests)
    return found


def tool_call(random: Random, split: Split) -> Sample:
    """A call of one of the declared tools."""
    draw, known = Draw(random, split), tools()
    declared = random.sample(list(known), random.randint(1, 3))
    name = random.choice(declared)
    parameters, requests = known[name]
    values = {key: kinds.draw(kind, draw) for key, kind in parameters.items()}
    request = random.choice(requests)
    request = request[:1].upper() + request[1:]
    for key, value in values.items():
        request = request.replace(f"{{{key}}}", value.said)
        if value.value in (True, False):
            request = re.sub(
                rf"{{{key}\?(\w+)\|(\w+)}}", lambda m, v=value: m[1 if v.value else 2], request
            )
    arguments = {key: value.value for key, value in values.items()}
    body = ",".join(f"{key}:{native(value)}" for key, value in arguments.items())
    return Sample(
        task="tool",
        prompt=request,
        answer=f"<|tool_call>call:{name}{{{body}}}<tool_call|>",
        value=(name, plain(arguments)),
        tools=[_declaration(tool, known[tool][0]) for tool in declared],
    )


def native(value: Any) -> str:
    """A value as Gemma 4 writes it in a call: strings in control tokens, the rest as JSON."""
    if isinstance(value, Decimal):
        return dumps(value)
    return f'<|"|>{value}<|"|>' if isinstance(value, str) else json.dumps(value)


def _declaration(name: str, parameters: dict[str, str]) -> dict[str, Any]:
    properties = {}
    for key, kind in parameters.items():
        schema = kinds.schema(kind)
        properties[key] = schema if "type" in schema else {"type": "string", **schema}
    return {"type": "function", "function": {"name": name, "parameters": object_schema(properties)}}
