"""Answers of `/tokenize` and `/detokenize`."""

from typing import Any

from dlm.engine import Engine
from dlm.errors import RequestError
from dlm.openai.body import read
from dlm.openai.constraint import tools_spec
from dlm.openai.messages import chat_messages
from dlm.openai.requests import DetokenizeBody, TokenizeBody, TokenizeChatBody
from dlm.request import Request


def tokenize_body_of(body: Any) -> TokenizeBody | TokenizeChatBody:
    """Read a body of `/tokenize`. Raises `RequestError`."""
    chat = isinstance(body, dict) and body.get("messages") is not None
    return read((TokenizeChatBody if chat else TokenizeBody).model_validate, body)


def detokenize_body_of(body: Any) -> DetokenizeBody:
    """Read a body of `/detokenize`. Raises `RequestError`."""
    return read(DetokenizeBody.model_validate, body)


def tokenized(engine: Engine, body: TokenizeBody | TokenizeChatBody) -> dict[str, Any]:
    """Return the tokens of `messages`, or of a `prompt` without a template. Raises
    `RequestError`."""
    if isinstance(body, TokenizeChatBody):
        tools_spec(body.tools, engine.policy)  # raises for tools that a chat would be refused for
        switches = body.chat_template_kwargs
        request = Request(
            messages=chat_messages(body.messages),
            tools=body.tools or (),
            constrained=False,
            thinking=switches is not None and switches.enable_thinking is True,
        )
    else:
        request = Request(text=body.prompt)
    tokens = engine.prompts.tokens(request)
    strings = None
    if body.return_token_strs:
        strings = engine.chat.tokenizer.convert_ids_to_tokens(tokens)
    return {
        "count": len(tokens),
        "max_model_len": engine.model.max_positions,
        "tokens": tokens,
        "token_strs": strings,
    }


def detokenized(engine: Engine, body: DetokenizeBody) -> dict[str, Any]:
    """Return the text of `tokens`, control tokens included. Raises `RequestError`."""
    V = engine.model.vocab_size
    for i, token in enumerate(body.tokens):
        if not 0 <= token < V:
            raise RequestError(f"tokens[{i}] is {token!r:.40}: it takes 0 to {V - 1}")
    return {"prompt": engine.chat.tokenizer.decode(body.tokens)}
