"""Tasks of training other than extraction, the mixture of all, and the exams of a trained model.

Copying teaches to look values up, choosing a word teaches closed lists, and calls of tools are
written in Gemma 4's native form. Conversations are calls of made-up tools, answers after their
results, and short answers in words: most have a system message, several tools to choose from, or
earlier turns. Their sentences, and names of results, are split in two halves like the names of
tools. An exam is a set of samples for one ability.
"""

import json
import re
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from training import kinds, patterns, toolbox
from training.extraction import bare, extract, long_text, prose, texts_of
from training.kinds import STRING, Value
from training.samples import Sample, dumps, object_schema, plain, written
from training.toolbox import FILE, MadeCall, Tool, typed, written_call
from training.words import Draw, Split, forms, held_out_phrase, made_up, phrases_of

_COPIED = """person first city company thing product code title email phone street date time login
word int num money""".split()
SYSTEM = 0.35  # share of conversations with a system message
EARLIER = 0.15  # share with one or two earlier turns
PARALLEL = 0.1  # share of requests that ask for two calls
DIGITS = 3  # of a number that is easily mixed with another
SENTENCE = 45  # tokens of a sentence of the built-in tokenizer, about
DECLARED = {0: 0.35, 1: 0.35, 2: 0.2, 3: 0.1}  # tools beside the one that is called

Message = dict[str, Any]
Turn = list[Message]


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
        answer=written_call(name, arguments),
        value=(name, plain(arguments)),
        tools=[_declaration(tool, known[tool][0]) for tool in declared],
    )


def _declaration(name: str, parameters: dict[str, str]) -> dict[str, Any]:
    properties = {key: typed(kinds.schema(kind)) for key, kind in parameters.items()}
    return {"type": "function", "function": {"name": name, "parameters": object_schema(properties)}}


def made_up_call(random: Random, split: Split) -> Sample:
    """Draw a request that calls a made-up tool, or two calls at once."""
    draw = Draw(random, split)
    first = toolbox.call(draw)
    calls, request = [first], first.request
    tools = _tools(draw, first.tool)
    if first.tool.asks and draw.chance(PARALLEL):
        asking = [t for t in tools if t.asks]
        second = toolbox.request_for(random.choice([first.tool, first.tool, *asking]), draw)
        calls.append(second)
        joint = random.choice(["\n", " And also: ", " Then: ", " Besides, ", " Moreover: "])
        request = request.rstrip() + joint + second.request
    values = [each.value for each in calls]
    return Sample(
        task="tool",
        prompt=request,
        answer="".join(each.written for each in calls),
        value=values[0] if len(values) == 1 else values,
        tools=[t.declaration for t in tools],
        before=_opening(draw, tools),
        traits=frozenset({"offered"} | ({"parallel"} if len(calls) > 1 else set())),
        unasked=frozenset[str]().union(*(each.nested_keys for each in calls)),
    )


def _tools(draw: Draw, called: Tool) -> list[Tool]:
    count = draw.random.choices(list(DECLARED), list(DECLARED.values()))[0]
    tools = [called, *toolbox.others(draw, [called], count)]
    return draw.random.sample(tools, len(tools))


def _opening(draw: Draw, tools: list[Tool]) -> Turn:
    """Return what comes before the last request: a system message, earlier turns, or nothing."""
    random, messages = draw.random, list[Message]()
    if draw.chance(SYSTEM):
        messages.append({"role": "system", "content": random.choice(phrases_of(FILE, "systems"))})
    if draw.chance(EARLIER):
        for _ in range(random.choice([1, 1, 2])):
            asking = [each for each in tools if each.asks]
            if asking and draw.chance(0.5):
                done = toolbox.request_for(random.choice(asking), draw)
                content = result(draw)
                messages += [user(done.request), *_called(done, content)]
                messages.append({"role": "assistant", "content": content[1]})
            else:
                question, answer = talk(draw)
                messages += [user(question), {"role": "assistant", "content": answer}]
    return messages


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def _called(call: MadeCall, content: tuple[str, str]) -> Turn:
    """Return the messages of a call and of its result."""
    function = {"name": call.tool.name, "arguments": plain(call.arguments)}
    called = {"role": "assistant", "content": "", "tool_calls": [{"function": function}]}
    return [called, {"role": "tool", "content": content[0], "name": call.tool.name}]


def after_result(random: Random, split: Split) -> Sample:
    """Draw a conversation whose last message is a tool's result; the answer uses it, and ends."""
    draw = Draw(random, split)
    call = toolbox.call(draw)
    tools = _tools(draw, call.tool)
    content = result(draw)
    return Sample(
        task="chat",
        prompt=call.request,
        answer=content[1],
        value=content[1],
        tools=[t.declaration for t in tools],
        before=_opening(draw, tools),
        after=_called(call, content),
        traits=frozenset({"after a result"}),
    )


