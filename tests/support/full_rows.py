"""What a constraint may ask of logits, by definition: in fp64, from whole rows."""

from collections.abc import Collection, Mapping

import numpy as np
from torch import Tensor

from dlm.grammar import Candidates
from dlm.grammar.constraint import ClassScores
from dlm.grammar.masks.bits import unpacked


class FullRows:
    """Scores of heated `logits [L, V]`."""

    def __init__(self, logits: Tensor, uniform: np.ndarray | None = None):
        self.argmax = logits.argmax(-1).tolist()
        self._logits = logits.double().numpy()
        self._logp = logits.double().log_softmax(-1).numpy()
        self._uniform = np.zeros(len(logits)) if uniform is None else uniform

    def best(self, position: int, allowed: np.ndarray) -> int:
        tokens = self._tokens(allowed)
        return int(tokens[self._logits[position, tokens].argmax()])

    def candidates(self, position: int, allowed: np.ndarray, count: int) -> Candidates:
        tokens = self._tokens(allowed)
        logp = self._logp[position, tokens]
        order = np.argsort(-self._logits[position, tokens], kind="stable")[:count]
        near = [i for i in order if logp[i] >= logp.max() + np.log(1e-3)]
        ranked = [(int(tokens[i]), float(logp[i])) for i in near]
        return Candidates(ranked=ranked, mass=float(np.exp(logp).sum()))

    def by_class(
        self,
        classes: Tensor,
        count: int,
        without: Mapping[int, Collection[int]],
        length: int | None = None,
    ) -> ClassScores:
        logp, of = self._logp[:length].copy(), classes.numpy()
        for position, tokens in without.items():
            logp[position, list(tokens)] = -np.inf
        mass = np.full((len(logp), count), -np.inf)
        top, best = mass.copy(), np.zeros(mass.shape, dtype=np.int64)
        for label in range(count):
            members = np.flatnonzero(of == label)
            if len(members):
                mass[:, label] = np.logaddexp.reduce(logp[:, members], axis=1)
                top[:, label] = logp[:, members].max(1)
                best[:, label] = members[logp[:, members].argmax(1)]
        return ClassScores(mass=mass, top=top, best=best, uniform=self._uniform[:length])

    def _tokens(self, allowed: np.ndarray) -> np.ndarray:
        return np.flatnonzero(unpacked(allowed)[: self._logits.shape[1]])
