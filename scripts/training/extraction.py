"""Main task of training: extract the fields that a prompt names from prose, as JSON."""

import re
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from training import kinds, patterns
from training.kinds import ISO_DATE, Value
from training.patterns import Domain, Field
from training.samples import Sample, instruction, object_schema, plain, written
from training.words import Draw, Split, forms, held_out_name, listed, phrases_of

THINKING = 0.08  # share of extractions that think first
LABELLED = 0.1  # share of texts made of labels and values, whose keys are any nouns
DESCRIBED = 0.14  # share of prompts with a line that describes the schema
MISSING = 0.08  # share of samples that ask for what the text does not say; in training twice that
ISO = 0.25  # share of full dates that are wanted in ISO form
NESTED = 0.07  # share of samples with an object in the object; in training more
TRAINED_NESTED = 0.13
STRANGER = 0.05  # share of texts with a sentence about something else
UNASKED = 0.42  # share of training's prompts that leave it to the schema to say what is wanted
ALONE = 0.5  # share of training's prompts that name no field and are nothing but the text
COMPOUND = 0.12  # share of training's keys that also name the subject: `invoice_date`
SYSTEM = 0.08  # share of training's prompts with a system message
EXAMINED = 0.6  # share of training's texts that have no sentences but those exams are made of

WAYS = forms("labels")  # in which texts give labels and values, and what stands between two
TRAINED_WAYS = forms("trained_labels")  # more for training, as values before labels are hard


@dataclass(frozen=True)
class WantedField:
    """A key of the wanted object."""

    key: str
    value: Any
    schema: dict[str, Any]
    group: str | None = None
    missing: bool = False


def extract(random: Random, split: Split, unasked: float | None = None) -> Sample:
    """Draw a sample: `heldout` has values, `unseen` values and sentences that training never has.

    `unasked` is the share of prompts that do not name all keys, by default some in training and
    none elsewhere.
    """
    draw = Draw(random, split)
    if split != "unseen" and draw.chance(LABELLED):
        title, text, wanted, traits = _labelled(draw)
    else:
        title, text, wanted, traits = prose(draw, split)
    if unasked is None:
        unasked = UNASKED if split == "train" else 0.0
    return _sample(title, text, wanted, traits, random, unasked, split == "train")


def bare(random: Random, split: Split) -> Sample:
    """Draw a sample whose prompt is the text alone: only its schema names the keys."""
    item, text = None, ""
    while item is None or "described" in item.traits:
        title, text, wanted, traits = prose(Draw(random, split), split)
        item = _sample(title, text, wanted, traits, random, 0.0, False)
    return replace(item, prompt=text, unasked=frozenset(_keys(item.value)), thought=None)


def _keys(value: Any) -> set[str]:
    """Return the keys of a value's objects; columns of tables are never named by a prompt."""
    if not isinstance(value, dict):
        return set()
    return {*value, *(key for part in value.values() for key in _keys(part))}


def texts_of(domain: Domain, split: Split, draw: Draw) -> tuple[list[str], dict[str, Value], bool]:
    """Return sentences about one thing, their values, and whether they mention others too."""
    random, held = draw.random, split == "unseen"
    first = random.choice(domain.choose(held, False))
    chosen, stated = [first], set(first.fields)
    follows = [s for s in domain.choose(held, True) if s.fields]
    for _ in range(random.choices([0, 1, 2, 3], [0.55, 0.3, 0.12, 0.03])[0]):
        fitting = [s for s in follows if not stated & set(s.fields)]
        if not fitting:
            break
        chosen.append(random.choice(fitting))
        stated |= set(chosen[-1].fields)
    values = {name: drawn(domain.fields[name], draw) for name in domain.fields if name in stated}
    wrapped = draw.chance(0.05)
    sentences = [patterns.fill(s, domain, values, draw, wrapped and s is first) for s in chosen]
    return sentences, values, wrapped or any("{~" in s.text for s in chosen)


def drawn(field: Field, draw: Draw) -> Value:
    return patterns.table(field, draw) if field.rows else kinds.draw(field.kind, draw)


def long_text(random: Random, split: Split, sentences: int) -> Sample:
    """Draw a sample whose text stands among `sentences` others, which are about other things."""
    title, text, wanted, traits = prose(Draw(random, split), split, sentences)
    item = _sample(title, text, wanted, traits, random, 0.0, False)
    return replace(item, thought=None, traits=item.traits | {"long"})


