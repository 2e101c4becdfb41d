"""Made-up tools, and requests that call them: names, parameters and wording from `toolbox.txt`.

A tool is an action and an object, such as `book_table`, with parameters of all types. A request
mentions its values by phrases ("for 4 people") or by the parameter's name ("party size: 4"). Other
tools are records of a text: their parameters are the fields of a domain, and sentences state them.

Names and phrases are split in two halves by their hash. Training's half also has all names that
other training data use. No tool of an exam shares a name, a parameter or a phrase with training.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from training import extraction, kinds, patterns
from training.kinds import Value
from training.samples import dumps, object_schema, plain
from training.words import (
    Draw,
    held_out_name,
    held_out_phrase,
    listed,
    made_up,
    phrases_of,
    sections,
)

FILE = "toolbox.txt"
COUNTS = {0: 0.03, 1: 0.22, 2: 0.3, 3: 0.23, 4: 0.14, 5: 0.08}  # parameters of a tool
SOURCES = {  # kinds of parameters
    "parameters": 0.56,
    "flags": 0.09,
    "options": 0.11,
    "lists": 0.11,
    "groups": 0.06,
    "labelled": 0.07,
}
OPTIONAL = 0.18  # share of parameters that are optional; half of them are not mentioned
NAMED = 0.25  # share of parameters that a request mentions by name
RECORDS = 0.25  # share of training's tools that record a text
STATES = frozenset("Can How I Let Please That We What Where Which".split())  # no "please" before
LONGEST = 12  # words of a text that is an argument


@dataclass(frozen=True)
class Parameter:
    """A parameter of a tool: its key, its schema, and ways to mention its value."""

    key: str
    schema: dict[str, Any]
    source: str  # what its value is drawn by: a kind, or the name of a list in `SOURCES`
    entry: str  # the line of the file that it comes from
    ways: tuple[str, ...] = ()
    parts: tuple["Parameter", ...] = ()  # of a nested object
    optional: bool = False


@dataclass(frozen=True)
class Tool:
    """A tool: its declaration in OpenAI's form, and how people ask for it."""

    name: str
    parameters: tuple[Parameter, ...]
    subject: str  # a noun: no two tools of a request share it
    asks: tuple[str, ...]
    declaration: dict[str, Any] = field(repr=False)


@dataclass(frozen=True)
class MadeCall:
    """A request in words, and the call that it asks for."""

    tool: Tool
    request: str
    arguments: dict[str, Any]

    @property
    def written(self) -> str:
        """The call in Gemma 4's own form."""
        return written_call(self.tool.name, self.arguments)

    @property
    def value(self) -> tuple[str, Any]:
        return self.tool.name, plain(self.arguments)

    @property
    def nested_keys(self) -> frozenset[str]:
        """Keys that no declaration in the prompt names: only the grammar knows them."""
        parts = [part for each in self.arguments.values() for part in _objects(each)]
        return frozenset(key for part in parts for key in part)


def _objects(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, dict):
        return [value, *(o for part in value.values() for o in _objects(part))]
    return [o for part in value for o in _objects(part)] if isinstance(value, list) else []


def native(value: Any) -> str:
    """Return a value as Gemma 4 writes it in a call: strings in control tokens, keys bare."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{native(part)}" for key, part in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(native, value)) + "]"
    if isinstance(value, Decimal):
        return dumps(value)
    return f'<|"|>{value}<|"|>' if isinstance(value, str) else json.dumps(value)


def written_call(name: str, arguments: dict[str, Any]) -> str:
    """Return a call in Gemma 4's own form."""
    return f"<|tool_call>call:{name}{native(arguments)}<tool_call|>"


TOOLS = Path(__file__).parent / "lists" / "tools.txt"


@cache
def tools() -> dict[str, tuple[dict[str, str], tuple[str, ...]]]:
    """Return the tools of `lists/tools.txt`: the parameters of each with their kinds, and requests
    that name all of them."""
    found = {}
    for part in TOOLS.read_text(encoding="utf-8").split("== ")[1:]:
        name, *lines = part.strip().splitlines()
        requests = tuple(line[2:] for line in lines if line.startswith("- "))
        parameters = dict(line.split(": ", 1) for line in lines if not line.startswith("- "))
        found[name] = (parameters, requests)
    return found


