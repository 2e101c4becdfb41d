"""Conversations of the training: calls of made-up tools, answers after results, and short answers.

Most have a system message, several tools to choose from, or earlier turns. Their sentences, and
names of results, are split in two halves like the names of tools.
"""

import json
from random import Random
from typing import Any

from training import kinds, toolbox
from training.extraction import prose
from training.kinds import Value
from training.samples import Sample, dumps, plain
from training.toolbox import FILE, MadeCall, Tool
from training.words import Draw, Split, held_out_phrase, phrases_of

SYSTEM = 0.35  # share of conversations with a system message
EARLIER = 0.15  # share with one or two earlier turns
PARALLEL = 0.1  # share of requests that ask for two calls
DECLARED = {0: 0.35, 1: 0.35, 2: 0.2, 3: 0.1}  # tools beside the one that is called

Message = dict[str, Any]
Turn = list[Message]


def made_up_call(random: Random, split: Split) -> Sample:
    """Draw a request that calls a made-up tool, or two calls at once."""
    draw = Draw(random, split)
    call = toolbox.call(draw)
    calls, request = [call], call.request
    tools = _tools(draw, call.tool)
    if call.tool.asks and draw.chance(PARALLEL):
        asking = [tool for tool in tools if tool.asks]
        second = toolbox.request_for(random.choice([call.tool, call.tool, *asking]), draw)
        calls.append(second)
        joint = random.choice(["\n", " And also: ", " Then: ", " Besides, ", " Moreover: "])
        request = request.rstrip() + joint + second.request
    values = [call.value for call in calls]
    return Sample(
        task="tool",
        prompt=request,
        answer="".join(call.written for call in calls),
        value=values[0] if len(values) == 1 else values,
        tools=[t.declaration for t in tools],
        before=_opening(draw, tools),
        traits=frozenset({"offered"} | ({"parallel"} if len(calls) > 1 else set())),
        unasked=frozenset[str]().union(*(call.nested_keys for call in calls)),
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
            asking = [tool for tool in tools if tool.asks]
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

    def filled(ways: str) -> str:
        text = random.choice(ways.split(" | ")).replace("{v}", _shown(plain(value.value)))
        return text[:1].upper() + text[1:]

    messages = [user(filled(statements)), {"role": "assistant", "content": filled(replies)}]
    if draw.chance(0.4):
        question, answer = talk(draw)
        messages += [user(question), {"role": "assistant", "content": answer}]
    answer = answers.split(" | ")[0].replace("{v}", _shown(plain(value.value)))
    return messages, filled(questions), answer[:1].upper() + answer[1:]


def _question(draw: Draw) -> tuple[str, str]:
    """Draw a question about a text, whose answer is one of its values."""
    random = draw.random
    split = "unseen" if draw.heldout else "train"
    while True:
        _, text, fields, _ = prose(draw, split)
        single = [
            field
            for field in fields
            if not field.missing
            and isinstance(field.value, str | int)
            and not isinstance(field.value, bool)
            and str(field.value) in text
        ]
        if single:
            break
    chosen = random.choice(single)
    key = toolbox.words(chosen.key)
    way = random.choice(
        ["What is the {k}? {t}", "{t} What is the {k}?", "{t}\nQuestion: What is the {k}?"]
    )
    return way.replace("{k}", key).replace("{t}", text), f"The {key} is {chosen.value}."
