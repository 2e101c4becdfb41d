"""Chat templates may be a stranger's: their effort is bounded, and their faults are their own."""

import json
import shutil
import tracemalloc
from pathlib import Path

import pytest
from doubles import Obsessed
from jinja2.defaults import DEFAULT_FILTERS
from transformers import AutoTokenizer
from values import V

from dlm import DlmError, Engine, Request, RequestError
from dlm.chat import Chat
from dlm.chat_template import ChatTemplate
from dlm.engine import BUILT_IN
from dlm.errors import TemplateError
from dlm.template_effort import DEEP_FILTERS, SHALLOW_FILTERS

FILE = "model/chat_template.jinja"
HELLO = ({"role": "user", "content": "hello"},)
DOUBLED = "{{% set n = namespace(x={0}) %}}{{% for i in range(60) %}}{1}{{% endfor %}}{2}"
BIG = "{% set big = 'z' * 100000 %}{% for i in range(99999) %}"


def render(source, messages=HELLO, tools=()):
    return ChatTemplate(source, FILE, {"bos_token": "<bos>"}).render(messages, tools, False)


def doubled(first, step, use=""):
    return DOUBLED.format(first, f"{{% set n.x = {step} %}}", use)


ENDLESS = {
    "nested loops": "{% for i in range(9999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "loops that skip": "{% for i in range(9999) %}{% for j in range(99999) if false %}"
    "{% endfor %}{% endfor %}",
    "a long body": "{% for i in range(99999) %}" + "y" * 5000 + "{% endfor %}",
    "a macro that calls itself twice": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}"
    "{% endif %}{% endmacro %}{{ f(40) }}",
    "a macro without an end": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "a block within itself": "{% block a %}{{ self.a() }}{% endblock %}",
    "recursive loops": "{% for i in [1] recursive %}{{ loop([1, 2]) }}{% endfor %}",
    "texts doubled by ~": doubled("'a'", "n.x ~ n.x"),
    "texts doubled by +": doubled("'a'", "n.x + n.x"),
    "texts doubled by join": doubled("'a'", "[n.x, n.x] | join"),
    "texts doubled by format": doubled("'a'", "'%s%s' % (n.x, n.x)"),
    "texts doubled by replace": doubled("'ab'", "n.x.replace('a', 'aa')"),
    "texts doubled by a macro": "{% macro f(x) %}{{ x }}{{ x }}{% endmacro %}"
    + doubled("'a'", "f(n.x)"),
    "lists doubled": doubled("[1]", "n.x + n.x"),
    "lists of lists, written": doubled("[1]", "[n.x, n.x]", "{{ n.x }}"),
    "lists of lists, as JSON": doubled("[1]", "[n.x, n.x]", "{{ n.x | tojson | length }}"),
    "lists of lists, as a text": doubled("[1]", "[n.x, n.x]", "{{ n.x | string | length }}"),
    "tuples as keys": doubled("(1,)", "(n.x, n.x)", "{% set d = {n.x: 1} %}"),
    "tuples looked up": doubled("(1,)", "(n.x, n.x)", "{{ {1: 2}[n.x] }}"),
    "namespaces of namespaces": doubled("1", "namespace(a=n.x, b=n.x)", "{{ n.x }}"),
    "integers squared": doubled("3", "n.x * n.x"),
    "powers": "{{ 2 ** (10 ** 9) }}",
    "repetition": "{{ 'a' * 10 ** 9 }}",
    "repetition from the left": "{{ 10 ** 9 * 'a' }}",
    "repeated lists": "{{ [0] * 10 ** 9 }}",
    "filter center": "{{ 'a' | center(10 ** 9) }}",
    "filter indent": "{{ ('x\\n' * 100000) | indent(100000) }}",
    "filter replace": "{{ ('x' * 100000) | replace('x', 'y' * 100000) }}",
    "filter join": "{{ ('x' * 100000) | join('y' * 100000) }}",
    "filter batch": "{{ [1] | batch(10 ** 9, 0) | list | length }}",
    "filter slice": "{{ [1] | slice(10 ** 9) | list | length }}",
    "filter round": "{{ 5 | round(-(10 ** 9)) }}",
    "filter format": "{{ '%1000000000d' | format(5) }}",
    "filter tojson": "{{ messages | tojson(indent=10 ** 9) }}",
    "filter sum": "{{ ([[1] * 1000] * 1000) | sum(start=[]) | length }}",
    "filter sort": BIG + "{{ ([big] * 1000) | sort | length }}{% endfor %}",
    "method center": "{{ 'a'.center(10 ** 9) }}",
    "method zfill": "{{ 'a'.zfill(10 ** 9) | length }}",
    "method join": "{{ ('y' * 100000).join('x' * 100000) }}",
    "method replace": "{{ ('x' * 100000).replace('', 'y' * 100000) }}",
    "method expandtabs": "{{ ('\\t' * 100000).expandtabs(100000) }}",
    "method format": "{{ '{:1000000000d}'.format(5) }}",
    "a width that is a value": "{{ '{:{}d}'.format(5, 10 ** 9) }}{{ '%*d' % (10 ** 9, 5) }}",
    "method to_bytes": "{{ (10).to_bytes(10 ** 9, 'big') }}",
    "copies by slices": BIG + "{{ big[1:] | length }}{% endfor %}",
    "searches": BIG + "{{ 'q' in big }}{% endfor %}",
    "comparisons": BIG + "{{ big == big ~ '' }}{% endfor %}",
    "tests": BIG + "{{ big is eq(big ~ '') }}{% endfor %}",
    "splits": BIG + "{{ big.split('y') | length }}{% endfor %}",
    "long ranges": "{% for i in range(10 ** 9) %}{% endfor %}",
    "lists of ranges": "{% for i in range(99999) %}{{ range(99999) | list | length }}{% endfor %}",
    "filtered ranges": "{% for i in range(99999) %}"
    "{{ range(99999) | select('none') | list | length }}{% endfor %}",
}


