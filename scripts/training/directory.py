"""Model directory in Hugging Face layout: tokenizer, configurations, and weights in bf16.

The tokenizer is a byte-level-safe BPE with Gemma 4's control tokens, by their names and ids. A
space is a piece of its own and digits stand alone, so that a word is the same token in prose and in
JSON: a small model copies tokens, not spellings.
"""

import json
import re
import string
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

import torch
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from torch import Tensor
from transformers import DiffusionGemmaConfig, Gemma4VisionConfig, PreTrainedTokenizerFast
from transformers.models.diffusion_gemma.generation_diffusion_gemma import (
    DiffusionGemmaGenerationConfig,
    EntropyBoundSamplerConfig,
)
from transformers.models.gemma4.modeling_gemma4 import Gemma4VisionModel

from dlm.models import DiffusionGemma, ModelConfig, checkpoint
from training import patterns
from training.lessons import sample
from training.words import phrases

CANVAS = 32
CONFIG = "config.json"
STATE = "training.pt"  # what a run continues from, beside its weights


def prepare(out: Path, seed: int) -> None:
    """Write the tokenizer and the configurations that `out` does not have yet."""
    out.mkdir(parents=True, exist_ok=True)
    if not (out / "tokenizer.json").exists():
        train_tokenizer(corpus(Random(seed)), out)
    if not (out / "generation_config.json").exists():
        DiffusionGemmaGenerationConfig(
            max_new_tokens=256,
            max_denoising_steps=24,
            sampler_config=EntropyBoundSamplerConfig(entropy_bound=0.1),
            t_min=0.4,
            t_max=0.8,
            stability_threshold=1,
            confidence_threshold=0.02,
            bos_token_id=2,
            eos_token_id=STOPS,
            pad_token_id=0,
        ).save_pretrained(out)
    if not (out / CONFIG).exists():
        (out / CONFIG).write_text(json.dumps(hf_config(), indent=2) + "\n")


def hf_config() -> dict[str, Any]:
    """Return the architecture, through transformers' own config class, and how it writes best."""
    layers = ["sliding_attention", "full_attention"] * 4
    config = DiffusionGemmaConfig(
        text_config={
            "vocab_size": VOCAB_SIZE,
            "hidden_size": 192,
            "intermediate_size": 1024,
            "num_hidden_layers": len(layers),
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 48,
            "global_head_dim": 64,
            "num_global_key_value_heads": 2,
            "sliding_window": 256,
            "layer_types": layers,
            "num_experts": 4,
            "top_k_experts": 2,
            "moe_intermediate_size": 64,
            "max_position_embeddings": 2048,
            "pad_token_id": 0,
            "bos_token_id": 2,
            "eos_token_id": STOPS,
        },
        vision_config=vision_config().to_dict() | {"default_output_length": 4},  # vLLM asks for it
        canvas_length=CANVAS,
        image_token_id=5,
        boi_token_id=6,
        eoi_token_id=7,
    )
    return {
        **config.to_dict(),
        "architectures": ["DiffusionGemmaForBlockDiffusion"],
        "dtype": "float32",  # what to compute in; the file holds bf16
        "dlm": {"decoding": "drafted"},  # right more often than in canvases, in fewer passes
    }


def vision_config() -> Gemma4VisionConfig:
    """Return the config of the smallest vision tower in transformers; it is not trained."""
    return Gemma4VisionConfig(
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=16,
        patch_size=4,
        position_embedding_size=16,
    )


def write(weights: Mapping[str, Tensor], config: Mapping[str, Any], out: Path) -> None:
    """Write the weights, rounded to bf16, and those of the untrained vision tower."""
    model = DiffusionGemma(ModelConfig.from_hf(config))
    model.load_state_dict(weights)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        tower = Gemma4VisionModel(vision_config())
        hidden = config["text_config"]["hidden_size"]
        projection = torch.randn(hidden, tower.config.hidden_size) * 0.02
    extra = {
        f"model.encoder.vision_tower.{n}": t.contiguous().bfloat16()
        for n, t in tower.state_dict().items()
    }
    extra["model.encoder.embed_vision.embedding_projection.weight"] = projection.bfloat16()
    checkpoint.save(model.to(torch.bfloat16), out, config, extra)


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

CHAT_TEMPLATE = Path(__file__).with_name("chat_template.jinja")


def train_tokenizer(texts: Iterable[str], directory: Path) -> None:
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
        chat_template=CHAT_TEMPLATE.read_text(encoding="utf-8"),
        clean_up_tokenization_spaces=False,
    )
    tokenizer.save_pretrained(directory)


def corpus(random: Random) -> Iterator[str]:
    """Yield the texts that the pieces are learned from, without control tokens.

    The patterns' own words are in them often, words of values seldom.
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
            listed = ",".join(f"{name}:{p['type'].upper()}" for name, p in properties)
            yield f"declaration:{tool['function']['name']}{{{listed}}}"


def _without_control(pieces: Tokenizer, reserved: list[str]) -> Tokenizer:
    """Keep only control tokens special: the trainer marks bytes and the newline as special too."""
    data = json.loads(pieces.to_str())
    data["added_tokens"] = [token for token in data["added_tokens"] if token["content"] in reserved]
    return Tokenizer.from_str(json.dumps(data))
