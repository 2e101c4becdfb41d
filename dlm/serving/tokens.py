"""Answers of `/tokenize` and `/detokenize`."""

from collections.abc import Mapping
from typing import Any

from dlm.engine import Engine
from dlm.errors import RequestError
from dlm.openai.body import check_fields, flag_at, list_at, text_at
from dlm.openai.messages import messages_of, thinking_of
from dlm.openai.requests import DETOKENIZE, TOKENIZE, TOKENIZE_CHAT
from dlm.openai.tools import declared, tools_of
from dlm.request import Request


def tokenized(engine: Engine, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tokens of `messages`, or of a `prompt` without a template. Raises
    `RequestError`."""
    check_fields(body, TOKENIZE_CHAT if body.get("messages") is not None else TOKENIZE)
    if body.get("messages") is not None:
        tools_of(body, engine.policy, None)  # raises for tools that a chat would be refused for
        messages, thinking = messages_of(body["messages"]), thinking_of(body)[0]
        request = Request(
            messages=messages, tools=declared(body), constrained=False, thinking=thinking
        )
    else:
        request = Request(text=text_at("prompt", body.get("prompt"), "text"))
    tokens = engine.chat.prompt(request)
    strings = None
    if flag_at("return_token_strs", body.get("return_token_strs")):
        strings = engine.chat.tokenizer.convert_ids_to_tokens(tokens)
    return {
        "count": len(tokens),
        "max_model_len": engine.model.max_positions,
        "tokens": tokens,
        "token_strs": strings,
    }


def detokenized(engine: Engine, body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the text of `tokens`, control tokens included. Raises `RequestError`."""
    check_fields(body, DETOKENIZE)
    tokens, V = list_at("tokens", body.get("tokens")), engine.model.vocab_size
    for i, token in enumerate(tokens):
        if type(token) is not int or not 0 <= token < V:
            raise RequestError(f"tokens[{i}] is {token!r:.40}: it takes 0 to {V - 1}")
    return {"prompt": engine.chat.tokenizer.decode(tokens)}
