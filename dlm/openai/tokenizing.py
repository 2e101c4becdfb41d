"""Bodies of `/tokenize` and `/detokenize`: texts, conversations and token ids.

A conversation is converted as a chat is, so that its number of tokens is that of the chat's prompt.
"""

from typing import Any, ClassVar

from dlm.openai.body import REQUIRED, Several, Words, validated
from dlm.openai.messages import Messages, TemplateSwitches, chat_messages
from dlm.openai.other_fields import CHAT_HINTS, Hints, RequestModel
from dlm.openai.requests import ModelName, TokenId
from dlm.openai.tools import ToolList, tools_spec
from dlm.policy import Policy
from dlm.request import Request


class TokenizeBody(RequestModel):
    """Body of `/tokenize` for a text, which gets no template."""

    hints: ClassVar[Hints] = {}

    model: ModelName | None = None
    prompt: Words = REQUIRED
    return_token_strs: bool | None = None

    def request(self, policy: Policy) -> Request:
        return Request(text=self.prompt)


class TokenizeChatBody(RequestModel):
    """Body of `/tokenize` for a conversation."""

    hints: ClassVar[Hints] = {
        "thinking": "send chat_template_kwargs.enable_thinking",
        "tools": CHAT_HINTS["tools"],
    }

    model: ModelName | None = None
    messages: Messages = REQUIRED
    tools: ToolList | None = None
    chat_template_kwargs: TemplateSwitches | None = None
    return_token_strs: bool | None = None

    def request(self, policy: Policy) -> Request:
        """Return a request with the tokens of a chat. Raises `RequestError`."""
        tools_spec(self.tools, policy)  # raises for tools that a chat would be refused for
        switches = self.chat_template_kwargs
        return Request(
            messages=chat_messages(self.messages),
            tools=self.tools or (),
            constrained=False,
            thinking=switches is not None and switches.enable_thinking is True,
        )


def tokenize_body_of(body: Any) -> TokenizeBody | TokenizeChatBody:
    """Read a body of `/tokenize`. Raises `RequestError`."""
    chat = isinstance(body, dict) and body.get("messages") is not None
    return validated((TokenizeChatBody if chat else TokenizeBody).model_validate, body)


class DetokenizeBody(RequestModel):
    """Body of `/detokenize`."""

    hints: ClassVar[Hints] = {}

    model: ModelName | None = None
    tokens: Several[TokenId] = REQUIRED