@pytest.mark.parametrize("name", ENDLESS)
def test_a_template_that_does_too_much_is_the_checkpoint_s_error(name, monkeypatch):
    """With a hundredth of the steps, so that it is quick; the memory is bounded with them."""
    monkeypatch.setattr("dlm.chat_template._STEPS", 20_000)
    tracemalloc.start()
    try:
        with pytest.raises(TemplateError, match=r"^model/chat_template\.jinja, line 1: the chat"):
            render(ENDLESS[name])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 20e6


def test_the_effort_grows_with_the_messages(monkeypatch):
    monkeypatch.setattr("dlm.chat_template._STEPS", 1000)
    source = "{% for m in messages %}{{ m.content | trim }}{% endfor %}"
    assert render(source, [{"role": "user", "content": "hello"}] * 3000) == "hello" * 3000
    with pytest.raises(TemplateError, match="steps that a rendering of this size may have"):
        render("{% for i in range(3000) %}{{ messages[0].content | trim }}{% endfor %}")


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m['content'] }}{% endfor %}",
         "<bos>[user]hello"),
        ("{{ messages[::-1][0].role }}{{ 'abc'[1:] }}{{ 1 < 2 < 3 }}{{ 3 < 2 < 5 }}",
         "userbcTrueFalse"),
        ("{{ 'a' in 'abc' }}{{ 1 not in [1] }}{{ 'x' in {'x': 1} }}{{ 2 in range(3) }}",
         "TrueFalseTrueTrue"),
        ("{{ x is defined }}{{ none is none }}{{ 'a' is in ['a'] }}{{ 4 is divisibleby 2 }}",
         "FalseTrueTrueTrue"),
        ("{{ messages | map(attribute='role') | join(', ') }}{{ ['b', 'a'] | sort | first }}",
         "usera"),
        ("{{ messages | selectattr('role', 'equalto', 'user') | list | length }}", "1"),
        ("{{ {'é': [1, none]} | tojson }}{{ {'a': 1} | tojson(indent=1) }}",
         '{"é": [1, null]}{\n "a": 1\n}'),
        ("{% macro f(a, b='-') %}{{ a ~ b }}{{ caller() }}{% endmacro %}"
         "{% call f(1) %}x{% endcall %}",
         "1-x"),
        ("{% for a, b in {'x': 1, 'y': 2}.items() %}{{ loop.index }}{{ a }}{{ b }}"
         "{{ loop.cycle('!', '?') }}{{ loop.changed(a) }}{{ ',' if not loop.last }}{% endfor %}",
         "1x1!True,2y2?True"),
        ("{% for i in [[1, [2]], 3] recursive %}{% if i is iterable %}({{ loop(i) }})"
         "{% else %}{{ i }}{% endif %}{% endfor %}", "(1(2))3"),
        ("{% for i in range(9) if i % 2 %}{% if i == 5 %}{% break %}{% endif %}{{ i }}{% endfor %}",
         "13"),
        ("{% set n = namespace(a=1) %}{% for i in [1, 2] %}{% set n.a = n.a + i %}{% endfor %}"
         "{{ n.a }}",
         "4"),
        ("{% generation %}a{% endgeneration %}{% filter upper %}b{% endfilter %}", "aB"),
        ("{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{% set j = joiner(';') %}"
         "{{ j() }}{{ j() }}", "ab;"),
        ("{{ '%s-%02d' % ('a', 5) }}{{ '{}/{:02d}'.format('a', 5) }}{{ '%.1f' | format(3.14159) }}",
         "a-05a/053.1"),
        ("{{ raise_exception is defined }}{{ strftime_now('%%') }}{{ dict(a=1).a }}", "True%1"),
        ("{% block a %}x{{ self.b() }}{% endblock %}{% block b %}y{% endblock %}", "xyy"),
    ],
)  # fmt: skip
def test_templates_can_do_what_chat_templates_do(source, text):
    assert render(source) == text


