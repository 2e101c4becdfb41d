"""Scores of logits by definition: in fp64, from whole rows."""

import numpy as np
from torch import Tensor

from dlm.grammar import Candidates
from dlm.grammar.masks import unpacked


class FullRows:
    """Scores of heated `logits [L, V]`."""

    def __init__(self, logits: Tensor):
        self.argmax = logits.argmax(-1).tolist()
        self._logits = logits.double().numpy()
        self._logp = logits.double().log_softmax(-1).numpy()

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

    def class_sums(
        self, tokens: np.ndarray, classes: np.ndarray, count: int, length: int
    ) -> np.ndarray:
        logp = self._logp[:length]
        mass = np.full((len(logp), count), -np.inf)
        for token, each in zip(tokens, classes, strict=True):
            mass[:, each] = np.logaddexp(mass[:, each], logp[:, token])
        return mass

    def _tokens(self, allowed: np.ndarray) -> np.ndarray:
        return np.flatnonzero(unpacked(allowed)[: self._logits.shape[1]])
