"""Conversations to token ids, through the chat template that comes with the model."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jinja2
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from dlm.errors import DlmError, RequestError
from dlm.request import Request

_TURN = "<|turn>model\n"  # what a model's turn begins with
_NO_THOUGHT = "<|channel>thought\n<channel|>"  # an empty thought channel


class Chat:
    """A tokenizer and its chat template."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase):
        self.tokenizer = tokenizer
        self._turn, self._no_thought = self._encode(_TURN), self._encode(_NO_THOUGHT)

    @classmethod
    def load(cls, directory: str | Path) -> "Chat":
        try:
            return cls(AutoTokenizer.from_pretrained(str(directory), local_files_only=True))
        except (OSError, ValueError) as error:
            raise DlmError(f"{directory} holds no tokenizer that can be read: {error}") from error

    def prompt(self, request: Request) -> list[int]:
        """The tokens that the model continues.

        Without thinking, the model's turn is opened up to behind an empty thought channel, where
        the answer begins: the model would write the channel itself, and no grammar allows it. Only
        raw tokens without a constraint are left exactly as they are.
        """
        if request.token_ids is not None:
            tokens = list(request.token_ids)
            if request.constraint is None:
                return tokens
        else:
            messages = request.messages or [{"role": "user", "content": request.prompt}]
            tokens = self._render(messages, request.tools, request.thinking)
        opened = tokens[-len(self._turn) :] == self._turn
        return tokens + self._no_thought if opened and not request.thinking else tokens

    def _render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]],
        thinking: bool,
    ) -> list[int]:
        if self.tokenizer.chat_template is None:
            raise RequestError("this model has no chat template: give token_ids, not messages")
        try:
            text = self.tokenizer.apply_chat_template(
                [dict(message) for message in messages],
                tools=[dict(tool) for tool in tools] or None,
                enable_thinking=thinking,
                add_generation_prompt=True,
                tokenize=False,
            )
        except (jinja2.TemplateError, KeyError, TypeError, ValueError) as error:
            raise RequestError(f"the chat template cannot render messages: {error}") from error
        return self._encode(str(text))

    def _encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False)
