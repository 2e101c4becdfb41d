"""Small random checkpoints of masked families, each with a chat template that shows how it calls.

The tokenizer is the built-in model's, some of whose unused tokens have the names of other formats.
"""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import nemotron
from block_models import LLADA2, SDAR, Oracle

from dlm.engine import BUILT_IN

SPECIAL = (  # control tokens
    "<|im_start|>", "<|im_end|>", "<role>", "</role>", "<|role_end|>", "[INST]", "[/INST]",
    "[TOOL_CALLS]", "[ARGS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]",
)  # fmt: skip
TAGS = (  # tokens that are text, as Qwen's are
    "<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>",
    "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>",
)  # fmt: skip
FIRST = 5  # <unused5>
IDS = {name: FIRST + i for i, name in enumerate((*SPECIAL, *TAGS))}
SIZES = {"vocab_size": 1536, "mask_token_id": 4}

_TOOLS = """\
{%- if tools %}SYSTEM# Tools
<tools>{% for tool in tools %}
{{ tool | tojson }}{% endfor %}
</tools>
EXAMPLEEND
{%- endif %}"""
_HERMES_EXAMPLE = '<tool_call>\n{"name": <name>, "arguments": <object>}\n</tool_call>'
_HERMES = """{% for call in message.tool_calls or [] %}
<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}"""
_XML = """{% for call in message.tool_calls or [] %}
<tool_call>
<function={{ call.function.name }}>
{% for name, value in call.function.arguments | items %}<parameter={{ name }}>
{{ value if value is string else value | tojson }}
</parameter>
{% endfor %}</function>
</tool_call>{% endfor %}"""
_GLM = """{% for call in message.tool_calls or [] %}
<tool_call>{{ call.function.name }}
{% for name, value in call.function.arguments | items %}<arg_key>{{ name }}</arg_key>
<arg_value>{{ value if value is string else value | tojson }}</arg_value>
{% endfor %}</tool_call>{% endfor %}"""
_MISTRAL_LIST = """{% for call in message.tool_calls or [] -%}
{{ "[TOOL_CALLS] [" if loop.first else ", " }}{"name": "{{ call.function.name }}", "arguments":
{{- " " }}{{ call.function.arguments | tojson }}, "id": "{{ call.id }}"}{{ "]" if loop.last }}
{%- endfor %}"""
_MISTRAL = """{% for call in message.tool_calls or [] -%}
[TOOL_CALLS]{{ call.function.name }}[ARGS]{{ call.function.arguments | tojson }}
{%- endfor %}"""


def _template(system: str, end: str, example: str, turns: str, result: str, model: str) -> str:
    """Return a template, from the texts before and after a message."""
    tools = _TOOLS.replace("SYSTEM", system).replace("EXAMPLE", example).replace("END", end)
    return f"""{tools}
{{%- for message in messages %}}
{{%- if message.role == "tool" %}}{result}
{{%- elif message.role == "assistant" %}}{model}{{{{ message.content or "" }}}}{turns}{end}
{{%- else %}}{system.replace("system", "{{ message.role }}")}{{{{ message.content }}}}{end}
{{%- endif %}}
{{%- endfor %}}
{{%- if add_generation_prompt %}}{model}{{% endif %}}"""


_CHATML = "<|im_start|>system\n", "<|im_end|>\n"
_CHATML_RESULT = (
    "<|im_start|>user\n<tool_response>\n{{ message.content }}\n</tool_response><|im_end|>\n"
)
_CHATML_MODEL = '{{ "<|im_start|>assistant\\n" }}'
_ROLES_RESULT = (
    "<role>OBSERVATION</role><tool_response>{{ message.content }}</tool_response><|role_end|>"
)


class Calling(NamedTuple):
    """A family's checkpoint, and the form in which its template shows calls."""

    write: Callable[[Path], Path]
    template: str
    form: str
    stop: str  # the token that ends the model's turn


CASES = {
    "sdar": Calling(
        Oracle(SDAR | SIZES).write,
        _template(*_CHATML, _HERMES_EXAMPLE, _HERMES, _CHATML_RESULT, _CHATML_MODEL),
        "hermes",
        "<|im_end|>",
    ),
    "nemotron": Calling(
        nemotron.write,
        _template(*_CHATML, "<tool_call>\n<function=name>", _XML, _CHATML_RESULT, _CHATML_MODEL),
        "qwen3_coder",
        "<|im_end|>",
    ),
    "llada2": Calling(
        Oracle(LLADA2 | SIZES).write,
        _template(
            "<role>system</role>",
            "<|role_end|>",
            _HERMES_EXAMPLE,
            _HERMES,
            _ROLES_RESULT,
            "<role>ASSISTANT</role>",
        ),
        "hermes",
        "<|role_end|>",
    ),
    "nemotron, Mistral's tokens": Calling(
        nemotron.write,
        _template(
            "[INST]",
            "[/INST]",
            "",
            _MISTRAL,
            "[TOOL_RESULTS]{{ message.content }}[/TOOL_RESULTS]",
            "",
        ),
        "mistral",
        "<eos>",
    ),
    "llada2, GLM's tags": Calling(
        Oracle(LLADA2 | SIZES).write,
        _template(
            "<role>system</role>",
            "<|role_end|>",
            "<tool_call>name\n<arg_key>key</arg_key>\n<arg_value>value</arg_value>\n</tool_call>",
            _GLM,
            _ROLES_RESULT,
            "<role>ASSISTANT</role>",
        ),
        "glm",
        "<|role_end|>",
    ),
    "nemotron, Mistral's list": Calling(
        nemotron.write,
        _template(
            "[INST]",
            "[/INST]",
            "",
            _MISTRAL_LIST,
            "[TOOL_RESULTS]{{ message.content }}[/TOOL_RESULTS]",
            "",
        ),
        "mistral_list",
        "<eos>",
    ),
}


def write(out: Path, name: str) -> Path:
    """Write the directory of a case."""
    case = CASES[name]
    case.write(out)
    stops = {"eos_token_id": [1, IDS.get(case.stop, 1)], "pad_token_id": 0}
    (out / "generation_config.json").write_text(json.dumps(stops))
    (out / "chat_template.jinja").write_text(case.template)
    shutil.copy(BUILT_IN / "tokenizer_config.json", out)
    tokenizer = json.loads((BUILT_IN / "tokenizer.json").read_text())
    for token in tokenizer["added_tokens"]:
        at = token["id"] - FIRST
        if 0 <= at < len(IDS):
            renamed = [*IDS][at]
            tokenizer["model"]["vocab"][renamed] = tokenizer["model"]["vocab"].pop(token["content"])
            token |= {"content": renamed, "special": renamed in SPECIAL}
    (out / "tokenizer.json").write_text(json.dumps(tokenizer))
    return out
