"""The vocabulary of a model that vLLM serves, as grammars see it."""

from typing import Any

from dlm.errors import DlmError
from dlm.grammar import Vocabulary


def vocabulary_of(model_config: Any, tokenizer: Any) -> Vocabulary:
    """Stop tokens are those of the model's generation config, as vLLM ends answers.

    Raises `DlmError` for a model that says too little.
    """
    settings = model_config.try_get_generation_config() or {}
    stops = settings.get("eos_token_id", getattr(tokenizer, "eos_token_id", None))
    if stops is None:
        raise DlmError("the model's generation config has no eos_token_id: no text could end")
    stops = (stops,) if isinstance(stops, int) else tuple(stops)
    pad = getattr(tokenizer, "pad_token_id", None)
    if pad is None or pad in stops:
        raise DlmError(f"the tokenizer's pad token is {pad}: it takes one that is no stop token")
    return Vocabulary.from_tokenizer(tokenizer, model_config.get_vocab_size(), stops, pad)
