"""Settings of denoising: the numbers of a checkpoint's `generation_config.json`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from dlm.errors import DlmError

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
            if getattr(self, name) < 1:
                raise DlmError(f"{name} is {getattr(self, name)}: it takes at least 1")
        for name in ("entropy_bound", "confidence"):
            if not getattr(self, name) > 0:
                raise DlmError(f"{name} is {getattr(self, name)}: it takes more than 0 nats")
        if not 0 <= self.lost < 1:
            raise DlmError(f"lost is {self.lost}: it takes a probability under 1")
        for name in ("retries", "refusals"):
            if getattr(self, name) < 0:
                raise DlmError(f"{name} is {getattr(self, name)}: it takes 0 or more")
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
        defaults."""
        try:
            stops = config.get("eos_token_id")
            found = {
                "max_steps": config.get("max_denoising_steps"),
                "entropy_bound": (config.get("sampler_config") or {}).get("entropy_bound"),
                "t_min": config.get("t_min"),
                "t_max": config.get("t_max"),
                "confidence": config.get("confidence_threshold"),
                "stops": (stops,) if isinstance(stops, int) else stops and tuple(stops),
                "pad": config.get("pad_token_id"),
            }
            return cls(**{name: value for name, value in found.items() if value is not None})
        except (AttributeError, TypeError) as error:
            raise DlmError(
                f"generation_config.json: a field has the wrong type: {error}"
            ) from error


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
