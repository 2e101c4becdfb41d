"""Tasks of training other than extraction, the mixture of all, and the exams of a trained model.

Copying teaches to look values up, choosing a word teaches closed lists, and calls of tools are
written in Gemma 4's native form. An exam is a set of samples for one ability.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from training import kinds, patterns, toolbox
from training.chats import after_result, made_up_call, short_answer
from training.extraction import bare, extract, texts_of
from training.kinds import STRING
from training.samples import Sample, dumps, object_schema, plain, written
from training.toolbox import native
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


def tool_call(random: Random, split: Split) -> Sample:
    """Draw a sample that calls one of the declared tools."""
    draw, known = Draw(random, split), toolbox.tools()
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
    return Sample(
        task="tool",
        prompt=request,
        answer=f"<|tool_call>call:{name}{native(arguments)}<tool_call|>",
        value=(name, plain(arguments)),
        tools=[_declaration(tool, known[tool][0]) for tool in declared],
    )


def _declaration(name: str, parameters: dict[str, str]) -> dict[str, Any]:
    properties = {}
    for key, kind in parameters.items():
        schema = kinds.schema(kind)
        properties[key] = schema if "type" in schema else {"type": "string", **schema}
    return {"type": "function", "function": {"name": name, "parameters": object_schema(properties)}}


TASKS = {
    extract: 0.53,
    made_up_call: 0.3,
    after_result: 0.05,
    short_answer: 0.04,
    tool_call: 0.03,
    choice: 0.03,
    copy: 0.02,
}


def sample(random: Random, split: Split, copying: float = 0.0) -> Sample:
    """Draw a sample of any task; `copying` is the share of plain copying."""
    if random.random() < copying:
        return copy(random, split)
    return random.choices(list(TASKS), list(TASKS.values()))[0](random, split)


OUTSIDERS = Path(__file__).parent / "outsiders.jsonl"
LENGTHS = (2, 4, 8, 12, 16)  # of random strings to copy, in letters
_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number"}


def exams(count: int, seed: int) -> dict[str, list[Sample]]:
    """Return `count` samples for each set, or all of the outsiders' sentences if they are fewer."""

    def drawn(name: str, make: Callable[[Random], Sample], share: int = 1) -> list[Sample]:
        random = Random(f"evaluate/{seed}/{name}")
        return [make(random) for _ in range(max(1, count // share))]

    sets = {
        "same patterns": drawn("same", lambda r: extract(r, "heldout")),
        "held-out patterns": drawn("unseen", lambda r: extract(r, "unseen")),
        "distractors": drawn("distractors", lambda r: having({"distractor"}, r), 2),
        "lists, nesting": drawn("nested", lambda r: having({"list", "rows", "nested"}, r), 2),
        "something missing": drawn("missing", lambda r: having({"missing"}, r), 4),
        "keys unasked": drawn("unasked", lambda r: having({"unasked"}, r, 1.0), 2),
    }
    for n in LENGTHS:
        sets[f"copy {n} letters"] = drawn(f"copy {n}", lambda r, n=n: copied(r, "heldout", n), 5)
    return {
        **sets,
        "tools": drawn("tools", lambda r: tool_call(r, "heldout"), 2),
        "choices": drawn("choices", lambda r: choice(r, "heldout"), 2),
        "schema alone": drawn("alone", lambda r: bare(r, "unseen")),
        "made-up tools": drawn("made up", lambda r: made_up_call(r, "heldout")),
        "after a result": drawn("result", lambda r: after_result(r, "heldout")),
        "plain requests": drawn("plain", lambda r: short_answer(r, "heldout"), 2),
        "outsiders": outsiders()[:count],
    }


def having(traits: set[str], random: Random, unasked: float = 0.0) -> Sample:
    """Draw a sample of trained patterns and held-out values that has one of the traits."""
    while True:
        item = extract(random, "heldout", unasked)
        if item.traits & traits:
            return item


def outsiders() -> list[Sample]:
    """Read sentences by other authors, with their answers; training does not use them."""
    lines = OUTSIDERS.read_text(encoding="utf-8").splitlines()
    return [_outsider(json.loads(line)) for line in lines]


def _outsider(line: dict[str, Any]) -> Sample:
    value = line["answer"]
    return Sample(
        task="extract",
        prompt=f"Extract {', '.join(value)} as JSON. {line['text']}",
        answer=dumps(value),
        value=value,
        schema=schema_of(value),
        traits=frozenset({"outsider"}),
    )


def schema_of(value: Any) -> dict[str, Any]:
    """Return the schema that a value suggests."""
    if isinstance(value, dict):
        return object_schema({key: schema_of(part) for key, part in value.items()})
    if isinstance(value, list):
        return {"type": "array", "items": schema_of(value[0])}
    return {"type": _TYPES[type(value)]}
