"""The model of the test server: it is sure of the next step of its prompt's script."""

from functools import lru_cache

import torch
from doubles import Double
from native_calls import answer_tokens
from torch import Tensor
from turn_scripts import Step, last_script

from dlm.chat import Chat
from dlm.config import DecodeConfig
from dlm.grammar import ToolCall, Vocabulary

_TURN = "<|turn>"
_MODEL = "model\n"
_THOUGHT = "<|channel>thought\n{}<channel|>"
_WITHOUT_SCRIPT = "ok"
_SURE = 100.0
# After a step, what ends any answer soon: logits of the stop token, and of brackets and quotes.
_ENDS = {'"': 70.0, "}": 60.0, "]": 50.0}
_STOP = 80.0


class ScriptedModel(Double):
    """A denoiser that reads its script, and its place in the script, from its prompt."""

    def __init__(self, chat: Chat, config: DecodeConfig, canvas_length: int = 64):
        super().__init__(len(chat.tokenizer), canvas_length)
        self.max_positions = 1_000_000
        self._vocabulary = Vocabulary.from_tokenizer(
            chat.tokenizer, self.vocab_size, config.stops, config.pad
        )
        encode = self._vocabulary.encode
        (self._turn,), self._model = encode(_TURN), encode(_MODEL)
        self._no_thought = encode(_THOUGHT.format(""))
        self._ending = torch.zeros(self.vocab_size)
        self._ending[list(config.stops[1:2])] = _STOP
        for text, logit in _ENDS.items():
            self._ending[encode(text)] = logit
        self._step_of = lru_cache(64)(self._read_step)

    def wish(self, committed: list[int], canvas: Tensor, soft_embedding: Tensor) -> Tensor:
        if self._turn not in committed:  # no chat, and no script
            return self._ending.repeat(self.canvas_length, 1)
        begin = self._answer_begins(committed)
        step = self._step_of(tuple(committed[:begin]))
        wanted = step[len(committed) - begin :][: self.canvas_length]
        logits = self._ending.repeat(self.canvas_length, 1)
        logits[range(len(wanted))] = 0.0
        logits[range(len(wanted)), wanted] = _SURE
        return logits

    def _answer_begins(self, committed: list[int]) -> int:
        """Return the number of tokens before the answer: it has no marker of a turn."""
        opened = len(committed) - committed[::-1].index(self._turn)
        begin = opened + len(self._model)
        empty = committed[begin : begin + len(self._no_thought)] == self._no_thought
        return begin + len(self._no_thought) * empty

    def _read_step(self, prompt: tuple[int, ...]) -> list[int]:
        """Return the tokens of the script's step for this turn."""
        turns, turn = [], list[int]()
        for token in prompt:
            if token == self._turn:
                turns.append(turn := [])
            turn.append(token)
        texts = [self._vocabulary.text(turn) for turn in turns]
        for back, text in enumerate(reversed(texts)):
            steps, _ = last_script(text)
            if steps:
                own = [later.startswith(_MODEL) for later in texts[len(texts) - back :]]
                return self._tokens(steps[min(sum(own) - 1, len(steps) - 1)])
        return self._tokens(_WITHOUT_SCRIPT)

    def _tokens(self, step: Step) -> list[int]:
        if isinstance(step, str):
            return self._vocabulary.encode(step)
        if isinstance(step, dict):
            reasoning = self._vocabulary.encode(_THOUGHT.format(step["thought"]))
            return reasoning + self._tokens(step["then"])
        calls = [ToolCall(call["name"], call["arguments"]) for call in step]
        return answer_tokens(self._vocabulary, *calls)