def test_the_reasoning_of_a_message_has_the_names_that_templates_read():
    messages = [{"role": "assistant", "content": "a", "reasoning": "why", "tool_calls": None}]
    source = "{{ messages[0].reasoning_content }}{{ messages[0].thinking }}"
    assert render(source + "{{ 'tool_calls' in messages[0] }}", messages) == "whywhyFalse"


def test_a_rendering_is_that_of_transformers():
    tokenizer = AutoTokenizer.from_pretrained(BUILT_IN)
    ours = Chat(tokenizer).template()
    call = {"type": "function", "function": {"name": "f", "arguments": {"a": [1, {"b": None}]}}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"properties": {}}}}]
    conversation = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": [{"type": "text", "text": "a"}]},
        {"role": "assistant", "content": "b", "tool_calls": [call], "reasoning": "c"},
        {"role": "user", "content": "d"},
    ]
    for thinking in (False, True):
        theirs = tokenizer.apply_chat_template(
            conversation,
            tools,
            add_generation_prompt=True,
            tokenize=False,
            enable_thinking=thinking,
        )
        assert ours.render(conversation, tools, thinking) == theirs


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("a\n{{ 1 / 0 }}", "line 2: .* ZeroDivisionError: division by zero"),
        ("{{ nothing.at.all }}", "line 1: .* 'nothing' is undefined"),
        ("\n\n{{ messages[0].x.y }}", "line 3: .* has no attribute 'x'"),
        ("{{ ''.__class__.__mro__ }}", "access to attribute '__class__' of 'str' object is unsafe"),
        ("{{ messages.append(1) }}", "access to attribute 'append' of 'list' object is unsafe"),
        ("{% set n = namespace(_a=1) %}", "a namespace cannot have an attribute '_a'"),
        ("{% set n = namespace() %}{{ [n] }}", "a namespace can be neither written"),
        ("{{ 'a'.encode() }}", "a template cannot call encode of a str"),
    ],
)
def test_a_template_that_fails_on_any_messages_is_the_checkpoint_s_error(source, reason):
    with pytest.raises(TemplateError, match=rf"^model/chat_template\.jinja, {reason}|{reason}"):
        render(source)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{% for %}", "line 1: "),
        ("a\n{{ x | wordwrap }}", "line 2: No filter named 'wordwrap'"),
        ("{{ 'a' is odder }}", "line 1: No test named 'odder'"),
        ("{% include 'other' %}", "line 1: the tag 'include' cannot be used"),
        ("{% autoescape true %}{% endautoescape %}", "the tag 'autoescape' cannot be used"),
        ("{{ " + "(" * 500 + "1" + ")" * 500 + " }}", "nested too deeply"),
        ("{% for i in [1] %}" * 30 + "{% endfor %}" * 30, "nested too deeply"),
        ("x" * 1_000_001, "has 1,000,001 characters; at most 1,000,000 are read"),
    ],
)  # fmt: skip
def test_a_template_that_cannot_be_compiled_is_the_checkpoint_s_error(source, reason):
    with pytest.raises(TemplateError, match=r"^model/chat_template\.jinja") as error:
        render(source)
    assert reason in str(error.value)


