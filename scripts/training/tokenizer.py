"""The built-in checkpoint's tokenizer: byte-level-safe BPE with Gemma 4's control tokens.

Control tokens have Gemma 4's names and ids. A space is a piece of its own and digits stand alone,
so that a word is the same token in prose and in JSON: a small model copies tokens, not spellings.
"""

import json
import re
import string
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from training import patterns
from training.data import sample
from training.words import phrases

VOCAB_SIZE = 1536
CONTROL = {
    0: "<pad>",
    1: "<eos>",
    2: "<bos>",
    3: "<unk>",
    4: "<mask>",
    46: "<|tool>",
    47: "<tool|>",
    48: "<|tool_call>",
    49: "<tool_call|>",
    50: "<|tool_response>",
    51: "<tool_response|>",
    52: '<|"|>',
    98: "<|think|>",
    100: "<|channel>",
    101: "<channel|>",
    105: "<|turn>",
    106: "<turn|>",
}
STOPS = [1, 106, 50]  # <eos>, <turn|>, <|tool_response>: DiffusionGemma's stop set

SAMPLES = 2_500  # with values: few, so that their words stay in pieces
SENTENCES = 6  # times that every pattern is read without its values

CHAT_TEMPLATE = r"""{{- bos_token -}}
{%- macro write(value) -%}
{%- if value is string -%}<|"|>{{ value }}<|"|>
{%- elif value is mapping -%}
{{ '{' }}{%- for key, inner in value.items() -%}
{{ key }}:{{ write(inner) }}{{ '' if loop.last else ',' }}
{%- endfor -%}{{ '}' }}
{%- elif value is sequence -%}
{{ '[' }}{%- for inner in value -%}
{{ write(inner) }}{{ '' if loop.last else ',' }}
{%- endfor -%}{{ ']' }}
{%- else -%}{{ value | tojson }}
{%- endif -%}
{%- endmacro -%}
{%- set thinking = enable_thinking is defined and enable_thinking -%}
{%- set system = messages[0]['content'] if messages[0]['role'] == 'system' else '' -%}
{%- if thinking or tools or system -%}
<|turn>system
{% if thinking %}<|think|>{% endif %}{{ system }}
{%- for tool in tools or [] -%}
<|tool>declaration:{{ tool['function']['name'] }}{
{%- for name, property in tool['function']['parameters']['properties'].items() -%}
{{ name }}:{{ property['type'] | upper }}{{ '' if loop.last else ',' }}
{%- endfor -%}
}<tool|>
{%- endfor -%}
<turn|>
{% endif -%}
{%- for message in (messages[1:] if messages[0]['role'] == 'system' else messages) -%}
<|turn>{{ 'model' if message['role'] == 'assistant' else message['role'] }}
{{ message['content'] }}
{%- for call in message['tool_calls'] or [] -%}
<|tool_call>call:{{ call['function']['name'] }}
{{- write(call['function']['arguments']) }}<tool_call|>
{%- endfor -%}
<turn|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|turn>model
{% endif -%}
"""


def train(texts: Iterable[str], directory: Path) -> None:
    """Train on `texts` (control tokens excluded) and write the tokenizer's files."""
    pieces = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    pieces.normalizer = normalizers.Replace(" ", "▁")  # type: ignore[assignment]
    pieces.pre_tokenizer = pre_tokenizers.Split(  # type: ignore[assignment]
        Regex(r"[A-Za-z]+|[0-9]|[^\sA-Za-z0-9▁]{1,3}▁?|\n▁*|▁+"), "isolated"
    )
    pieces.decoder = decoders.Sequence(  # type: ignore[assignment]
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    reserved = [CONTROL.get(i, f"<unused{i}>") for i in range(max(CONTROL) + 1)]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE,
        special_tokens=[*reserved, "\n", *(f"<0x{byte:02X}>" for byte in range(256))],
        initial_alphabet=list(string.printable),
        show_progress=False,
    )
    pieces.train_from_iterator(texts, trainer)
    pieces = _without_control(pieces, reserved)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=pieces,
        bos_token="<bos>",
        eos_token="<eos>",
        pad_token="<pad>",
        unk_token="<unk>",
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.save_pretrained(directory)


def corpus(random: Random) -> Iterator[str]:
    """What the pieces are learned from: the patterns' own words often, words of values seldom.

    Control tokens are cut out.
    """
    for domain in patterns.domains(True):
        for sentence in domain.sentences:
            if not sentence.held_out:
                for _ in range(SENTENCES):
                    yield " ".join(sentence.parts[::2])
        for field in domain.fields.values():
            for _ in range(SENTENCES):
                yield " ".join(json.dumps({name: 0}) for name in field.names)
    for ask in phrases("ask"):
        for _ in range(SENTENCES):
            yield re.sub(r"{.}", " ", ask)
    for _ in range(SAMPLES):
        item = sample(random, "train", copying=0.1)
        yield item.prompt
        yield re.sub(r"<[^<> ]*>", "", item.answer)
        yield f"thought\n{item.thought}\nsystem\nuser\nmodel"
        for tool in item.tools:
            properties = tool["function"]["parameters"]["properties"].items()
            said = ",".join(f"{name}:{p['type'].upper()}" for name, p in properties)
            yield f"declaration:{tool['function']['name']}{{{said}}}"


def _without_control(pieces: Tokenizer, reserved: list[str]) -> Tokenizer:
    """The trainer marks bytes and the newline as special too; only control tokens are."""
    data = json.loads(pieces.to_str())
    data["added_tokens"] = [token for token in data["added_tokens"] if token["content"] in reserved]
    return Tokenizer.from_str(json.dumps(data))
