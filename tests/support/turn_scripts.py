"""Scripts of a model's turns, which stand in a prompt.

The test server's model (`scripted_model`) looks for the last script in its prompt, and its first
turn after it is the script's first step, its second turn the second step. So one server answers
all tests, and what a client leaves out of a conversation changes the answers. Needs no package.
"""

import json
import re
from typing import Any

_SCRIPT = re.compile(r"SCRIPT (\[.*?\]) END", re.DOTALL)

Call = dict[str, Any]
Thought = dict[str, Any]
Step = str | list[Call] | Thought  # the text of an answer, its calls, or either after a thought


def call(name: str, /, **arguments: Any) -> Call:
    """Return a call of the tool `name`."""
    return {"name": name, "arguments": arguments}


def thought(text: str, then: str | list[Call]) -> Thought:
    """Return a step that begins with reasoning."""
    return {"thought": text, "then": then}


def script(*steps: Step, text: str = "Do this.") -> str:
    """Return a prompt of a text and a script."""
    return f"{text} SCRIPT {json.dumps(steps)} END"


def last_script(prompt: str) -> tuple[list[Step], str]:
    """Return the steps of the last script in a prompt, and the text after it. No steps without
    one."""
    found = list(_SCRIPT.finditer(prompt))
    return (json.loads(found[-1][1]), prompt[found[-1].end() :]) if found else ([], "")
