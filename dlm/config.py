"""Settings of denoising: the numbers of a checkpoint's `generation_config.json`."""

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from dlm.errors import DlmError
from dlm.models import CheckpointError
from dlm.models.json_files import Range, check_number, shown

Writes = Literal["canvas", "drafted", "left-to-right"]
"""Names of the ways to decode: canvases, or left to right with or without drafts from canvases."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeConfig:
    """Settings of the denoising loop; defaults are those of transformers for DiffusionGemma. Raises
    `DlmError` for impossible values."""

    max_steps: int = 48  # passes per canvas before positions are pinned one after another
    entropy_bound: float = 0.1  # nats that a step may accept together (arXiv:2505.24857)
    t_min: float = 0.4  # temperature approached at the last step
    t_max: float = 0.8  # temperature of the first step
    confidence: float = 0.005  # mean nats per position below which a repeated guess is settled
    patience: int = 8  # passes that the frontier may stay where it is
    lost: float = 1e-3  # stuck if the allowed tokens have less than this share of the probability
    retries: int = 3  # rollbacks per canvas: choices taken back since they led nowhere
    refusals: int = 12  # times that a request is tried again after its schema refused the value
    stops: tuple[int, ...] = (1, 106, 50)  # <eos>, <turn|>, <|tool_response>
    pad: int = 0  # fills a canvas after a stop; left to right it may be a stop token too

    def __post_init__(self) -> None:
        for name in ("max_steps", "patience"):
            if not _is_number(getattr(self, name), int) or getattr(self, name) < 1:
                raise DlmError(f"{name} is {getattr(self, name)}: it takes at least 1")
        for name in ("entropy_bound", "confidence"):
            if not _is_number(getattr(self, name)) or not getattr(self, name) > 0:
                raise DlmError(f"{name} is {getattr(self, name)}: it takes more than 0 nats")
        if not _is_number(self.lost) or not 0 <= self.lost < 1:
            raise DlmError(f"lost is {self.lost}: it takes a probability under 1")
        for name in ("retries", "refusals"):
            if not _is_number(getattr(self, name), int) or getattr(self, name) < 0:
                raise DlmError(f"{name} is {getattr(self, name)}: it takes 0 or more")
        for name in ("t_min", "t_max"):
            if not _is_number(getattr(self, name)):
                raise DlmError(f"{name} is {getattr(self, name)}: it takes a finite number")
        if not 0 < self.t_min <= self.t_max:
            raise DlmError(f"t_min {self.t_min} and t_max {self.t_max}: 0 < t_min <= t_max")
        if not self.stops:
            raise DlmError("stops is empty: without a stop token no answer could end")
        for name, token in (("pad", self.pad), *(("stops", stop) for stop in self.stops)):
            if type(token) is not int or token < 0:
                raise DlmError(f"{name} holds {token!r:.40}: it takes ids of tokens")

    def check_padding(self) -> None:
        """Raise `DlmError` if the padding after a stop on a canvas is a stop token itself."""
        if self.pad in self.stops:
            raise DlmError(f"pad {self.pad} is a stop token too: on canvases it must be another")

    @classmethod
    def from_hf(cls, config: Mapping[str, Any]) -> "DecodeConfig":
        """Return the settings of a parsed `generation_config.json`; missing ones keep their
        defaults. Sampling values that a request chooses are logged: they have no effect. Raises
        `CheckpointError` for a value that cannot be meant."""
        sampler: Any = config.get("sampler_config")
        if sampler is not None and not isinstance(sampler, Mapping):
            raise CheckpointError(
                f"{_FILE}: sampler_config must be an object, got {shown(sampler)}"
            )
        values = {**config, "sampler_config.entropy_bound": (sampler or {}).get("entropy_bound")}
        for name, allowed in _RANGES.items():
            if values.get(name) is not None:
                check_number(f"{_FILE}: {name}", values[name], allowed)
        own: dict[str, Any] = {
            name: values[field] for field, name in _NAMES.items() if values.get(field) is not None
        }
        stops: Any = config.get("eos_token_id")
        if stops is not None:
            stops = stops if isinstance(stops, list) else [stops]
            if not stops:
                raise CheckpointError(f"{_FILE}: eos_token_id must name at least one token, got []")
            for stop in stops:
                check_number(f"{_FILE}: eos_token_id", stop, _TOKEN)
            own["stops"] = tuple(stops)
        unused = [f"{name} {shown(config[name])}" for name in _UNUSED if _chosen(config, name)]
        if unused:
            _LOG.warning(
                "%s: %s without effect: each request chooses its own", _FILE, ", ".join(unused)
            )
        try:
            return cls(**own)
        except DlmError as error:
            raise CheckpointError(f"{_FILE}: {error}") from error


_LOG = logging.getLogger("dlm")
_FILE = "generation_config.json"
_TOKEN = Range(int, 0, 2**31 - 1)
_NATS = Range(float, 0, 1e6)
_RANGES = {  # of fields in the file
    "max_denoising_steps": Range(int, 1, 10_000),
    "sampler_config.entropy_bound": _NATS,
    "t_min": Range(float, 0, 100),
    "t_max": Range(float, 0, 100),
    "confidence_threshold": _NATS,
    "pad_token_id": _TOKEN,
    "bos_token_id": _TOKEN,
    "max_new_tokens": Range(int, 1, 2**31 - 1),
    "temperature": Range(float, 0, 100, closed=True),
    "top_k": Range(int, 0, 2**31 - 1),
    "top_p": Range(float, 0, 1),
    "min_p": Range(float, 0, 1, closed=True),
    "repetition_penalty": Range(float, 0, 100),
}
_NAMES = {  # by field: ours
    "max_denoising_steps": "max_steps",
    "sampler_config.entropy_bound": "entropy_bound",
    "t_min": "t_min",
    "t_max": "t_max",
    "confidence_threshold": "confidence",
    "pad_token_id": "pad",
}
_UNUSED = {  # by field: what changes nothing
    "temperature": (1,),
    "top_k": (0, 50),  # 50 is what transformers writes if nobody has chosen
    "top_p": (1,),
    "min_p": (0,),
    "repetition_penalty": (1,),
}


def _chosen(config: Mapping[str, Any], name: str) -> bool:
    """Return whether the file chooses a value of a field that has no effect here."""
    return config.get(name) is not None and config[name] not in _UNUSED[name]


def _is_number(value: Any, kind: Any = int | float) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool) and math.isfinite(value)


def checkpoint_decoding(config: Mapping[str, Any]) -> Writes:
    """Return how a checkpoint is best decoded, by the field `dlm` of its parsed
    `generation_config.json`: `{"decoding": "drafted"}`; without it in canvases. Raises
    `DlmError`."""
    own = config.get("dlm") or {}
    name: Any = own.get("decoding", "canvas") if isinstance(own, Mapping) else None
    if name not in get_args(Writes):
        known, found = ", ".join(get_args(Writes)), own if name is None else name
        raise DlmError(f"generation_config.json: dlm.decoding is {found!r:.60}: it takes {known}")
    return name
