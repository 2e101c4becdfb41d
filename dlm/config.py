"""Settings of decoding: the sampler, the patience of the loop, and the tokens that end a text."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dlm.errors import DlmError
from dlm.models import CheckpointError
from dlm.models.json_files import Range, check_number, shown
from dlm.numbers import is_number
from dlm.samplers import EntropyBound, Sampler


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeConfig:
    """Settings of the loop, and the sampler of its canvases. Raises `DlmError` for impossible
    values."""

    sampler: Sampler = field(default_factory=EntropyBound)
    patience: int = 8  # passes that the frontier may stay where it is
    lost: float = 1e-3  # stuck if the allowed tokens have less than this share of the probability
    retries: int = 3  # rollbacks per canvas: choices taken back since they led nowhere
    refusals: int = 12  # times that a request is tried again after its schema refused the value
    stops: tuple[int, ...] = (1, 106, 50)  # <eos>, <turn|>, <|tool_response>
    pad: int = 0  # fills a canvas after a stop; left to right it may be a stop token too
    excluded: tuple[int, ...] = ()  # control tokens that are never written, beside the mask

    def __post_init__(self) -> None:
        if not isinstance(self.sampler, Sampler):
            raise DlmError(f"sampler must be a Sampler, got a {type(self.sampler).__name__}")
        if not is_number(self.patience, int) or self.patience < 1:
            raise DlmError(f"patience must be at least 1, got {self.patience!r:.40}")
        if not is_number(self.lost) or not 0 <= self.lost < 1:
            raise DlmError(f"lost must be a probability under 1, got {self.lost!r:.40}")
        for name in ("retries", "refusals"):
            if not is_number(getattr(self, name), int) or getattr(self, name) < 0:
                raise DlmError(f"{name} must be 0 or more, got {getattr(self, name)!r:.40}")
        if not self.stops:
            raise DlmError("stops is empty: without a stop token no answer could end")
        tokens = {"pad": (self.pad,), "stops": self.stops, "excluded": self.excluded}
        for name, token in ((name, token) for name, group in tokens.items() for token in group):
            if type(token) is not int or token < 0:
                raise DlmError(f"{name} must be an id of a token, got {token!r:.40}")

    @property
    def never_written(self) -> tuple[int, ...]:
        """Tokens without a probability: those that are excluded, and the sampler's mask."""
        mask = self.sampler.mask
        return self.excluded if mask is None else (*self.excluded, mask)

    def check_tokens(self, vocab_size: int) -> None:
        """Raise `DlmError` if a token that is never written is none of the `vocab_size` tokens of a
        model."""
        mask = self.sampler.mask
        named = [("excluded", token) for token in self.excluded]
        for name, token in named if mask is None else [*named, ("mask", mask)]:
            if not 0 <= token < vocab_size:
                raise DlmError(
                    f"{name} must be one of the model's {vocab_size} tokens, got {token}"
                )

    @classmethod
    def from_hf(cls, settings: Mapping[str, Any], **defaults: Any) -> "DecodeConfig":
        """Return the config of a parsed `generation_config.json`: stop tokens, padding, and the
        `defaults` of fields that it does not set. Sampling values that a request chooses are
        logged: they have no effect. Raises `CheckpointError` for a value that cannot be meant."""
        for name, allowed in _RANGES.items():
            if settings.get(name) is not None:
                check_number(f"{_FILE}: {name}", settings[name], allowed)
        fields = dict(defaults)
        if settings.get("pad_token_id") is not None:
            fields["pad"] = settings["pad_token_id"]
        stops: Any = settings.get("eos_token_id")
        if stops is not None:
            stops = stops if isinstance(stops, list) else [stops]
            if not stops:
                raise CheckpointError(f"{_FILE}: eos_token_id must name at least one token, got []")
            for stop in stops:
                check_number(f"{_FILE}: eos_token_id", stop, _TOKEN)
            fields["stops"] = tuple(stops)
        unused = [f"{name} {shown(settings[name])}" for name in _UNUSED if _chosen(settings, name)]
        if unused:
            _LOG.warning(
                "%s: %s without effect: each request chooses its own", _FILE, ", ".join(unused)
            )
        try:
            return cls(**fields)
        except DlmError as error:
            raise CheckpointError(f"{_FILE}: {error}") from error


_LOG = logging.getLogger("dlm")
_FILE = "generation_config.json"
_TOKEN = Range(int, 0, 2**31 - 1)
_RANGES = {  # of fields in the file
    "pad_token_id": _TOKEN,
    "bos_token_id": _TOKEN,
    "max_new_tokens": Range(int, 1, 2**31 - 1),
    "temperature": Range(float, 0, 100, closed=True),
    "top_k": Range(int, 0, 2**31 - 1),
    "top_p": Range(float, 0, 1),
    "min_p": Range(float, 0, 1, closed=True),
    "repetition_penalty": Range(float, 0, 100),
}
_UNUSED = {  # by field: what changes nothing
    "temperature": (1,),
    "top_k": (0, 50),  # 50 is what transformers writes if nobody has chosen
    "top_p": (1,),
    "min_p": (0,),
    "repetition_penalty": (1,),
}


def _chosen(settings: Mapping[str, Any], name: str) -> bool:
    """Return whether the file chooses a value of a field that has no effect here."""
    return settings.get(name) is not None and settings[name] not in _UNUSED[name]
