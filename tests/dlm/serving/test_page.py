"""The page's code of a request sends the same body in every language, and the server answers it.

The functions are those of the page's scripts that know no document; node runs them here.
"""

import json
import os
import re
import subprocess
import sys
from contextlib import redirect_stdout
from io import StringIO
from types import ModuleType

import jsonschema
import pytest
from asks import PERSON
from exhaustive import by_default
from page_scripts import FOLDER, NASTY, NASTY_SCHEMA, STATE, WEATHER, needs_node, node, run

pytestmark = needs_node

FORMS = ("chat", "responses", "messages")
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


@pytest.mark.parametrize(
    ("name", "stream"),
    by_default(
        [
            *((name, True) for name in ANSWERED),
            *((name, False) for name in ("a tool", "any text", "a schema")),
            *((name, False) for name in ("a choice", "a regex", "reasoning")),
        ],
        7,
    ),
)
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


CALL = {"id": "call_1", "name": "get_weather", "arguments": '{"city": "Oslo", "days": 3}'}
TALK = [
    {"role": "user", "text": "What is the weather in Oslo in the next 3 days?", "images": []},
    {"role": "assistant", "text": "", "calls": [CALL]},
    {"role": "tool", "results": [{"id": "call_1", "text": '{"forecast": "rain", "degrees": 7}'}]},
]


def test_a_conversation_with_a_call_and_its_result_is_answered_in_every_form(tiny):
    state = STATE | {"base": tiny.url, "turns": TALK, "prompt": "", "tools": [WEATHER]}
    printed = {form: executed(made["python"]) for form, made in bodies_and_codes(state).items()}
    assert printed["chat"] == printed["responses"] == printed["messages"]
    assert "rain" in printed["chat"]


def test_every_part_of_the_page_is_served_with_its_type_and_a_strict_policy(tiny):
    page = tiny.http.get("/")
    names = re.findall(r'(?:src|href)="(page/[^"]+)"', page.text)
    assert {f"page/{path.name}" for path in FOLDER.iterdir()} == {*names, "page/index.html"}
    for answer in (page, *(tiny.http.get(f"/{name}") for name in names)):
        assert answer.status_code == 200
        assert "unsafe" not in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["content-type"].split(";")[0] in (
            "text/html",
            "text/css",
            "text/javascript",
        )
    assert "<script>" not in page.text
    for name in ("none.js", "..%2Fapp.py", "%2e%2e/app.py"):
        assert tiny.http.get(f"/page/{name}").status_code == 404


def test_the_page_writes_untrusted_text_as_text_alone():
    """Nothing that parses markup is called, so that neither an answer nor a link can hold any."""
    for path in FOLDER.glob("*.js"):
        code = path.read_text()
        for name in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
            assert name not in code, path.name
