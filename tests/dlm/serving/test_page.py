"""The page's code of a request sends the same body in every language, and the server answers it.

The functions are those of the page's first script, which knows no document; node runs them here.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from types import ModuleType

import jsonschema
import pytest
from asks import PERSON

import dlm.serving.app

NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(
    NODE is None, reason="node, which runs the page's script, is missing"
)

PAGE = Path(dlm.serving.app.__file__).with_name("page.html").read_text(encoding="utf-8")
FORMS = ("chat", "responses", "messages")
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
NASTY_TOOL = {"name": "odd", "description": NASTY, "parameters": NASTY_SCHEMA}
STATES = {
    "plain": {},
    "warm": {"temperature": 0.5, "stream": True},
    "schema": {"constraint": {"json": PERSON}, "key": True},
    "words": {"constraint": {"choice": ["it's", 'a "word"', "back\\slash"]}, "stream": True},
    "regex": {"constraint": {"regex": '[a-z\']+\\d "x"\n'}, "effort": "low"},
    "tools": {"tools": [WEATHER, NASTY_TOOL], "choice": {"name": "odd"}},
    "some call": {"tools": [WEATHER], "choice": "required", "stream": True, "effort": "high"},
    "images": {"images": ["data:image/png;base64,aGk=", "data:image/webp;base64,aG8="]},
    "nasty": {"prompt": NASTY, "constraint": {"json": NASTY_SCHEMA}, "key": True, "stream": True},
}


def run(expression, *values):
    """Evaluate an expression in the page's script, with `values` as the list `given`."""
    script = re.search(r'<script id="requests">\n(.*?)</script>', PAGE, re.DOTALL)
    assert script is not None
    code = f"""{script[1]}
const given = JSON.parse(require("fs").readFileSync(0, "utf8"));
process.stdout.write(JSON.stringify({expression}) ?? "null");"""
    return json.loads(node("-e", code, given=values))


def node(*arguments, given=None):
    """Run node with `given` as its input, and return its output."""
    assert NODE is not None
    command, text = [NODE, *arguments], json.dumps(given)
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def bodies_and_codes(state):
    """Return the body of each form, and its code in each language."""
    expression = """Object.keys(FORMS).map(form => [form, {
      body: bodyOf(given[0], form),
      ...Object.fromEntries(Object.keys(LANGUAGES).map(one => [one, codeOf(given[0], form, one)])),
    }])"""
    return dict(run(expression, STATE | state))


def curl_arguments(code, key):
    """Return the words that a shell passes to curl."""
    program = "curl() { printf '%s\\0' \"$@\"; }\n" + code
    environment = {**os.environ, "DLM_API_KEY": key}
    done = subprocess.run(["sh", "-c", program], env=environment, capture_output=True, check=True)
    return done.stdout.decode().split("\0")[:-1]


@pytest.mark.parametrize("name", STATES)
def test_a_shell_passes_the_body_to_curl_unchanged(name):
    state = STATE | STATES[name]
    paths = {"chat": "chat/completions", "responses": "responses", "messages": "messages"}
    for form, made in bodies_and_codes(state).items():
        words = curl_arguments(made["curl"], "a key's $x")
        assert f"http://127.0.0.1:8000/v1/{paths[form]}" in words
        assert ("Authorization: Bearer a key's $x" in words) is state["key"]
        assert ("--no-buffer" in words) is state["stream"]
        assert json.loads(words[words.index("--json") + 1]) == made["body"]


@pytest.mark.parametrize("name", STATES)
def test_python_passes_the_same_body(name, monkeypatch):
    monkeypatch.setenv("DLM_API_KEY", "secret")
    for form, made in bodies_and_codes(STATES[name]).items():
        sent = {}

        class Client:
            def __init__(self, *, base_url, api_key, sent=sent):
                self.chat = self.completions = self.responses = self.messages = self
                sent["client"] = (base_url, api_key)

            def create(self, *, extra_body=None, sent=sent, **given):
                assert not given.keys() & (extra_body or {}).keys()
                sent["body"] = given | (extra_body or {})
                raise KeyboardInterrupt  # there is no answer to read

        for library, kind in ("openai", "OpenAI"), ("anthropic", "Anthropic"):
            stand_in = ModuleType(library)
            setattr(stand_in, kind, Client)
            monkeypatch.setitem(sys.modules, library, stand_in)
        with pytest.raises(KeyboardInterrupt):
            exec(compile(made["python"], form, "exec"), {})
        assert sent["body"] == made["body"]
        base = "http://127.0.0.1:8000" + ("" if form == "messages" else "/v1")
        assert sent["client"] == (base, "secret" if STATES[name].get("key") else "none")


