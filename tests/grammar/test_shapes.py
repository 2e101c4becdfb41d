"""Shapes of the arrays of grammars, checked here alone: the checks take longer than the calls."""

import pytest
from processes import printed
from shapes import ROOT, has_shapes, name_of

CODE = """
import sys, types
import jaxtyping
jaxtyping.install_import_hook("dlm.grammar", "beartype.beartype")
from dlm import Choice, Engine, Grammar, JsonSchema, Regex, Request

properties = {
    "name": {"type": "string", "minLength": 2, "maxLength": 9},
    "code": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3,}$"},
    "born": {"type": "string", "format": "date"},
    "count": {"type": "integer", "minimum": 3, "maximum": 4711},
    "tags": {"type": "array", "items": {"enum": ["a", "ab", "b"]}, "maxItems": 3},
}
specs = [
    JsonSchema({"type": "object", "properties": properties, "required": ["code", "tags"]}),
    JsonSchema({"type": "object", "additionalProperties": {"type": "number"}}),
    Regex("(ab|a)*c?[d-f]{2,40}"),
    Choice(["north", "south"]),
    Grammar('root ::= "(" root ")" | [^()]{1,6}'),
]
engine = Engine.load(device="cpu")
for spec in specs:
    engine.generate(Request(prompt="Say it.", constraint=spec, max_tokens=24, temperature=2.0))

def checked(value):
    parts = vars(value).values() if isinstance(value, type) else [value]
    parts = [getattr(p, "fget", None) or getattr(p, "func", None) or p for p in parts]
    return any(isinstance(p, types.FunctionType) and hasattr(p, "__wrapped__") for p in parts)

for name, module in sorted(sys.modules.items()):
    own = [v for v in vars(module).values() if getattr(v, "__module__", "") == name]
    if name.startswith("dlm.grammar.") and any(map(checked, own)):
        print(name)
"""


@pytest.mark.exhaustive
def test_all_modules_with_array_shapes_are_checked_while_answers_are_generated():
    checked = set(printed(CODE).split())
    paths = (ROOT / "grammar").rglob("*.py")
    shaped = {name_of(path) for path in paths if has_shapes(path)}
    assert shaped
    assert shaped <= checked