def result(draw: Draw) -> tuple[str, str]:
    """Draw the content of a tool's result and the answer that reports it."""
    random = draw.random
    form = random.random()
    if form < 0.25:
        return random.choice(phrases_of(FILE, "good")), random.choice(phrases_of(FILE, "done"))
    if form < 0.35:
        error = random.choice(phrases_of(FILE, "bad"))
        ways = [error, f"Error: {error}", json.dumps({"error": error})]
        answer = random.choice(phrases_of(FILE, "failed")).replace("{e}", error)
        return random.choice(ways), answer
    if form < 0.45:
        sentence = toolbox.sentence(draw).text
        return sentence, f"{sentence}."
    if form < 0.52:
        kind = random.choice(["city", "first", "product", "company", "title", "code"])
        items = [kinds.draw(kind, draw).text for _ in range(random.randint(2, 4))]
        *most, last = items
        key = random.choice(["results", "items", "found", "matches"])
        ways = [dumps(items), dumps({key: items}), ", ".join(items)]
        return random.choice(ways), f"I found {', '.join(most)} and {last}."
    return _outcome(draw)


def _outcome(draw: Draw) -> tuple[str, str]:
    """Draw one to three values by name, and the answer that names them."""
    random = draw.random
    usable = toolbox.usable("outcomes", draw)
    chosen = random.sample(usable, random.choice([1, 1, 1, 2, 2, 3]))
    values: dict[str, Value] = {}
    for entry in chosen:
        values[random.choice(entry.names)] = kinds.draw(entry.kind, draw)
    facts = {key: value.value for key, value in values.items()}
    texts = {key: _shown(value.value) for key, value in values.items()}
    if len(facts) == 1 and draw.chance(0.35):
        (text,) = texts.values()
        return text, f"It is {text}."
    content = dumps(facts)
    if draw.chance(0.25):
        content = ", ".join(f"{key}: {text}" for key, text in texts.items())
    elif draw.chance(0.2):
        content = dumps({"result": facts})
    parts = [f"the {key.replace('_', ' ')} is {text}" for key, text in texts.items()]
    *most, last = parts
    sentence = f"{', '.join(most)} and {last}" if most else last
    return content, f"{sentence[:1].upper()}{sentence[1:]}."


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else dumps(value)


def talk(draw: Draw) -> tuple[str, str]:
    """Draw a sentence of small talk, and its answer."""
    lines = [line for line in phrases_of(FILE, "talk") if held_out_phrase(line) == draw.heldout]
    question, _, answers = draw.random.choice(lines).partition(" = ")
    return question, answers.split(" | ")[0]


def short_answer(random: Random, split: Split) -> Sample:
    """Draw a request that needs no tool: small talk, or a question on earlier turns or a text."""
    draw = Draw(random, split)
    form = random.random()
    tools: list[Tool] = []
    if draw.heldout or draw.chance(0.6):  # exams offer tools to each
        tools = toolbox.others(draw, [], random.randint(1, 3))
    before = _opening(draw, tools)
    if form < 0.4:
        question, answer = talk(draw)
    elif form < 0.65:
        earlier, question, answer = _remembered(draw)
        before = [*before, *earlier]
    else:
        question, answer = _question(draw)
    return Sample(
        task="chat",
        prompt=question,
        answer=answer,
        value=answer,
        tools=[t.declaration for t in tools],
        before=before,
        traits=frozenset({"plain request"}),
    )


def _remembered(draw: Draw) -> tuple[Turn, str, str]:
    """Draw what a user said about themselves, and a question about it some turns later."""
    random = draw.random
    line = random.choice(phrases_of(FILE, "facts"))
    kinds_of, replies, questions, answers = line.split(" = ")
    kind, _, statements = kinds_of.partition(": ")[2].partition(": ")
    value = kinds.draw(kind, draw)

    def one(ways: str) -> str:
        text = random.choice(ways.split(" | ")).replace("{v}", _shown(plain(value.value)))
        return text[:1].upper() + text[1:]

    messages = [user(one(statements)), {"role": "assistant", "content": one(replies)}]
    if draw.chance(0.4):
        question, answer = talk(draw)
        messages += [user(question), {"role": "assistant", "content": answer}]
    answer = answers.split(" | ")[0].replace("{v}", _shown(plain(value.value)))
    return messages, one(questions), answer[:1].upper() + answer[1:]


def _question(draw: Draw) -> tuple[str, str]:
    """Draw a question about a text, whose answer is one of its values."""
    random = draw.random
    split = "unseen" if draw.heldout else "train"
    while True:
        _, text, wanted, _ = prose(draw, split)
        single = [
            each
            for each in wanted
            if not each.missing
            and isinstance(each.value, str | int)
            and not isinstance(each.value, bool)
            and str(each.value) in text
        ]
        if single:
            break
    chosen = random.choice(single)
    key = toolbox.words(chosen.key)
    way = random.choice(
        ["What is the {k}? {t}", "{t} What is the {k}?", "{t}\nQuestion: What is the {k}?"]
    )
    return way.replace("{k}", key).replace("{t}", text), f"The {key} is {chosen.value}."


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


OUTSIDERS = Path(__file__).parent / "outsiders.jsonl"
LONGEST_EXAM = 1800  # tokens of the texts of an exam: the built-in model reads 2,048 in all
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
        "digits": drawn("digits", lambda r: numbers(r, "heldout"), 2),
        "long texts": drawn("long", lambda r: long_sample(r, "heldout", LONGEST_EXAM), 4),
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
