"""Logits of one canvas, as a constraint on the host may query them.

Also the copies between host and device: each one of a step is counted.
"""

from math import exp, isfinite, log
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Float32, Float64, Int32, Int64
from torch import Tensor

from dlm.grammar import Candidates
from dlm.grammar.masks import tokens_in
from dlm.kernels.paging import sent
from dlm.kernels.pinned import PinnedMemory
from dlm.kernels.vocab_rows import VocabPass, heated


class DeviceCopies:
    """Counted copies between the host and `device`, which may be the host itself."""

    def __init__(self, device: torch.device, memory: PinnedMemory | None = None):
        """A GPU gets copies from `memory`; None: from memory that is allocated for each copy."""
        self.device, self._memory = device, memory
        self.count = 0

    def to_host(self, tensor: Tensor, computed: bool = False) -> Tensor:
        """Copy a tensor to the host, and wait for it. Unless `tensor` is known to be `computed`,
        the host also waits for all earlier work of the device."""
        self.count += 1
        if computed and tensor.is_cuda:
            with torch.cuda.stream(torch.cuda.Stream(tensor.device)):
                return tensor.cpu()
        return tensor.cpu()

    def to_device(self, *tensors: Tensor) -> list[Tensor]:
        """Copy tensors to the device, all in one copy."""
        self.count += 1
        return sent(tensors, self.device, self._memory)


CANDIDATES = 128  # tokens of a row that the host gets, at most
THRESHOLD = 2.0**-20  # their least probability: 128 tokens that are left out have 1e-4 together
_NEAR = log(1e3)  # nats below the best candidate: less likely tokens are no candidates
_UNSEEN = 1e-3  # share of the allowed mass that may be missing in it
_NEGLIGIBLE = 30.0  # nats: 262,144 tokens that are less likely than this have 2e-8 together
_LOWEST = 3e38  # below any logit that matters
_NEARLY_FULL = 8  # of as many words of a nearly full mask, at most one forbids a token
_SEARCHES = 8  # of rows of a canvas on their device, two copies each; then rows are fetched
_BLOCK, _BLOCKS = 64, 32  # tokens of a block, and how many blocks are read token by token


def most_copies(length: int) -> int:
    """Return the most copies that queries about a canvas of `length` positions take.

    They are to come in the order of the positions.
    """
    fetches = max(0, length - _SEARCHES - 1).bit_length()
    return 2 * _SEARCHES + 1 + fetches


class HostRows(NamedTuple):
    """Results of an unmasked vocabulary pass that queries read, on the host."""

    argmax: list[int]
    above: Int64[np.ndarray, " n"]
    tail: Float32[np.ndarray, " n"]
    lse: Float32[np.ndarray, " n"]
    ids: Int32[np.ndarray, "n K"]
    logits: Float32[np.ndarray, "n K"]

    @classmethod
    def of(cls, results: VocabPass, vocab_size: int) -> "HostRows":
        """Return the rows of `results`, which are on the host, over `vocab_size` tokens. A row
        without a possible token has no argmax: any token stands for it."""
        argmax = results.argmax.clamp(0, vocab_size - 1).tolist()
        columns = results.above, results.tail, results.lse, results.ids, results.logits
        return cls(argmax, *(column.numpy() for column in columns))

    def between(self, begin: int, end: int) -> "HostRows":
        """Return the rows from `begin` to `end`, as views."""
        argmax, *columns = self
        return HostRows(argmax[begin:end], *(column[begin:end] for column in columns))


class UnderMask(NamedTuple):
    """Results of one row under a mask: row `at` of `results`, which are on the host."""

    position: int
    allowed: np.ndarray  # [words]
    results: VocabPass
    at: int


