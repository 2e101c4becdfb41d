"""Tasks of training other than extraction and conversations, and the mixture of all.

Copying teaches to look values up, choosing a word teaches closed lists, and calls of tools are
written in Gemma 4's native form.
"""

import re
from random import Random
from typing import Any

from training import kinds, patterns, toolbox
from training.conversations import after_result, made_up_call, short_answer
from training.extraction import extract, long_text, texts_of
from training.kinds import STRING
from training.samples import Sample, object_schema, plain, written
from training.toolbox import typed, written_call
from training.words import Draw, Split, forms, made_up

_COPIED = """person first city company thing product code title email phone street date time login
word int num money""".split()
DIGITS = 3  # of a number that is easily mixed with another
SENTENCE = 45  # tokens of a sentence of the built-in tokenizer, about


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
    way = random.choice(forms("copies"))
    return Sample(
        task="copy",
        prompt=way.format(k=key, v=string),
        answer=written({key: string}, random),
        value={key: string},
        schema=object_schema({key: STRING}),
    )


def numbers(random: Random, split: Split) -> Sample:
    """Draw an extraction with two or more numbers of `DIGITS` digits or more."""
    while True:
        item = extract(random, split)
        if long_numbers(item.value) > 1:
            return item


def long_numbers(value: Any) -> int:
    """Return how many numbers of `DIGITS` digits or more there are anywhere in a value."""
    if isinstance(value, dict | list):
        return sum(map(long_numbers, value.values() if isinstance(value, dict) else value))
    if isinstance(value, bool) or not isinstance(value, int | float):
        return 0
    return sum(map(str.isdigit, str(value))) >= DIGITS


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
    way = random.choice(forms("choices"))
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
    draw, tools = Draw(random, split), toolbox.tools()
    declared = random.sample(list(tools), random.randint(1, 3))
    name = random.choice(declared)
    parameters, requests = tools[name]
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
        answer=written_call(name, arguments),
        value=(name, plain(arguments)),
        tools=[_declaration(tool, tools[tool][0]) for tool in declared],
    )


def _declaration(name: str, parameters: dict[str, str]) -> dict[str, Any]:
    properties = {key: typed(kinds.schema(kind)) for key, kind in parameters.items()}
    return {"type": "function", "function": {"name": name, "parameters": object_schema(properties)}}


TASKS = {
    extract: 0.49,
    numbers: 0.04,
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


def long_sample(random: Random, split: Split, tokens: int) -> Sample:
    """Draw an extraction from a text of about a quarter to all of `tokens` tokens."""
    return long_text(random, split, max(1, random.randint(tokens // 4, tokens) // SENTENCE))
