"""One canvas's logits, as a constraint on the host may ask about them.

The way between the host and the model's device: each copy of a step goes over it, and counts.
"""

from math import exp, log

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from dlm.grammar import Candidates
from dlm.grammar.masks.bits import unpacked
from dlm.kernels.paging import sent
from dlm.kernels.vocab_rows import VocabPass, heated


class DeviceCopies:
    """To `device`, which may be the host itself: then copies count all the same."""

    def __init__(self, device: torch.device):
        self.device = device
        self.copies = 0

    def to_host(self, tensor: Tensor, computed: bool = False) -> Tensor:
        """One copy, for which the host waits, and, unless `tensor` is known to be `computed`, for
        all that the device was asked before."""
        self.copies += 1
        if computed and tensor.is_cuda:
            with torch.cuda.stream(torch.cuda.Stream(tensor.device)):
                return tensor.cpu()
        return tensor.cpu()

    def to_device(self, *tensors: Tensor) -> list[Tensor]:
        """One copy for all of them."""
        self.copies += 1
        return sent(tensors, self.device)


CANDIDATES = 128  # tokens of a row that the host gets to see, at most
THRESHOLD = 2.0**-20  # probability of the least of them: 128 of what is left out have 1e-4 together
_NEAR = log(1e3)  # nats below the best candidate: what is less likely is none
_UNSEEN = 1e-3  # of the mass of what is allowed: so much may be missing in it
_REACH = 30.0  # nats: a quarter of a million tokens that are less likely have 2e-8 together
_FAR = 3e38  # below any logit that is worth a thought