@pytest.mark.parametrize("name", STATES)
def test_typescript_passes_the_same_body(name, tmp_path):
    """Node runs the code, which has no types of its own, with clients that print what they get."""
    client = """export default class {
      constructor(options) { this.options = options; this.chat = this; this.completions = this;
        this.responses = this; this.messages = this; }
      create(body) {
        console.log(JSON.stringify([this.options, body]));
        process.exit(0);
      }
    }"""
    for library in "openai", "@anthropic-ai/sdk":
        folder = tmp_path / "node_modules" / library
        folder.mkdir(parents=True)
        (folder / "index.js").write_text(client)
        (folder / "package.json").write_text('{"type": "module", "exports": "./index.js"}')
    for form, made in bodies_and_codes(STATES[name]).items():
        program = tmp_path / f"{form}.mjs"
        program.write_text(made["typescript"])
        options, body = json.loads(node(str(program)))
        assert body == made["body"]
        base = "http://127.0.0.1:8000" + ("" if form == "messages" else "/v1")
        assert options["baseURL"] == base


def test_the_page_sends_the_streamed_chat_with_pictures_of_its_canvas():
    state = STATE | {"constraint": {"json": PERSON}}
    sent, chat = run(
        '[sentOf(given[0]), bodyOf({...given[0], stream: true}, "chat")]', state | {"key": True}
    )
    assert sent["stream_options"] == {"include_usage": True, "drafts": True}
    assert sent == chat | {"stream_options": sent["stream_options"]}
    assert "drafts" not in json.dumps(chat)


