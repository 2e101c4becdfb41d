"""Log-probabilities of an answer's tokens, by the model's own logits.

A number is that of the last pass in which its token could still change: over a canvas the one that
fixed it, left to right the one that wrote it. Constraint, temperature and cuts do not count. A
token that was the only one allowed was not chosen: its log-probability is 0, which the model's own
choices never have but by rounding.
"""

from dataclasses import dataclass

MOST_TOP = 20  # most alternatives of a token, as in OpenAI's API


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-probability of one token of an answer, in nats."""

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()  # the likeliest tokens of the model, best first

    @classmethod
    def forced(cls, token: int, top: int) -> "TokenLogprob":
        """Return that of the only token which was allowed, alone among `top` alternatives."""
        return cls(token, 0.0, ((token, 0.0),) if top else ())