class CanvasLogits:
    """What the vocabulary pass lists of each row answers most questions; other rows are fetched.

    Answers are exact but for the mass of what is allowed, of which a thousandth may be missing.

    A row may have a quarter of a million logits. Behind the first that is fetched, neighbours come
    along, more of them each time, since a constraint asks along a text.
    """

    def __init__(
        self,
        found: VocabPass,
        logits: Float[Tensor, "L V"],
        inverse_temperature: float,
        softcap: float | None,
        link: DeviceCopies,
    ):
        """`found` is of `logits`, unmasked, and on the host; rows of these come over `link`.

        It lists the tokens of probability `THRESHOLD` or more, `CANDIDATES` at most."""
        V = logits.shape[1]
        argmax, lse = found.argmax.numpy(), found.lse.numpy()  # of which parts cost nothing
        self.argmax: list[int] = np.minimum(np.maximum(argmax, 0), V - 1).tolist()  # may be none
        self.rows = 0  # that were fetched
        self._above, self._tail = found.above.numpy().tolist(), found.tail.numpy().tolist()
        self._lse = np.where(np.isfinite(lse), lse, 0).tolist()  # of a row of -inf alone
        self._ids, self._theirs = found.ids.numpy(), found.logits.numpy()
        self._logits, self._link, self._fetched = logits, link, dict[int, Tensor]()
        self._heat = torch.tensor([inverse_temperature]), softcap

    @property
    def copies(self) -> int:
        """Those that it took to answer."""
        return self._link.copies

    def best(self, position: int, allowed: np.ndarray) -> int:
        """The likeliest token at `position` whose bit is set in `allowed [words]`."""
        tokens, logits = self._listed(position, allowed)
        if len(tokens):
            return int(tokens[logits.argmax()])
        if self._link.device.type != "cpu":
            found = self._searched(position, allowed, 1)
            return found.ranked[0][0] if found.ranked else 0
        row, forbidden = self._row(position).float().numpy(), unpacked(~allowed)
        row = row - np.float32(_FAR) * forbidden[: len(row)]  # faster than a choice by a mask
        token = int(row.argmax())
        return int(forbidden.argmin()) if forbidden[token] else token  # of equals at -inf, any

    def candidates(self, position: int, allowed: np.ndarray, count: int) -> Candidates:
        """The likeliest `count` tokens of `allowed [words]` at `position`, best first."""
        tokens, logits = self._listed(position, allowed)
        logp = self._logp(position, torch.from_numpy(logits))
        if not self._suffices(position, logp, count):
            if self._link.device.type != "cpu":
                return self._searched(position, allowed, count)
            tokens, logp = self._looked_up(position, allowed)
        if not len(tokens):
            return Candidates(ranked=[], mass=0.0)
        near = np.flatnonzero(logp >= logp.max() - _NEAR)  # cheaper than to sort a vocabulary
        order = near[np.argsort(-logp[near], kind="stable")][:count]
        ranked = list(zip(tokens[order].tolist(), logp[order].tolist(), strict=True))
        return Candidates(ranked=ranked, mass=float(np.exp(logp).sum()))

    def class_sums(
        self,
        tokens: Int64[np.ndarray, " m"],
        classes: Int64[np.ndarray, " m"],
        count: int,
        length: int,
    ) -> Float64[np.ndarray, "positions C"]:
        """Log-probabilities of classes of tokens at the first `length` positions, in nats.

        `tokens` are those that belong to one of the `count` classes, `classes` says to which. -inf:
        none of a class's tokens has a probability. One copy goes to the device, and one comes back.
        """
        sent = self._link.to_device(torch.from_numpy(tokens), torch.from_numpy(classes))
        logits, (heat, softcap) = self._logits[:length], self._heat
        heat = heat.to(logits.device).expand(len(logits))
        x = heated(logits[:, sent[0]], heat, softcap).double()
        top = x.amax(-1, keepdim=True).clamp(min=-_FAR)
        sums = x.new_zeros(len(x), count).index_add_(1, sent[1], (x - top).exp_())
        host = self._link.to_host(sums.log_().add_(top)).numpy()
        return host - np.array(self._lse[:length])[:, None]

    def _listed(self, position: int, allowed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The listed tokens that are allowed, ascending, and their logits: no other one is
        likelier. None where a list would be too long."""
        above = self._above[position]
        above = above if above <= self._ids.shape[1] else 0
        tokens = self._ids[position, :above]
        here = np.flatnonzero(_bits(allowed, tokens))
        return tokens[here], self._theirs[position, here]

    def _suffices(self, position: int, logp: np.ndarray, count: int) -> bool:
        """What is not listed is no candidate, and changes the mass by little."""
        tail, mass = self._tail[position], float(np.exp(logp).sum())
        if not len(logp) or tail > _UNSEEN * mass:
            return False
        likeliest = min(THRESHOLD, tail)  # of what is not listed, at most
        return len(logp) >= count or likeliest < exp(float(logp.max()) - _NEAR)

    def _looked_up(self, position: int, allowed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Allowed tokens of the whole row, and their log-probabilities; of those that are less
        likely than `_REACH`, either none or all."""
        logp = self._logp(position, self._row(position))
        bits = unpacked(allowed)[: len(logp)].view(np.bool_)  # others take ten times as long
        tokens = np.flatnonzero(bits & (logp > -_REACH))
        if not len(tokens) or logp[tokens].max() < _NEAR - _REACH:
            tokens = np.flatnonzero(bits)
        return tokens, logp[tokens]

    def _searched(self, position: int, allowed: np.ndarray, count: int) -> Candidates:
        """Look up the likeliest tokens of a row where it is, so that a few numbers are fetched.

        Of what is less likely than `_REACH` the mass is counted too.
        """
        self.rows += 1
        (words,) = self._link.to_device(torch.from_numpy(allowed.view(np.int32)))
        row, (heat, softcap) = self._logits[position].float(), self._heat
        bits = words[:, None] >> torch.arange(32, dtype=torch.int32, device=words.device) & 1
        bits = bits.flatten()[: len(row)].bool()
        top = torch.where(bits, row.clamp(min=-_FAR), -torch.inf).topk(min(count, len(row)))
        heat_there = torch.full((1,), heat.item(), device=words.device)
        logp = heated(row[None], heat_there, softcap)[0] - self._lse[position]
        mass = torch.where(bits, logp, -torch.inf).exp().sum()
        packed = torch.cat((top.values, mass[None], top.indices.int().view(torch.float32)))
        packed = self._link.to_host(packed).numpy()
        values, tokens = packed[: len(top.values)], packed[len(top.values) + 1 :].view(np.int32)
        tokens, values = tokens[values > -np.inf], values[values > -np.inf]
        values = np.where(values <= -_FAR, np.float32(-np.inf), values)  # allowed, but ruled out
        logp = self._logp(position, torch.from_numpy(values))
        near = np.flatnonzero(logp >= logp.max(initial=-np.inf) - _NEAR)
        order = near[np.lexsort((tokens[near], -values[near]))]
        ranked = list(zip(tokens[order].tolist(), logp[order].tolist(), strict=True))
        return Candidates(ranked=ranked, mass=float(packed[len(top.values)]))

    def _logp(self, position: int, logits: Tensor) -> np.ndarray:
        return heated(logits[None], *self._heat)[0].numpy() - self._lse[position]

    def _row(self, position: int) -> Tensor:
        if position not in self._fetched:
            end = min(position + max(1, self.rows), len(self.argmax))
            rows = self._link.to_host(self._logits[position:end], computed=True)
            self._fetched |= dict(enumerate(rows, start=position))
            self.rows += len(rows)
        return self._fetched[position]


def _bits(words: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """The bits of some tokens."""
    return words[tokens >> 5] >> (tokens & 31).astype(np.uint32) & 1
