"""Scripts of the server's page that know no document: node runs them."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

import dlm.serving.app

NODE = shutil.which("node")
needs_node = pytest.mark.skipif(
    NODE is None, reason="node, which runs the page's script, is missing"
)
FOLDER = Path(dlm.serving.app.__file__).with_name("page")
SCRIPTS = "json_text.js", "requests.js", "judge.js", "picture.js", "examples.js"
CODE = "\n".join((FOLDER / name).read_text(encoding="utf-8") for name in SCRIPTS)
WEATHER = {
    "name": "get_weather",
    "description": "The weather in a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city", "days"],
    },
}
STATE = {
    "base": "http://127.0.0.1:8000",
    "key": False,
    "model": "tiny",
    "prompt": "Extract name, age as JSON. Olga Lopez is 61.",
    "constraint": None,
    "tools": [],
    "choice": "auto",
    "effort": "none",
    "most": 96,
    "seed": 1,
    "stream": False,
}
NASTY = (
    "It's \"quoted\" \\ 'twice' $HOME `id` !x %d {y} \n\r\t\0\x7f é 😀 \u2028 </script> ${z} \\n ''"
)
NASTY_SCHEMA = {
    "type": "object",
    "properties": {
        NASTY: {"enum": [None, True, False, 1.5, -3, NASTY, [], {}]},
        "__proto__": {"type": "string", "description": "x" * 100},
    },
    "required": ["__proto__"],
}


def run(expression: str, *values: object) -> Any:
    """Evaluate an expression in the page's scripts, with `values` as the list `given`."""
    code = f"""{CODE}
const given = JSON.parse(require("fs").readFileSync(0, "utf8"));
process.stdout.write(JSON.stringify({expression}) ?? "null");"""
    return json.loads(node("-e", code, given=values))


def node(*arguments: str, given: object = None) -> str:
    """Run node with `given` as its input, and return its output."""
    assert NODE is not None
    command, text = [NODE, *arguments], json.dumps(given)
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout
