"""Answers that documented commands print: they are right, and not only valid."""

import json
import shlex
from pathlib import Path

import pytest
from invoices import INVOICE, PROMPT

import dlm

ROOT = Path(__file__).parents[2]
PAGES = "README.md", "docs/index.md", "docs/schemas.md"
RIGHT = {  # answers by prompt
    PROMPT: INVOICE,
    "Extract name, age as JSON. Our neighbour Olga Lopez is 61.": {"name": "Olga Lopez", "age": 61},
    "Is it paid? Invoice AK-4071 is paid.": "yes",
    "Answer with one word of teacher, nurse, driver. My brother Ben Kim is a nurse in Oslo.": (
        "nurse"
    ),
    "What is the invoice_id? Invoice AK-4071 for Silver Robotics came to 218.50 euros.": "AK-4071",
}


def documented():
    """Return the constraint and the prompt of each documented command that has one of `RIGHT`."""
    commands = dict[str, dlm.JsonSchema | dlm.Choice | dlm.Regex]()
    for name in PAGES:
        for line in (ROOT / name).read_text().splitlines():
            if "scripts/generate.py" not in line and not line.startswith("dlm generate"):
                continue
            if line.startswith(("python", "dlm", "echo")):
                words = shlex.split(line, comments=True)
                prompt = words[1] if words[0] == "echo" else words[-1]
                if prompt in RIGHT:
                    commands[prompt] = constraint_of(words)
    return commands


def constraint_of(words):
    """Return the constraint of a command's words."""
    (flag,) = {"--schema", "--choice", "--regex"} & {*words}
    value = words[words.index(flag) + 1]
    if flag == "--schema":
        text = value if value.startswith("{") else (ROOT / value).read_text()
        return dlm.JsonSchema(json.loads(text))
    return dlm.Choice(value.split(",")) if flag == "--choice" else dlm.Regex(value)


@pytest.fixture(scope="module")
def engine():
    engine = dlm.Engine.load(device="cpu")
    yield engine
    engine.close()


def test_documented_commands_print_the_right_answers(engine):
    commands = documented()
    assert commands.keys() == RIGHT.keys()
    requests = [dlm.Request(prompt=p, constraint=commands[p], seed=0) for p in RIGHT]
    results = dict(zip(RIGHT, engine.generate(requests), strict=True))
    texts = {prompt: result.text for prompt, result in results.items()}
    printed = {
        prompt: json.loads(text) if isinstance(RIGHT[prompt], dict) else text
        for prompt, text in texts.items()
    }
    assert printed == RIGHT