@cache
def trained_names() -> frozenset[str]:
    """Return the names that other data of the training have: of fields, labels, and tools."""
    found = {word for word in listed("label") if Draw(Random(0), "train").owns(word)}
    for name, (parameters, _) in tools().items():
        found |= {name, *name.split("_"), *parameters}
    for domain in patterns.domains(True):
        found |= domain.groups.keys()
        for each in domain.fields.values():
            found |= {*each.names, *(each.columns if each.rows else ())}
    return frozenset(found)


def is_held_out(name: str) -> bool:
    """Whether only exams use a name of a tool's part or a parameter."""
    return held_out_name(name) and name not in trained_names()


def half(names: Sequence[str], draw: Draw) -> list[str]:
    """Return the names of this half."""
    return [name for name in names if is_held_out(name) == draw.heldout]


@dataclass(frozen=True)
class Entry:
    """A line of the file: names, a kind (if it has one), and ways of saying it."""

    names: tuple[str, ...]
    kind: str
    ways: tuple[str, ...]

    @classmethod
    def parsed(cls, line: str, typed: bool) -> "Entry":
        names, _, rest = line.partition(": ")
        kind, _, ways = rest.partition(": ") if typed else ("", "", rest)
        each = [way.strip() for way in ways.split(" | ")] if ways else []
        return cls(tuple(name.strip() for name in names.split(",")), kind.strip(), tuple(each))


@cache
def entries(section: str) -> tuple[Entry, ...]:
    typed = section not in ("actions", "flags")
    return tuple(Entry.parsed(line, typed) for line in sections(FILE)[section].splitlines() if line)


@cache
def _usable(section: str, heldout: bool) -> tuple[Entry, ...]:
    """Return the entries of a section with the names and ways of one half, if it has some."""
    found = []
    for entry in entries(section):
        names = tuple(name for name in entry.names if is_held_out(name) == heldout)
        ways = tuple(way for way in entry.ways if held_out_phrase(way) == heldout)
        if section == "flags":  # a flag needs both of its ways
            ways = entry.ways
        if section == "groups":
            parts = (_by_first_name()[part].names for part in entry.kind.split())
            if not all(any(is_held_out(n) == heldout for n in part) for part in parts):
                continue
        if names and (ways or not entry.ways):
            found.append(replace(entry, names=names, ways=ways))
    return tuple(found)


@cache
def _by_first_name() -> dict[str, Entry]:
    return {entry.names[0]: entry for entry in entries("parameters")}


def usable(section: str, draw: Draw) -> tuple[Entry, ...]:
    return _usable(section, draw.heldout)


def tool(draw: Draw) -> Tool:
    """Make up a tool: an action, an object, and up to five parameters."""
    random = draw.random
    action = random.choice(usable("actions", draw))
    noun = random.choice(half(sections(FILE)["objects"].split(), draw))
    camel = draw.chance(0.2)
    parameters: list[Parameter] = []
    for _ in range(random.choices(list(COUNTS), list(COUNTS.values()))[0]):
        made = parameter(draw, camel)
        keys, before = {p.key for p in parameters}, {p.entry for p in parameters}
        if made.key not in keys and made.entry not in before:
            parameters.append(made)
    name = _tool_name(random.choice(action.names), noun, camel, draw)
    return Tool(name, tuple(parameters), noun, action.ways, declaration(name, parameters, draw))


def _tool_name(verb: str, noun: str, camel: bool, draw: Draw) -> str:
    if camel:
        return camelled(f"{verb}_{noun}")
    forms = [f"{verb}_{noun}", f"{noun}_{verb}", f"{noun}.{verb}", f"{verb}-{noun}", noun]
    return draw.random.choices(forms, [0.7, 0.1, 0.07, 0.07, 0.06])[0]


def camelled(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)


