"""Modes of a comparison: how an engine decodes, and what is done with an answer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import dlm
from dlm.cli.comparison.variants import AtCommit, Guided, Raw, Refilled, WholeChain


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """A way to decode, as its differences from the engine's default."""

    name: str
    what: str  # description for readers of the report
    decoding: dlm.Diffusion | dlm.Autoregressive = field(default_factory=dlm.Diffusion)
    config: Mapping[str, Any] = field(default_factory=dict)  # fields of `DecodeConfig` that differ
    schema: Mapping[str, Any] = field(default_factory=dict)  # fields of `JsonSchema` that differ
    constrained: bool = True
    tries: int = 1  # an invalid answer is generated again with another seed, up to this many times


CONSTRAINED = Mode(
    name="diffusion constrained",
    what="the grammar acts in every pass: masks up to the first disagreement, noise after it",
)
FREE = Mode(
    name="diffusion free",
    what="canvases are denoised without a grammar",
    constrained=False,
)
AT_COMMIT = Mode(
    name="diffusion masked at commit",
    what="denoised without a grammar, which corrects only what is committed",
    decoding=AtCommit(),
)
DECODINGS = (
    CONSTRAINED,
    FREE,
    Mode(
        name="diffusion retried",
        what="without a grammar; an invalid answer is generated again, up to four times",
        constrained=False,
        tries=4,
    ),
    AT_COMMIT,
    Mode(
        name="left to right constrained",
        what="the same weights' causal half under the grammar; forced tokens need no pass",
        decoding=dlm.Autoregressive(),
    ),
    Mode(
        name="left to right free",
        what="the causal half without a grammar, one token a pass",
        decoding=dlm.Autoregressive(),
        constrained=False,
    ),
    Mode(
        name="left to right drafted",
        what="canvases draft; the causal half keeps the tokens it would write, under the grammar",
        decoding=dlm.Autoregressive(drafts=True),
    ),
)
POLICIES = (
    CONSTRAINED,
    FREE,
    AT_COMMIT,
    Mode(
        name="masks along the whole chain",
        what="no position is suspect: predictions after a wrong left context are accepted too",
        decoding=Guided(frontier=WholeChain),
    ),
    Mode(
        name="pinned without patience",
        what="positions are pinned as soon as the part that the grammar confirms stops growing",
        config={"patience": 1},
    ),
    Mode(
        name="raw soft embeddings",
        what="the next pass is shown the model's own distributions, without masks",
        decoding=Raw(soft_embeddings=True),
    ),
    Mode(
        name="raw entropies",
        what="accepting and settling are decided by the model's own distributions, without masks",
        decoding=Raw(entropies=True),
    ),
    Mode(
        name="noise from allowed tokens",
        what="where no token is accepted, the next pass sees noise of tokens the grammar allows",
        decoding=Refilled(by="allowed"),
    ),
    Mode(
        name="drafts instead of noise",
        what="where no token is accepted, the next pass sees the guess itself",
        decoding=Refilled(by="draft"),
    ),
)


def _settings(name: str, what: str, field: str, values: Sequence[float]) -> list[Mode]:
    """Return a mode for each value of a field of `DecodeConfig`."""
    return [Mode(name=f"{name} {one:g}", what=what, config={field: one}) for one in values]


NUMBERS = (
    CONSTRAINED,
    *_settings(
        "entropy bound",
        "nats that a pass may accept; 0.1 by default",
        "entropy_bound",
        (0.02, 0.05, 0.2, 0.5),
    ),
    *_settings(
        "steps",
        "passes a canvas before positions are pinned; 48 by default, 24 in the built-in checkpoint",
        "max_steps",
        (8, 16, 24),
    ),
    *_settings(
        "patience",
        "passes that the first disagreement may stay where it is; 8 by default",
        "patience",
        (2, 4, 16),
    ),
    *_settings(
        "lost",
        "probability of all allowed tokens below which a choice is undone; 0.001 by default",
        "lost",
        (0.0, 0.03),
    ),
    *(
        Mode(
            name=f"white space {most}",
            what="characters of white space in a row; 8 by default",
            schema={"max_whitespace": most},
        )
        for most in (1, 2, 32)
    ),
)
STUDIES = {"decodings": DECODINGS, "policies": POLICIES, "numbers": NUMBERS}