ANSWERED = {
    "any text": {"most": 24},
    "a schema": {"constraint": {"json": PERSON}},
    "a choice": {
        "prompt": "Answer with one word of teacher, nurse. Ben Kim is a nurse.",
        "constraint": {"choice": ["teacher", "nurse"]},
    },
    "a regex": {"constraint": {"regex": "[A-Z][a-z]{3} [A-Z][a-z]{4}"}},
    "a tool": {
        "prompt": "Use a tool. What is the weather in Oslo in the next 3 days?",
        "tools": [WEATHER],
        "choice": "required",
    },
    "reasoning": {"constraint": {"json": PERSON}, "effort": "low", "most": 400},
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("name", ANSWERED)
def test_the_server_answers_the_python_code(tiny, name, stream):
    state = STATE | ANSWERED[name] | {"base": tiny.url, "stream": stream}
    printed = {form: executed(made["python"]) for form, made in bodies_and_codes(state).items()}
    assert set(printed) == set(FORMS)
    for form, text in printed.items():
        assert text, f"{form} printed nothing"
        match name:
            case "a schema" | "reasoning":
                jsonschema.validate(json.loads(text), PERSON)
            case "a choice":
                assert text in (
                    ("teacher", "nurse") if form != "messages" else ('"teacher"', '"nurse"')
                )
            case "a regex":
                assert re.fullmatch(r'"?[A-Z][a-z]{3} [A-Z][a-z]{4}"?', text)
            case "a tool":
                assert text.startswith("get_weather {")
                assert "city" in text
    if name == "any text":
        assert printed["chat"] == printed["responses"] == printed["messages"]  # of one seed


def executed(code):
    """Run code with the real clients and return what it prints."""
    names = {}
    with redirect_stdout(StringIO()) as printed:
        exec(compile(code, "snippet", "exec"), names)
    names["client"].close()
    return printed.getvalue().strip()


def test_a_long_image_is_sent_whole_and_stands_in_code_as_a_word():
    image = f"data:image/jpeg;base64,{'QUJD' * 1000}"
    state = STATE | {"images": [image]}
    for form, made in bodies_and_codes(state).items():
        assert "QUJDQUJD" in json.dumps(made["body"])
        for language in ("curl", "python", "typescript"):
            assert "QUJD" not in made[language]
            assert "IMAGE" in made[language]
            assert "image/jpeg" in made[language]
        assert run(f'noteOf(given[0], "{form}")', state) == "IMAGE stands for the file in base64."


def test_messages_says_what_it_cannot_express():
    words = """[{regex: "a"}, {json: {}}, null].map(one => noteOf({constraint: one}, "messages"))"""
    regex, schema, free = run(words)
    assert "stands in quotes" in regex
    assert schema == free == ""
    assert run('noteOf({constraint: {regex: "a"}}, "chat")') == ""
    refused = """(() => {
      try { return bodyOf(given[0], "messages"); } catch (error) { return error.message; }
    })()"""
    state = STATE | {"constraint": {"grammar": "start: NAME"}}
    assert run(refused, state) == "Messages takes no grammars. Choose another form."


def test_rows_of_parameters_become_a_schema_and_come_back():
    rows = [
        {"name": "city", "type": "text", "required": True},
        {"name": "__proto__", "type": "list of texts", "required": False},
        {"name": "days", "type": "whole number", "required": True},
    ]
    schema, back = run("[schemaOf(given[0]), rowsOf(schemaOf(given[0]))]", rows)
    assert schema["required"] == ["city", "days"]
    assert schema["properties"]["__proto__"] == {"type": "array", "items": {"type": "string"}}
    assert back == rows
    others = [
        {"type": "object", "properties": {"a": {"type": "string", "maxLength": 3}}},
        {"type": "object", "properties": {}, "additionalProperties": False},
        {"type": "object", "properties": {}, "required": ["a"]},
        {"type": "array"},
        True,
        None,
    ]
    assert run("given[0].map(rowsOf)", others) == [None] * len(others)


SCHEMAS = [
    True,
    False,
    PERSON,
    {"type": ["string", "null"], "minLength": 2, "maxLength": 3},
    {"pattern": "^[a-c]+$"},
    {"enum": [1, "ab", None, {"a": [1]}]},
    {"const": {"a": [1], "b": {}}},
    {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 2},
    {"prefixItems": [{"type": "string"}], "items": {"type": "integer"}},
    {"minimum": 1, "exclusiveMaximum": 3},
    {"exclusiveMinimum": 1, "maximum": 3},
    {"anyOf": [{"type": "string"}, {"type": "integer"}]},
    {"oneOf": [{"type": "number"}, {"type": "integer"}, {"type": "string"}]},
    {"allOf": [{"type": "number"}, {"not": {"type": "integer"}}]},
    {"properties": {"a": {"$ref": "#/$defs/x~1y"}}, "$defs": {"x/y": {"type": "array"}}},
    {"type": "object", "properties": {"a": True}, "additionalProperties": {"type": "string"}},
    {"properties": {"a": {"type": "array"}}, "required": ["a"], "title": "t", "default": 1},
]
VALUES = [
    *(None, True, False, 0, 1, 2, 3, 1.5, "", "ab", "😀😀", "abcd", "a\nb", [], [1], ["a", 1]),
    *([1, 2, 3], {}, {"a": [1]}, {"a": [1], "b": {}}, {"a": 1, "b": "c"}, {"a": 1, "b": 2}),
    {"name": "Olga", "age": 61},
    {"name": "Olga", "age": 6.5},
    {"name": "Olga", "age": 61, "x": 1},
]


def test_the_page_judges_values_as_the_specification_does():
    judged = run(
        "given[0].map(schema => given[1].map(value => fits(schema, value)))", SCHEMAS, VALUES
    )
    for schema, found in zip(SCHEMAS, judged, strict=True):
        right = jsonschema.Draft202012Validator(schema)
        for value, fits in zip(VALUES, found, strict=True):
            assert fits is right.is_valid(value), (schema, value)


@pytest.mark.parametrize(
    "schema",
    [
        {"format": "email"},
        {"type": "string", "contentEncoding": "base64"},
        {"$ref": "#"},
        {"$ref": "https://example.org"},
        {"enum": 3},
        7,
    ],
)
def test_the_page_does_not_judge_a_schema_that_it_does_not_know(schema):
    assert run('judged(given[0], "a") ?? "unknown"', schema) == "unknown"


def test_an_unknown_keyword_does_not_hide_a_value_that_is_wrong():
    assert run('fits({type: "integer", format: "email"}, "a")') is False


@pytest.mark.parametrize(
    ("state", "text", "calls", "question", "holds"),
    [
        ({"constraint": {"json": PERSON}}, '{"name": "a", "age": 1}', [], "fits the schema", True),
        ({"constraint": {"json": PERSON}}, '{"name": "a"}', [], "fits the schema", False),
        ({"constraint": {"json": PERSON}}, '{"name": ', [], "fits the schema", False),
        ({"constraint": {"choice": ["a", "b"]}}, "b", [], "one of the words", True),
        ({"constraint": {"regex": "a|b"}}, "ab", [], "matches", False),
        ({"constraint": {"grammar": "start: NAME"}}, "a", [], "matches", None),
        ({"tools": [WEATHER]}, "a", [], "calls fit", None),
        ({"tools": [WEATHER], "choice": "required"}, "a", [], "calls fit", False),
        ({"tools": [WEATHER]}, "", [("get_weather", {"city": "a", "days": 1})], "calls fit", True),
        ({"tools": [WEATHER]}, "", [("get_weather", {"city": "a"})], "calls fit", False),
        ({"tools": [WEATHER]}, "", [("toString", {})], "calls fit", False),
    ],
)
def test_an_answer_is_judged_by_its_constraint_or_its_tools(state, text, calls, question, holds):
    made = [{"name": name, "arguments": json.dumps(given)} for name, given in calls]
    expression = "[checkOf(given[0]).question, checkOf(given[0]).holds(given[1], given[2]) ?? null]"
    assert run(expression, STATE | state, text, made) == [question, holds]