def declaration(name: str, parameters: Sequence[Parameter], draw: Draw) -> dict[str, Any]:
    """Return the tool as a client declares it, described or not, closed to other keys or not."""
    described = draw.chance(0.4)
    properties = {
        p.key: {**p.schema, "description": f"The {words(p.key)}."} if described else p.schema
        for p in parameters
    }
    schema = object_schema(properties, frozenset(p.key for p in parameters if p.optional))
    if draw.chance(0.5):
        del schema["additionalProperties"]
    function: dict[str, Any] = {"name": name, "parameters": schema}
    if described:
        function["description"] = f"{words(name)}.".capitalize()
    return {"type": "function", "function": function}


def words(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])|[_.-]", " ", name).lower()


def parameter(draw: Draw, camel: bool) -> Parameter:
    """Draw a parameter of any kind."""
    random = draw.random
    source = random.choices(list(SOURCES), list(SOURCES.values()))[0]
    optional = draw.chance(OPTIONAL)
    if source == "labelled":
        word = _label(draw)
        kind = random.choice(
            "person,city,thing,code,int 1 900,num 0 90,money,date,word,color,company,bool".split(
                ","
            )
        )
        return Parameter(word, kinds.schema(kind), kind, word, optional=optional)
    entry = random.choice(usable(source, draw))
    name = random.choice(entry.names)
    key = camelled(name) if camel else name
    if source == "groups":
        parts = tuple(_part(each, draw, camel) for each in entry.kind.split())
        schema = object_schema({part.key: part.schema for part in parts})
        return Parameter(key, schema, source, entry.names[0], entry.ways, parts, optional)
    schema, kind = {"type": "string"}, entry.kind
    if source == "flags":
        schema, kind = {"type": "boolean"}, "flags"
    elif source == "options":
        kind = f"enum {entry.kind}"
        schema = {"type": "string", "enum": entry.kind.split()}
    elif source == "lists":
        kind = f"list {entry.kind} 1 4"
        schema = kinds.schema(kind)
    elif kind != "text":
        schema = kinds.schema(kind)
    return Parameter(key, schema, kind, entry.names[0], entry.ways, (), optional)


def _label(draw: Draw) -> str:
    """Draw a noun or a made-up word of this half as a name."""
    while True:
        made = made_up(draw.random) if draw.chance(0.25) else draw.random.choice(listed("label"))
        known = made in trained_names() if draw.heldout else is_held_out(made)
        if draw.owns(made) and not known:
            return made


def _part(first: str, draw: Draw, camel: bool) -> Parameter:
    """Return a part of a nested object: the parameter whose first name in the file is `first`."""
    entry = _by_first_name()[first]
    name = draw.random.choice(half(entry.names, draw))
    key = camelled(name) if camel else name
    return Parameter(key, kinds.schema(entry.kind), entry.kind, first, entry.ways)


def value_of(p: Parameter, draw: Draw) -> tuple[Any, str, str]:
    """Draw a value for a parameter; return it, its text, and a phrase that mentions it."""
    random = draw.random
    if p.source == "flags":
        stated = draw.chance(0.65)
        return stated, "yes" if stated else "no", p.ways[0 if stated else 1]
    if p.source == "groups":
        way, value = random.choice(p.ways), {}
        for part in p.parts:
            each = kinds.draw(part.source, draw)
            value[part.key] = each.value
            way = way.replace(f"{{{part.entry}}}", each.text)
        return value, "", way
    each = sentence(draw) if p.source == "text" else kinds.draw(p.source, draw)
    text = {True: "yes", False: "no"}[each.value] if p.source == "bool" else each.text
    way = random.choice(p.ways) if p.ways else ""
    return each.value, text, way.replace("{v}", text)


def sentence(draw: Draw) -> Value:
    """Draw a text of a few words, as a message or a question has it."""
    while True:
        domain = draw.random.choice(patterns.domains(not draw.heldout))
        if not (able := domain.choose(draw.heldout, False)):
            continue
        pattern = draw.random.choice(able)
        fields = sorted({*pattern.fields})
        values = {name: extraction.drawn(domain.fields[name], draw) for name in fields}
        words = patterns.fill(pattern, domain, values, draw, False).replace('"', "").split()
        count = draw.random.randint(2, LONGEST)
        text = " ".join(words[:count]).rstrip(",;:.- ")
        if text and draw.owns(text):
            return Value(text, text)


