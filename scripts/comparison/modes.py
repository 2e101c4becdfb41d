"""The ways to decode that are compared: how an engine writes, and what is done with an answer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import dlm
from comparison.variants import AtCommit, Guided, Raw, Refilled, WholeChain


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """What sets one way apart from the others."""

    name: str
    what: str  # for readers of the report
    decoding: dlm.Diffusion | dlm.Autoregressive = field(default_factory=dlm.Diffusion)
    config: Mapping[str, Any] = field(default_factory=dict)  # what differs in `DecodeConfig`
    schema: Mapping[str, Any] = field(default_factory=dict)  # what differs in `JsonSchema`
    constrained: bool = True
    tries: int = 1  # an answer that the schema refuses is asked for again, with another seed


CONSTRAINED = Mode(
    name="diffusion constrained",
    what="the grammar acts in every pass: masks up to the first disagreement, noise behind it",
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
        what="without a grammar; what the schema refuses is asked for again, four times at most",
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
        what="canvases draft; the causal half keeps what it would have written, under the grammar",
        decoding=dlm.Autoregressive(drafts=True),
    ),
)
POLICIES = (
    CONSTRAINED,
    FREE,
    AT_COMMIT,
    Mode(
        name="masks along the whole chain",
        what="nothing is suspect: what was predicted under a wrong left context is accepted",
        decoding=Guided(frontier=WholeChain),
    ),
    Mode(
        name="pinned without patience",
        what="what the grammar agrees with is fixed as soon as that has not grown for a pass",
        config={"patience": 1},
    ),
    Mode(
        name="raw soft embeddings",
        what="the next pass is shown the model's own distributions, without masks",
        decoding=Raw(soft_embeddings=True),
    ),
    Mode(
        name="raw entropies",
        what="what is accepted and settled is decided by the model's own distributions",
        decoding=Raw(entropies=True),
    ),
    Mode(
        name="noise from allowed tokens",
        what="where nothing is accepted, the next pass is shown noise of what the grammar allows",
        decoding=Refilled(by="allowed"),
    ),
    Mode(
        name="drafts instead of noise",
        what="where nothing is accepted, the next pass is shown the guess itself",
        decoding=Refilled(by="draft"),
    ),
)


def _settings(name: str, what: str, field: str, values: Sequence[float]) -> list[Mode]:
    """A mode for each value of a field of `DecodeConfig`."""
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
        "share of what is allowed under which a choice is taken back; 0.001 by default",
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
