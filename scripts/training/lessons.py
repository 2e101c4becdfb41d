"""Tasks of training other than extraction, and the mixture of all.

Copying teaches to look values up, choosing a word teaches closed lists, and calls of tools are
written in Gemma 4's native form.
"""

import json
import re
from decimal import Decimal
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from training import kinds, patterns
from training.extraction import extract, texts_of
from training.kinds import STRING
from training.samples import Sample, dumps, object_schema, plain, written
from training.words import Draw, Split, made_up

_COPIED = """person first city company thing product code title email phone street date time login
word int num money""".split()


def copy(random: Random, split: Split) -> Sample:
    """Draw a sample of plain copying: items of a list, or one string."""
    if random.random() < 0.3:
        return copied(random, split, random.randint(1, 16))
    draw = Draw(random, split)
    items = []
    for _ in range(random.randint(2, 6)):
        kind = random.choice(_COPIED)
        items.append(
            kinds.draw({"int": "int 0 9999", "num": "num 0 99"}.get(kind, kind), draw).text
        )
    return Sample(
        task="copy",
        prompt=f"List as JSON. {', '.join(items)}",
        answer=written(items, random),
        value=items,
        schema={"type": "array", "items": STRING},
    )


def copied(random: Random, split: Split, length: int) -> Sample:
    """Draw a sample that repeats one string of `length` random letters."""
    draw = Draw(random, split)
    letters = "abcdefghijklmnopqrstuvwxyz"
    if random.random() < 0.3:
        letters += letters.upper() + "0123456789"

    def letters_of() -> str:
        if random.random() < 0.3 and 4 <= length <= 10:
            return (made_up(random) + made_up(random))[:length]
        return "".join(random.choices(letters, k=length))

    string = draw.ours(letters_of)
    key = random.choice(["word", "text", "name", "value", "code"])
    way = random.choice(
        [
            "Extract {k} as JSON. The {k} is {v}.",
            "Extract {k} as JSON. {v}",
            "Extract {k} as JSON. {v} is the {k} that was given.",
            "Return {k} as JSON. Somebody wrote {v} on the wall.",
            "Repeat as JSON with the key {k}: {v}",
            "Extract {k} as JSON. We looked at {v}, a {k}.",
        ]
    )
    return Sample(
        task="copy",
        prompt=way.format(k=key, v=string),
        answer=written({key: string}, random),
        value={key: string},
        schema=object_schema({key: STRING}),
    )


def choice(random: Random, split: Split) -> Sample:
    """Draw a sample that chooses a word of a list: the value of a closed field of the text."""
    draw = Draw(random, split)
    while True:
        domain = random.choice(patterns.domains(split == "train"))
        closed = {
            name: field.kind.split()[1:]
            for name, field in domain.fields.items()
            if field.kind.startswith("enum")
        }
        if not closed:
            continue
        name, options = random.choice(list(closed.items()))
        sentences, values, _ = texts_of(domain, "heldout" if split == "unseen" else split, draw)
        if name in values:
            break
    word = values[name].value
    listed = random.sample(options, len(options))
    text = " ".join(sentences)
    way = random.choice(
        [
            "Answer with one word of {o}. {t}",
            "Answer with one word of {o}. {t}",
            "One of {o}: {t}",
            "Which {k}: {o}? {t}",
            "{t} Choose the {k}: {o}.",
            "What is the {k}? Answer with one of {o}. {t}",
            "Classify the {k} as {o}. {t}",
        ]
    )
    key = random.choice(domain.fields[name].names).replace("_", " ")
    return Sample(
        task="choice",
        prompt=way.format(o=prose_list(listed, random), t=text, k=key),
        answer=word,
        value=word,
        schema={"enum": options},
    )


def prose_list(options: list[Any], random: Random) -> str:
    *most, last = map(str, options)
    return ", ".join(most) + random.choice([", ", " or ", ", or "]) + last


TOOLS = Path(__file__).parent / "lists" / "tools.txt"


@cache
def tools() -> dict[str, tuple[dict[str, str], tuple[str, ...]]]:
    """Return the parameters of each tool with their kinds, and requests that name all of them."""
    found = {}
    for part in TOOLS.read_text(encoding="utf-8").split("== ")[1:]:
        name, *lines = part.strip().splitlines()
        requests = tuple(line[2:] for line in lines if line.startswith("- "))
        parameters = dict(line.split(": ", 1) for line in lines if not line.startswith("- "))
        found[name] = (parameters, requests)
    return found


def tool_call(random: Random, split: Split) -> Sample:
    """Draw a sample that calls one of the declared tools."""
    draw, known = Draw(random, split), tools()
    declared = random.sample(list(known), random.randint(1, 3))
    name = random.choice(declared)
    parameters, requests = known[name]
    values = {key: kinds.draw(kind, draw) for key, kind in parameters.items()}
    request = random.choice(requests)
    request = request[:1].upper() + request[1:]
    for key, value in values.items():
        request = request.replace(f"{{{key}}}", value.text)
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
    """Return a value as Gemma 4 writes it in a call: strings in control tokens, others as JSON."""
    if isinstance(value, Decimal):
        return dumps(value)
    return f'<|"|>{value}<|"|>' if isinstance(value, str) else json.dumps(value)


def _declaration(name: str, parameters: dict[str, str]) -> dict[str, Any]:
    properties = {}
    for key, kind in parameters.items():
        schema = kinds.schema(kind)
        properties[key] = schema if "type" in schema else {"type": "string", **schema}
    return {"type": "function", "function": {"name": name, "parameters": object_schema(properties)}}


TASKS = {extract: 0.91, tool_call: 0.04, choice: 0.03, copy: 0.02}


def sample(random: Random, split: Split, copying: float = 0.0) -> Sample:
    """Draw a sample of any task; `copying` is the share of plain copying."""
    if random.random() < copying:
        return copy(random, split)
    return random.choices(list(TASKS), list(TASKS.values()))[0](random, split)
