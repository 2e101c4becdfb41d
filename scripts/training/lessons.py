"""The smaller tasks: copying, which teaches to look values up, and choosing a word."""

from random import Random
from typing import Any

from training import kinds, patterns
from training.draws import Draw, Split
from training.extraction import texts_of
from training.kinds import STRING
from training.samples import Sample, object_schema, written
from training.words import made_up

_COPIED = """person first city company thing product code title email phone street date time login
word int num money""".split()


def copy(random: Random, split: Split) -> Sample:
    """Copying, and nothing to understand: items of a list, or one string."""
    if random.random() < 0.3:
        return copied(random, split, random.randint(1, 16))
    draw = Draw(random, split)
    items = []
    for _ in range(random.randint(2, 6)):
        kind = random.choice(_COPIED)
        items.append(
            kinds.draw({"int": "int 0 9999", "num": "num 0 99"}.get(kind, kind), draw).said
        )
    return Sample(
        task="copy",
        prompt=f"List as JSON. {', '.join(items)}",
        answer=written(items, random),
        value=items,
        schema={"type": "array", "items": STRING},
    )


def copied(random: Random, split: Split, length: int) -> Sample:
    """One string of random letters of about `length`, to be repeated."""
    draw = Draw(random, split)
    letters = "abcdefghijklmnopqrstuvwxyz"
    if random.random() < 0.3:
        letters += letters.upper() + "0123456789"

    def text() -> str:
        if random.random() < 0.3 and 4 <= length <= 10:
            return (made_up(random) + made_up(random))[:length]
        return "".join(random.choices(letters, k=length))

    said = draw.ours(text)
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
        prompt=way.format(k=key, v=said),
        answer=written({key: said}, random),
        value={key: said},
        schema=object_schema({key: STRING}),
    )


def choice(random: Random, split: Split) -> Sample:
    """One word of a list that the prompt gives: what the text says of a closed field."""
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
        told, values, _ = texts_of(domain, "heldout" if split == "unseen" else split, draw)
        if name in values:
            break
    word = values[name].value
    listed = random.sample(options, len(options))
    text = " ".join(told)
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
