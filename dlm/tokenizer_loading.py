"""Loading of a tokenizer from a model directory, whose files may be a stranger's: no code of theirs
is run, and errors name the file.
"""

import json
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedConfig, PreTrainedTokenizerBase

from dlm.errors import DlmError
from dlm.models.json_files import read_json, shown

_TEXTS = ("tokenizer_class", "bos_token", "eos_token", "pad_token", "unk_token")


def load_tokenizer(directory: Path) -> PreTrainedTokenizerBase:
    """Load a tokenizer by `AutoTokenizer`. If the directory names the tokenizer's class, the
    model's own configuration class is not imported: it imports most of transformers and torch's
    compiler, which takes two seconds. Raises `DlmError` for files that cannot be used."""
    settings = _settings(directory / "tokenizer_config.json")
    config = None
    if settings.get("tokenizer_class"):
        path = directory / "config.json"
        model_type = read_json(path).get("model_type", "") if path.exists() else ""
        config = type("Config", (PreTrainedConfig,), {"model_type": model_type})()
    try:
        return AutoTokenizer.from_pretrained(
            str(directory), local_files_only=True, config=config, trust_remote_code=False
        )
    except Exception as error:  # the tokenizers library raises the base class itself
        reason = _fault(directory / "tokenizer.json") or _reason(error)
        raise DlmError(f"{directory} holds no tokenizer that can be read: {reason}") from error


def _fault(path: Path) -> str | None:
    """Return what is wrong with a file of the tokenizers library as such; None if it has the right
    form, or if there is none."""
    if not path.exists():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, RecursionError, ValueError) as error:
        return f"{path.name} is no JSON: {error}"
    if not isinstance(content, dict):
        return f"{path.name} must hold an object, got {shown(content)}"
    missing = [name for name in ("model", "added_tokens") if name not in content]
    return f"{path.name} has no {missing[0]!r}" if missing else None


def _settings(path: Path) -> dict[str, Any]:
    """Return the content of `tokenizer_config.json`, checked; empty if there is no such file."""
    if not path.exists():
        return {}
    settings = read_json(path)
    for name in _TEXTS:
        value = settings.get(name)
        if isinstance(value, dict):  # a token with its properties
            value = value.get("content")
        if value is not None and not isinstance(value, str):
            raise DlmError(f"{path}: {name} must be a text, got {shown(settings[name])}")
    limit = settings.get("model_max_length")
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int | float)):
        raise DlmError(f"{path}: model_max_length must be a number, got {shown(limit)}")
    if isinstance(limit, int | float) and limit < 1:
        raise DlmError(f"{path}: model_max_length must be at least 1, got {shown(limit)}")
    return settings


def _reason(error: Exception) -> str:
    """Return the text of a foreign error, without advice that cannot be followed here."""
    text = " ".join(str(error).split())
    if "trust_remote_code" in text:
        return (
            "its tokenizer is a program of its own (`auto_map` in tokenizer_config.json or "
            "config.json), which is never run; a tokenizer.json is needed"
        )
    return text[:300] or type(error).__name__