def prose(
    draw: Draw, split: Split, strangers: int = 0
) -> tuple[str, str, list[WantedField], set[str]]:
    """Draw a text; return its title, its words, the wanted fields, and its traits.

    `strangers` sentences about other things come before and after it; 0: now and then one.
    """
    random, held = draw.random, split == "unseen"
    further = split == "train" and not draw.chance(EXAMINED)
    able = [d for d in patterns.domains(further) if d.choose(held, False)]
    domain = random.choice(able)
    sentences, values, distracting = texts_of(domain, split, draw)
    for _ in range(strangers or draw.chance(STRANGER)):
        other = random.choice([d for d in able if not d.fields.keys() & domain.fields.keys()])
        stranger = random.choice(other.choose(held, False))
        around = {name: drawn(other.fields[name], draw) for name in sorted(set(stranger.fields))}
        sentences.insert(
            random.choice([0, len(sentences)]), patterns.fill(stranger, other, around, draw, False)
        )
        distracting = True
    names = list(values)
    count = random.randint(1 if draw.chance(0.25) else min(2, len(names)), len(names))
    chosen = (
        random.sample(names, count)
        if draw.chance(0.5)
        else sorted(random.sample(names, count), key=names.index)
    )
    keys: set[str] = set()
    wanted = [_wanted_field(domain.fields[name], values[name], keys, draw) for name in chosen]
    if split == "train":
        wanted = [
            _compound(each, domain, draw) if draw.chance(COMPOUND) else each for each in wanted
        ]
    share = 2 * MISSING if split == "train" else MISSING
    if draw.chance(share) and (absent := [n for n in domain.fields if n not in values]):
        field = domain.fields[random.choice(absent)]
        if field.kind != "bool":
            schema = _schema(field)
            key = _key(field, keys, draw)
            gap = WantedField(key, None, schema, missing=True)
            wanted.insert(random.randint(0, len(wanted)), gap)
    if draw.chance(TRAINED_NESTED if split == "train" else NESTED):
        wanted = _grouped(wanted, domain, draw)
    return (
        domain.title,
        patterns.ruffled(sentences, draw),
        _styled(wanted, draw),
        ({"distractor"} if distracting else set()),
    )


def _wanted_field(field: Field, value: Value, keys: set[str], draw: Draw) -> WantedField:
    key = _key(field, keys, draw)
    if value.iso and draw.chance(ISO):
        if draw.chance(0.7):
            key = draw.random.choice([f"{key}_iso", "iso_date", f"iso_{key}"])
        return WantedField(key, value.iso, ISO_DATE)
    return WantedField(key, value.value, _schema(field))


def _compound(field: WantedField, domain: Domain, draw: Draw) -> WantedField:
    """Return the field with a key that also names the subject, unless exams own that key."""
    noun = re.sub(r"\W", "_", domain.title.split(" ", 1)[-1])
    key = draw.random.choice([f"{noun}_{field.key}", f"{field.key}_of_{noun}"])
    return field if held_out_name(key) else replace(field, key=key)


def _schema(field: Field) -> dict[str, Any]:
    if not field.rows:
        return kinds.schema(field.kind)
    columns = {name: kinds.schema(kind) for name, kind in field.columns.items()}
    return {"type": "array", "items": object_schema(columns)}


def _key(field: Field, keys: set[str], draw: Draw) -> str:
    free = [name for name in field.names if name not in keys] or [f"{field.names[0]}_2"]
    key = free[0] if draw.chance(0.4) else draw.random.choice(free)
    keys.add(key)
    return key


def _grouped(wanted: list[WantedField], domain: Domain, draw: Draw) -> list[WantedField]:
    """Return the fields, some of them within an object of their own."""
    if len(wanted) < 2:
        return wanted
    first = draw.random.randrange(len(wanted) - 1)
    size = draw.random.randint(2, min(4, len(wanted) - first))
    if domain.groups and draw.chance(0.7):
        group = draw.random.choice(list(domain.groups))
    else:
        group = draw.random.choice(
            ["details", "info", "data", domain.title.split()[-1], "record", "about", "entry"]
        )
    if group in {a.key for a in wanted}:
        return wanted
    return [
        WantedField(a.key, a.value, a.schema, group, a.missing) if first <= i < first + size else a
        for i, a in enumerate(wanted)
    ]


def _styled(wanted: list[WantedField], draw: Draw) -> list[WantedField]:
    """Return the fields with their keys in one of the styles of programmers, each key once."""
    style = draw.random.random()
    if not draw.heldout and 0.7 <= style < 0.82:  # training has more of them
        style += 0.12

    def styled(key: str) -> str:
        if style < 0.82:
            return key
        if style < 0.9:
            head, *rest = key.split("_")
            return head + "".join(part.capitalize() for part in rest)
        if style < 0.94:
            return key.replace("_", "-")
        if style < 0.97:
            return key.replace("_", " ")
        return key.capitalize() if style < 0.985 else key.upper()

    unique: dict[str, WantedField] = {}
    for a in wanted:
        unique.setdefault(
            styled(a.key), WantedField(styled(a.key), a.value, a.schema, a.group, a.missing)
        )
    return list(unique.values())


