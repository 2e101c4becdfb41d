"""The built-in checkpoint's tokenizer: byte-level-safe BPE with Gemma 4's control tokens.

Control tokens have Gemma 4's names and ids. A space is a piece of its own and digits stand alone,
so that a word is the same token in prose and in JSON: a small model copies tokens, not spellings.
"""

import json
import string
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from training.tokenizer import CHAT_TEMPLATE
from transformers import PreTrainedTokenizerFast

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


def _without_control(pieces: Tokenizer, reserved: list[str]) -> Tokenizer:
    """The trainer marks bytes and the newline as special too; only control tokens are."""
    data = json.loads(pieces.to_str())
    data["added_tokens"] = [token for token in data["added_tokens"] if token["content"] in reserved]
    return Tokenizer.from_str(json.dumps(data))