class CanvasLogits:
    """Logits of one canvas. Most queries are answered from the tokens that a vocabulary pass lists
    of each row; other rows are fetched.

    Answers are exact, except that a thousandth of the allowed mass may be missing. Rows on a device
    are searched there, at most `_SEARCHES` of them. When a row is fetched its neighbours come
    along, so that the number of rows doubles, since constraints query along a text. A canvas of `L`
    positions thus takes at most `most_copies(L)` copies.
    """

    def __init__(
        self,
        rows: HostRows,
        logits: Float[Tensor, "L V"],
        inverse_temperature: float,
        softcap: float | None,
        copies: DeviceCopies,
        under_mask: UnderMask | None = None,
    ):
        """`rows` are those of a pass over `logits`. They list the tokens of probability `THRESHOLD`
        or more, at most `CANDIDATES`. Rows of `logits` are fetched by `copies`."""
        self._under_mask = under_mask
        self.argmax, self._above, self._tail, self._lse, self._ids, self._listed_logits = rows
        self.rows = 0  # rows that were searched or fetched
        self._searches = 0 if copies.device.type == "cpu" else _SEARCHES  # that are left
        self._logits, self._copies, self._fetched = logits, copies, dict[int, Tensor]()
        self._heat, self._softcap = inverse_temperature, softcap

    @property
    def copies(self) -> int:
        """Number of copies so far."""
        return self._copies.count

    def best(self, position: int, allowed: np.ndarray) -> int:
        """Return the likeliest token at `position` whose bit is set in `allowed [words]`."""
        tokens, logits = self._listed(position, allowed)
        if len(tokens):
            return int(tokens[logits.argmax()])
        if self._searches_there(position):
            results = self._search_on_device(position, allowed, 1)
            return results.ranked[0][0] if results.ranked else 0
        if _nearly_full(allowed):
            tokens, logits, others = self._likeliest(position, allowed)
            if len(tokens) and logits.max() > others:
                return int(tokens[logits.argmax()])
        tokens, logits = self._read(position, allowed)
        return int(tokens[logits.argmax()]) if len(tokens) else 0

    def candidates(self, position: int, allowed: np.ndarray, count: int) -> Candidates:
        """Return the likeliest `count` tokens of `allowed [words]` at `position`, best first."""
        tokens, logits = self._listed(position, allowed)
        logp = self._logp(position, logits) if len(tokens) else logits
        mass = float(np.exp(logp).sum())
        if not self._list_suffices(position, logp, mass, count):
            if (read := self._read_under_mask(position, allowed, count)) is not None:
                return read
            if self._searches_there(position):
                return self._search_on_device(position, allowed, count)
            candidates = self._search_blocks(position, allowed, count)
            if candidates is not None:
                return candidates
            tokens, logp = self._search_row(position, allowed)
            mass = float(np.exp(logp).sum())
        return Candidates(ranked=_ranked(tokens, logp, count), mass=mass)

    def class_sums(
        self,
        tokens: Int64[np.ndarray, " m"],
        classes: Int64[np.ndarray, " m"],
        count: int,
        length: int,
    ) -> Float64[np.ndarray, "positions C"]:
        """Return log-probabilities of classes of tokens, in nats, at the first `length` positions,
        or at all if the canvas has fewer.

        `tokens` are those that belong to one of the `count` classes; `classes` holds their classes.
        A class whose tokens are all impossible has -inf. This takes one copy to the device and one
        back.
        """
        sent = self._copies.to_device(torch.from_numpy(tokens), torch.from_numpy(classes))
        x = self._heated_there(self._logits[:length, sent[0]]).double()
        top = x.amax(-1, keepdim=True).clamp(min=-_LOWEST)
        sums = x.new_zeros(len(x), count).index_add_(1, sent[1], (x - top).exp_())
        host = self._copies.to_host(sums.log_().add_(top)).numpy()
        return host - np.array([self._lse_of(position) for position in range(len(host))])[:, None]

    def _listed(self, position: int, allowed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the listed tokens that are allowed, ascending, and their logits: no other is
        likelier. Both are empty where a list would be too long."""
        above = int(self._above[position])
        above = above if above <= self._ids.shape[1] else 0
        tokens = self._ids[position, :above]
        (indices,) = allows(allowed, tokens).nonzero()
        return tokens[indices], self._listed_logits[position, indices]

    def _list_suffices(self, position: int, logp: np.ndarray, mass: float, count: int) -> bool:
        """Whether tokens that are not listed are no candidates and change the `mass` by little."""
        tail = float(self._tail[position])
        if not len(logp) or tail > _UNSEEN * mass:
            return False
        return _has_all(logp, min(THRESHOLD, tail), count)

    def _read_under_mask(self, position: int, allowed: np.ndarray, count: int) -> Candidates | None:
        """Return the candidates of a row that was read under the mask `allowed`; None for other
        rows and masks, and where tokens that are not listed may be candidates."""
        read = self._under_mask
        if read is None or position != read.position or not np.array_equal(allowed, read.allowed):
            return None
        lse, _, _, _, above, tail, ids, logits = (column[read.at] for column in read.results)
        above = int(above)
        if not 0 < above <= len(ids):
            return None
        tokens, logp = ids[:above].numpy(), self._logp(position, logits[:above].numpy())
        mass = exp(min(0.0, float(lse) - self._lse_of(position)))
        if not _has_all(logp, min(THRESHOLD, float(tail)) * mass, count):
            return None
        return Candidates(ranked=_ranked(tokens, logp, count), mass=mass)

    def _search_row(self, position: int, allowed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the allowed tokens of a whole row and their log-probabilities. Tokens less likely
        than `_NEGLIGIBLE` are left out, unless there are no others."""
        tokens, logits = self._read(position, allowed)
        logp = self._logp(position, logits)
        if logp.min(initial=0.0) > -_NEGLIGIBLE:
            return tokens, logp
        likely = np.flatnonzero(logp > -_NEGLIGIBLE)
        if not len(likely) or logp[likely].max() < _NEAR - _NEGLIGIBLE:
            return tokens, logp
        return tokens[likely], logp[likely]

    def _search_blocks(self, position: int, allowed: np.ndarray, count: int) -> Candidates | None:
        """Return the candidates under a nearly full mask, whose forbidden tokens are fewer to sum
        over; None if that is inexact, or other masks are given."""
        if not _nearly_full(allowed):
            return None
        forbidden = self._logp(position, self._read(position, ~allowed)[1])
        mass = 1 - float(np.exp(forbidden).sum())
        tokens, logits, others = self._likeliest(position, allowed)
        logp = self._logp(position, np.append(logits, others))
        ranked = _ranked(tokens, logp[:-1], count)
        if not (ranked and mass > 0.5):
            return None
        last = ranked[-1][1] if len(ranked) == count else ranked[0][1] - _NEAR
        return Candidates(ranked=ranked, mass=mass) if last > logp[-1] else None

    def _likeliest(
        self, position: int, allowed: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.float32]:
        """Return allowed tokens of a row, ascending, their logits, and a bound on the logits of all
        others. Only the blocks with the greatest logits are read, and the rest of a last block."""
        row = self._row(position)
        blocks = row[: len(row) // _BLOCK * _BLOCK].view(-1, _BLOCK)
        most = blocks.amax(-1).float().numpy()
        order = np.argpartition(most, -_BLOCKS) if len(most) > _BLOCKS else np.arange(len(most))
        chosen = np.sort(order[-_BLOCKS:])
        tokens = (chosen[:, None] * _BLOCK + np.arange(_BLOCK)).ravel()
        tokens = np.append(tokens, np.arange(blocks.numel(), len(row)))
        tokens = tokens[np.flatnonzero(allows(allowed, tokens))]
        others = most[order[:-_BLOCKS]].max(initial=-np.inf)
        return tokens, row[torch.from_numpy(tokens)].float().numpy(), others

    def _read(self, position: int, allowed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the allowed tokens, ascending, and their logits in the row of `position`."""
        row, tokens = self._row(position), tokens_in(allowed)
        tokens = tokens[: np.searchsorted(tokens, len(row))]
        return tokens, row.index_select(0, torch.from_numpy(tokens)).float().numpy()

    def _searches_there(self, position: int) -> bool:
        """Whether a row is searched on its device: it is not on the host, and a search is left."""
        return self._searches > 0 and position not in self._fetched

    def _search_on_device(self, position: int, allowed: np.ndarray, count: int) -> Candidates:
        """Find the likeliest tokens of a row on the device, so that only a few numbers are fetched.
        The mass includes tokens less likely than `_NEGLIGIBLE`."""
        self.rows += 1
        self._searches -= 1
        (words,) = self._copies.to_device(torch.from_numpy(allowed.view(np.int32)))
        row = self._logits[position].float()
        bits = words[:, None] >> torch.arange(32, dtype=torch.int32, device=words.device) & 1
        bits = bits.flatten()[: len(row)].bool()
        top = torch.where(bits, row.clamp(min=-_LOWEST), -torch.inf).topk(min(count, len(row)))
        logp = self._heated_there(row[None])[0] - self._lse_of(position)
        mass = torch.where(bits, logp, -torch.inf).exp().sum()
        packed = torch.cat((top.values, mass[None], top.indices.int().view(torch.float32)))
        packed = self._copies.to_host(packed).numpy()
        values, tokens = packed[: len(top.values)], packed[len(top.values) + 1 :].view(np.int32)
        tokens, values = tokens[values > -np.inf], values[values > -np.inf]
        values = np.where(values <= -_LOWEST, np.float32(-np.inf), values)  # allowed, impossible
        logp = self._logp(position, values)
        near = np.flatnonzero(logp >= logp.max(initial=-np.inf) - _NEAR)
        order = near[np.lexsort((tokens[near], -values[near]))]
        ranked = list(zip(tokens[order].tolist(), logp[order].tolist(), strict=True))
        return Candidates(ranked=ranked, mass=float(packed[len(top.values)]))

    def _heated_there(self, rows: Float[Tensor, "m n"]) -> Float32[Tensor, "m n"]:
        """Return `rows` with softcap and temperature applied, without a copy to their device."""
        return heated(rows, torch.full((1,), self._heat, device=rows.device), self._softcap)

    def _logp(self, position: int, logits: np.ndarray) -> np.ndarray:
        """Return the log-probabilities of tokens at `position`, given their logits."""
        x = logits  # torch would take ten times as long for a few numbers
        with np.errstate(over="ignore"):  # -3e38 stands for -inf in some models
            if self._softcap is not None:
                capped = self._softcap * np.tanh(logits / self._softcap)
                x = np.minimum(capped, logits + np.float32(_LOWEST))  # -inf stays
            x = x * np.float32(self._heat)
        return x - self._lse_of(position)

    def _lse_of(self, position: int) -> float:
        """Return the log-sum-exp of a row; 0 for a row that has none, or nothing but -inf."""
        lse = float(self._lse[position])
        return lse if isfinite(lse) else 0.0

    def _row(self, position: int) -> Tensor:
        if position not in self._fetched:
            end = min(position + max(1, self.rows), len(self.argmax))
            rows = self._copies.to_host(self._logits[position:end], computed=True)
            self._fetched |= dict(enumerate(rows, start=position))
            self.rows += len(rows)
        return self._fetched[position]


def _has_all(logp: np.ndarray, likeliest: float, count: int) -> bool:
    """Whether `count` candidates are among tokens with these log-probabilities: no other token has
    a higher probability than `likeliest`."""
    return len(logp) >= count or likeliest < exp(min(0.0, float(logp.max()) - _NEAR))


def _ranked(tokens: np.ndarray, logp: np.ndarray, count: int) -> list[tuple[int, float]]:
    """Return the likeliest `count` tokens, with their log-probabilities, that are candidates."""
    (near,) = (logp >= logp.max(initial=-np.inf) - _NEAR).nonzero()  # fewer are sorted faster
    order = near[(-logp[near]).argsort(kind="stable")[:count]]
    return list(zip(tokens[order].tolist(), logp[order].tolist(), strict=True))


def _nearly_full(words: np.ndarray) -> bool:
    return int(np.count_nonzero(~words)) * _NEARLY_FULL <= len(words)


def allows(mask: np.ndarray, tokens: np.ndarray) -> np.ndarray:
    """Return which of `tokens` a mask allows, as numbers other than 0."""
    return mask.take(tokens >> 5) >> (tokens & 31).astype(np.uint32) & 1
