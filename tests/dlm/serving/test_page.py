"""The page's code of a request sends the same body in every language, and the server answers it.

The functions are those of the page's scripts that know no document; node runs them here.
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

FOLDER = Path(dlm.serving.app.__file__).with_name("page")
SCRIPTS = "json_text.js", "requests.js", "judge.js", "picture.js", "examples.js"
CODE = "\n".join((FOLDER / name).read_text(encoding="utf-8") for name in SCRIPTS)
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
    """Evaluate an expression in the page's scripts, with `values` as the list `given`."""
    code = f"""{CODE}
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
    ("state", "text", "calls", "yes", "holds"),
    [
        ({"constraint": {"json": PERSON}}, '{"name": "a", "age": 1}', [], "fits the schema", True),
        ({"constraint": {"json": PERSON}}, '{"name": "a"}', [], "fits the schema", False),
        ({"constraint": {"json": PERSON}}, '{"name": ', [], "fits the schema", False),
        ({"constraint": {"choice": ["a", "b"]}}, "b", [], "is one of the choices", True),
        ({"constraint": {"regex": "a|b"}}, "ab", [], "matches", False),
        ({"constraint": {"grammar": "start: NAME"}}, "a", [], "matches", None),
        ({}, "a", [], "", None),
        ({"tools": [WEATHER]}, "a", [], "calls fit their tools", None),
        ({"tools": [WEATHER], "choice": "required"}, "a", [], "calls fit their tools", False),
        (
            {"tools": [WEATHER]},
            "",
            [("get_weather", {"city": "a", "days": 1})],
            "calls fit their tools",
            True,
        ),
        (
            {"tools": [WEATHER]},
            "",
            [("get_weather", {"city": "a"})],
            "calls fit their tools",
            False,
        ),
        ({"tools": [WEATHER]}, "", [("toString", {})], "calls fit their tools", False),
    ],
)
def test_an_answer_is_judged_by_its_constraint_or_its_tools(state, text, calls, yes, holds):
    made = [{"name": name, "arguments": json.dumps(given)} for name, given in calls]
    expression = "[checkOf(given[0]).yes, checkOf(given[0]).holds(given[1], given[2]) ?? null]"
    assert run(expression, STATE | state, text, made) == [yes, holds]


@pytest.mark.parametrize(
    ("text", "line", "column", "words"),
    [
        ('{\n "a": 1,\n}', 3, 1, "a comma too many"),
        ('{"a" 1}', 1, 6, "A colon is missing"),
        ("[1\n2]", 2, 1, "A comma or “]” is missing"),
        ("{a: 1}", 1, 2, "A key in double quotes is missing"),
        ('["a\nb"]', 1, 2, "no closing quote"),
        (r'"\q"', 1, 1, "a wrong escape"),
        ("", 1, 1, "A value is missing before the end"),
        ("01", 1, 1, "A value is missing"),
        ("{} x", 1, 4, "Nothing may follow"),
        ("[" * 600, 1, 502, "nested too deeply"),
    ],
)
def test_an_error_of_a_json_text_has_its_place(text, line, column, words):
    expression = """(() => {
      try { return readJson(given[0]); } catch (error) {
        return [error.message, placeOf(given[0], error.offset)];
      }
    })()"""
    message, place = run(expression, text)
    assert place == {"line": line, "column": column}
    assert words in message


def test_json_texts_are_read_as_python_reads_them_and_their_parts_have_places():
    values = [*VALUES, NASTY_SCHEMA, {"a/b": {"~": [{"c": 1e300}]}}]
    texts = [json.dumps(value, indent=indent) for value in values for indent in (None, 2)]
    assert run("given[0].map(text => readJson(text).value)", texts) == [*map(json.loads, texts)]
    text = '{"a/b": [\n{"c": 1}]}'
    places = "[...readJson(given[0]).places].map(([pointer, at]) => [pointer, given[0][at]])"
    pointers = [["", "{"], ["/a~1b", "["], ["/a~1b/0", "{"], ["/a~1b/0/c", "1"]]
    assert run(places, text) == pointers
    words = "JSON schema at /a~1b/0/c: wrong"
    assert run("given[0][offsetIn(given[1], readJson(given[0]).places)]", text, words) == "1"


def draft(committed, tokens, pinned=0, suspect=None, **more):
    """Return a draft as it is on the wire."""
    accepted = [i < pinned for i in range(len(tokens))]
    plain = {"committed": committed, "tokens": tokens, "pinned": pinned, "accepted": accepted}
    suspect = len(tokens) if suspect is None else suspect
    return plain | {"suspect": suspect, "masked": [False] * len(tokens)} | more


def test_a_picture_has_a_row_a_pass_whose_text_before_is_what_earlier_rows_have_fixed():
    drafts = [
        draft(0, ["a", "b", "c"], suspect=2, passes=1, entropy=0.5),
        draft(0, ["a", "d", ""], passes=2, entropy=0.1),
        draft(2, ["e", "\n", "", ""], pinned=1, passes=3, entropy=0.0),
    ]
    code = """(() => {
      const picture = new Picture();
      for (const draft of given[0]) picture.take({choices: [], draft}, draft.passes / 4);
      picture.take({choices: [], usage: {completion_tokens: 4}}, 9);
      return [picture.rows.map(({before, cells, frontier}) =>
        [before, cells.map(({text, kind}) => `${text} ${kind}`), frontier]),
        [0, 2, 3].map(i => picture.numbers(i)), widest(picture.rows)];
    })()"""
    rows, numbers, characters = run(code, drafts)
    assert rows == [
        ["", ["a noise", "b noise", "c suspect"], 2],
        ["", ["a noise", "d noise", "· noise"], None],
        ["ad", ["e pinned", "⏎ noise", "· noise"], None],
    ]
    assert numbers == [
        {"passes": 1, "tokens": 0, "rate": "0.0", "seconds": "0.3"},
        {"passes": 3, "tokens": 3, "rate": "1.0", "seconds": "0.8"},
        {"passes": 3, "tokens": 4, "rate": "1.3", "seconds": "0.8"},
    ]
    assert characters == 5


@pytest.mark.parametrize(
    ("drafts", "before"),
    [
        # A whole canvas: its last draft is shown, or was dropped.
        ([draft(0, ["a", "b"], 1, passes=1), draft(2, ["c"], passes=2)], "ab"),
        ([draft(0, ["a", "b"], 1, passes=1), draft(2, ["c"], passes=3)], "a…"),
        # Drafted: each row begins with what its pass wrote; the guess after it may be wrong.
        ([draft(0, ["a", "x", "y"], 1, passes=1), draft(1, ["b"], 1, passes=3)], "a"),
        ([draft(0, ["a", "x", "y"], 1, passes=1), draft(3, ["d"], 1, passes=4)], "a…"),
        ([draft(3, ["c"], 1, passes=3)], "…"),
        ([draft(2, ["c"], 1, passes=3), draft(3, ["d"], 1, passes=4)], "…c"),
        # Tokens were taken back.
        ([draft(0, ["a", "b"], 2, passes=1), draft(2, ["c"], passes=2)] * 2, "ab"),
        ([*(draft(i, ["a"], 1, passes=i + 1) for i in range(3)), draft(1, [""], passes=4)], "a"),
    ],
)
def test_a_picture_without_some_drafts_shows_no_guess_as_committed(drafts, before):
    code = """(() => {
      const picture = new Picture();
      for (const draft of given[0]) picture.take({choices: [], draft}, 1);
      return picture.rows.at(-1).before;
    })()"""
    assert run(code, [one | {"entropy": 0.0} for one in drafts]) == before


def test_a_masked_position_is_a_mask_until_its_token_stands():
    held = draft(0, ["a", "b", "c", "d"], pinned=1, suspect=3)
    held |= {"masked": [False, True, False, True], "accepted": [True, False, True, False]}
    assert run("kindsOf(given[0])", held) == ["pinned", "mask", "accepted", "mask"]


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