def test_messages_that_only_this_conversation_has_wrong_are_the_caller_s_error():
    source = "{% for m in messages %}{{ m.content + '' }}{% endfor %}"
    assert render(source) == "hello"
    with pytest.raises(
        RequestError, match="cannot render messages: they must have the form"
    ) as error:
        render(source, [{"role": "user", "content": 5}])
    assert error.value.field == "messages"
    with pytest.raises(RequestError, match="cannot render messages: only users"):
        render("{{ raise_exception('only users') }}")


def directory_with(tmp_path, template, settings):
    directory = shutil.copytree(BUILT_IN, tmp_path / "model")
    (directory / "chat_template.jinja").unlink()
    if template is not None:
        (directory / "chat_template.jinja").write_text(template)
    path = directory / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))
    return directory


@pytest.mark.parametrize(
    ("template", "settings", "file"),
    [
        ("{% for %}", {}, "chat_template.jinja, line 1"),
        (None, {"chat_template": "{% for %}"}, "tokenizer_config.json, line 1"),
        (None, {"chat_template": 5}, "tokenizer_config.json: the chat template must be a text"),
        (None, {"chat_template": [{"name": "default", "template": "{% for %}"}]}, "line 1"),
    ],
)
def test_a_directory_with_a_broken_template_is_not_loaded(tmp_path, template, settings, file):
    with pytest.raises(DlmError) as error:
        Chat.load(directory_with(tmp_path, template, settings))
    assert f"model/{file}" in str(error.value) or file in str(error.value)


def test_of_several_templates_the_one_for_tools_renders_tools(tmp_path):
    named = {"default": "plain", "tool_use": "tools"}
    templates = [{"name": name, "template": text} for name, text in named.items()]
    chat = Chat.load(directory_with(tmp_path, None, {"chat_template": templates}))
    assert chat.template().render(HELLO, (), False) == "plain"
    assert chat.template("tool_use").render(HELLO, (), False) == "tools"


def test_an_engine_goes_on_after_a_template_has_failed(engine_of, tmp_path):
    source = "{% if messages[0].content == 'x' %}{{ 1 / 0 }}{% endif %}"
    chat = Chat.load(directory_with(tmp_path, source, {}))
    engine = Engine(Obsessed(V, [300]), chat, slots=1)
    with pytest.raises(TemplateError, match=r"model/chat_template\.jinja, line 1: .*division"):
        engine.generate(Request(prompt="x", max_tokens=4))
    assert engine.generate(Request(prompt="y", max_tokens=4)).finish_reason
    engine.close()


def test_the_guide_names_every_filter_of_jinja_that_is_refused():
    guide = (Path(__file__).parents[2] / "docs" / "serving.md").read_text()
    for name in DEFAULT_FILTERS.keys() - SHALLOW_FILTERS - DEEP_FILTERS:
        with pytest.raises(TemplateError, match=f"No filter named '{name}'"):
            ChatTemplate(f"{{{{ x | {name} }}}}", FILE, {})
        assert f"`{name}`" in guide