def _labelled(draw: Draw) -> tuple[str, str, list[WantedField], set[str]]:
    """Draw labels and values, written as notes, tables or plain sentences."""
    random = draw.random
    labels = dict.fromkeys(draw.word(listed("label")) for _ in range(random.randint(2, 6)))
    if draw.chance(0.3):
        labels = dict.fromkeys(f"{random.choice(listed('label'))} {label}" for label in labels)
    pairs = {label: _any_value(draw) for label in sorted(labels, key=lambda _: random.random())}
    thing = draw.word(listed("thing"))
    way, joint = random.choice(WAYS if draw.heldout else WAYS + TRAINED_WAYS)
    shown = {k: k.capitalize() if draw.chance(0.3) and way[0] == "{" else k for k in pairs}
    text = joint.join(way.format(k=shown[k], v=v.text, o=thing) for k, (v, _) in pairs.items())
    if draw.chance(0.3):
        text = (
            random.choice(["{o}: ", "The {o}. ", "About the {o}: ", "{o}\n"]).format(o=thing) + text
        )
    picked = random.sample(list(pairs), random.randint(1, len(pairs)))
    wanted = []
    for label in picked:
        value, kind = pairs[label]
        wanted.append(WantedField(label.replace(" ", "_"), value.value, kinds.schema(kind)))
    if not text.startswith(tuple(value.text for value, _ in pairs.values())):
        text = text[:1].upper() + text[1:]
    return f"a {thing}", text, _styled(wanted, draw), {"labelled"}


def _any_value(draw: Draw) -> tuple[Value, str]:
    kind = draw.random.choice(
        "person,first,city,company,thing,code,int 1 900,num 0 90,money,date,word,color,material,"
        "hotel,title,email,phone,time,version,country,animal,product,bigint".split(",")
    )
    return kinds.draw(kind, draw), kind


def _sample(
    title: str,
    text: str,
    wanted: list[WantedField],
    traits: set[str],
    random: Random,
    unasked: float,
    training: bool,
) -> Sample:
    """Return the sample. Missing values are null, or left out if the schema allows it."""
    described = random.random() < DESCRIBED
    leave_out = described and random.random() < 0.6
    value: dict[str, Any] = {}
    properties: dict[str, Any] = {}
    optional: set[str] = set()
    names: list[str] = []
    for a in wanted:
        schema = a.schema
        if a.missing and leave_out:
            optional.add(a.key)
        elif a.missing or (described and random.random() < 0.05):
            schema = _nullable(schema)
        elif leave_out and random.random() < 0.3:
            optional.add(a.key)
        where, kinds_there = value, properties
        if a.group:
            where = value.setdefault(a.group, {})
            inner = properties.setdefault(a.group, object_schema({}))
            kinds_there = inner["properties"]
            if a.missing and leave_out:
                optional.discard(a.key)
                schema = _nullable(schema)
            inner["required"].append(a.key)
            optional.discard(a.key)
        kinds_there[a.key] = schema
        if a.key not in optional or not a.missing:
            where[a.key] = a.value
        name = a.group or a.key
        if name not in names:
            names.append(name)
    schema = object_schema(properties, frozenset(optional))
    traits = traits | _traits(value)
    if any(a.missing for a in wanted):
        traits.add("missing")
    hidden: list[str] = []
    if unasked and not described and random.random() < unasked:
        whole = 0.9 if training else 0.7
        count = len(names) if random.random() < whole else random.randint(1, len(names))
        hidden = random.sample(names, count)
        traits.add("unasked")
    listed = [
        _with_parts(name, properties[name], random)
        if name in properties and properties[name].get("type") == "object"
        else name
        for name in names
        if name not in hidden
    ]
    prompt = instruction(listed, title, text, schema if described else None, random)
    before: list[dict[str, Any]] = []
    if training and not listed and random.random() < ALONE:
        prompt = text
    if training and random.random() < SYSTEM:
        system = random.choice(phrases_of("toolbox.txt", "systems"))
        before.append({"role": "system", "content": system})
    return Sample(
        before=before,
        task="extract",
        prompt=prompt,
        answer=written(value, random),
        value=plain(value),
        schema=schema,
        thought=f"The text is about {title}." if random.random() < THINKING else None,
        traits=frozenset(traits | ({"described"} if described else set())),
        unasked=frozenset(a.key for a in wanted if (a.group or a.key) in hidden) | {*hidden},
    )


def _with_parts(name: str, schema: dict[str, Any], random: Random) -> str:
    parts = ", ".join(schema["properties"])
    return random.choice([f"{name} ({parts})", f"{name} {{{parts}}}", f"{name} with {parts}"])


def _nullable(schema: dict[str, Any]) -> dict[str, Any]:
    if "enum" in schema:
        return {"enum": [*schema["enum"], None]}
    return {**schema, "type": [schema["type"], "null"]}


def _traits(value: dict[str, Any]) -> set[str]:
    traits = set()
    for part in value.values():
        if isinstance(part, list):
            traits.add("rows" if part and isinstance(part[0], dict) else "list")
        elif isinstance(part, dict):
            traits.add("nested")
    return traits