def request_for(made: Tool, draw: Draw) -> MadeCall:
    """Return a request for a tool, in words, with values for its parameters."""
    random, arguments = draw.random, {}
    phrases, named = list[str](), list[tuple[str, str]]()
    sources: set[str] = set()
    for p in made.parameters:
        if p.optional and draw.chance(0.5):
            continue
        value, text, phrase = value_of(p, draw)
        text = f'"{text}"' if p.source == "text" else text
        arguments[p.key] = value
        kind = p.source.split()[0]
        twice = kind in sources and kind not in ("int", "flags", "groups")
        sources.add(kind)
        if p.source != "groups" and (not p.ways or twice or draw.chance(NAMED)):
            named.append((words(p.key), text))
        else:
            phrases.append(phrase)
    random.shuffle(phrases)
    random.shuffle(named)
    noun = made.subject.replace("_", " ")
    article = random.choice(["", "a ", "the ", "the ", "my ", "our "])
    noun = patterns.with_article(article, noun) + noun
    request = random.choice(made.asks).replace("{o}", noun)
    joint = ", " if draw.chance(0.2) else " "
    body = joint.join([request, *phrases])
    if phrases and draw.chance(0.12):
        body = f"{phrases[0]}, {joint.join([request[:1].lower() + request[1:], *phrases[1:]])}"
    if named and draw.chance(0.4):
        body += random.choice([", ", " with ", "; "]) + ", ".join(
            f"{key} {text}" for key, text in named
        )
        named = []
    lowered = body if body[:2].isupper() or body[:2] == "I " else body[:1].lower() + body[1:]
    ways = phrases_of(FILE, "statement" if request.split()[0] in STATES else "request")
    text = random.choice(ways).replace("{b}", lowered)
    text = text.replace("{a}", body[:1].upper() + body[1:])
    if named:
        way, between, after = random.choice(
            [
                (" The {k} is {v}.", "", ""),
                ("\n{k}: {v}", "", ""),
                ("{k}: {v}", ", ", ")"),
                (" Set {k} to {v}.", "", ""),
                (" {k} = {v}", ",", ""),
            ]
        )
        text += (" (" if after else "") + between.join(
            way.replace("{k}", key).replace("{v}", value) for key, value in named
        )
        text += after
    return MadeCall(made, text, arguments)


def recorded(draw: Draw) -> MadeCall:
    """Return a text of a domain and a tool that records what it says; for training alone."""
    random = draw.random
    while True:
        title, text, wanted, _ = extraction.prose(draw, "train")
        wanted = [each for each in wanted if not each.group][:5]
        if any(each.missing for each in wanted) or not wanted:
            continue
        noun = title.split(" ", 1)[-1].replace(" ", "_").replace("-", "_").replace("'", "")
        action = random.choice(["log", "record", "save", "store", "add", "create", "note", "new"])
        if is_held_out(noun) or is_held_out(action) or not re.fullmatch(r"\w+", noun, re.ASCII):
            continue
        keys = [re.sub(r"[^\w]", "_", each.key) for each in wanted]
        if len({*keys}) == len(keys):
            break
    parameters = [
        Parameter(key, typed(each.schema), "record", key)
        for key, each in zip(keys, wanted, strict=True)
    ]
    name = _tool_name(action, noun, draw.chance(0.2), draw)
    asks = ("{t}", "{t}", "Save this: {t}", "Please record: {t}", "{t} Please note that.")
    request = random.choice(asks).replace("{t}", text)
    made = Tool(name, tuple(parameters), noun, (), declaration(name, parameters, draw))
    return MadeCall(made, request, {k: each.value for k, each in zip(keys, wanted, strict=True)})


def typed(schema: dict[str, Any]) -> dict[str, Any]:
    return schema if "type" in schema else {"type": "string", **schema}


def call(draw: Draw) -> MadeCall:
    """Draw a request and its call, of a tool of this half."""
    if not draw.heldout and draw.chance(RECORDS):
        return recorded(draw)
    return request_for(tool(draw), draw)


def others(draw: Draw, besides: Sequence[Tool], count: int) -> list[Tool]:
    """Return `count` further tools, each with a subject of its own."""
    found: list[Tool] = []
    while len(found) < count:
        made = tool(draw)
        if all(each.subject != made.subject for each in (*besides, *found)):
            found.append(made)
    return found
