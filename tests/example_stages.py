"""A stage of each demanding kind, as a user would write it: two with a memory, one with a coin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from nalar.candidates import Candidates
from nalar.errors import MemoryRequired
from nalar.stages import Context, Stage

__all__ = ["EveryNth", "Mirostat", "MaybeDropTop"]


@dataclass(frozen=True)
class Mirostat(Stage):
    """Keeps tokens whose surprise −log₂ p is at most μ, and moves μ so that the mean surprise becomes ``tau`` bits.

    Source: Basu et al., "Mirostat", 2021, version 2.  μ starts at 2 · tau; after each token μ ← μ − eta · (surprise − tau), the surprise
    measured after the cut.
    """

    tau: float
    eta: float = 0.1

    def initial(self, context: Context) -> float:
        return 2 * self.tau

    def apply(self, candidates: Candidates, context: Context) -> Candidates:
        return self._cut(candidates, context.state)

    def observe(self, state: float, token: int, candidates: Candidates | None) -> float:
        if candidates is None:
            raise MemoryRequired("mirostat must have seen the draw of each output token, got ids alone")
        left = self._cut(candidates, state)
        surprise = _surprises(left)[left.ids == token].item()
        return float(state - self.eta * (surprise - self.tau))

    @staticmethod
    def _cut(candidates: Candidates, mu: float) -> Candidates:
        surprises = _surprises(candidates)
        return candidates.keep((surprises <= mu) | (surprises == surprises.min()))


@dataclass(frozen=True)
class EveryNth(Stage):
    """Forces ``token`` as every n-th output token.  It counts by itself, and needs to see no candidates."""

    n: int
    token: int

    def initial(self, context: Context) -> int:
        return 0

    def apply(self, candidates: Candidates, context: Context) -> Candidates:
        return candidates.masked(candidates.ids != self.token) if (context.state + 1) % self.n == 0 else candidates

    def observe(self, state: int, token: int, candidates: Candidates | None) -> int:
        return state + 1


@dataclass(frozen=True)
class MaybeDropTop(Stage):
    """With probability ``p``, by a coin, removes the most likely token where another is left."""

    p: float

    def apply(self, candidates: Candidates, context: Context) -> Candidates:
        drop = context.coin() < self.p and np.isfinite(candidates.logits).sum() > 1
        return candidates.keep(np.arange(candidates.ids.size) != np.argmax(candidates.logits)) if drop else candidates


def _surprises(candidates: Candidates) -> npt.NDArray[Any]:
    """−log₂ p of each candidate."""
    weights = np.exp(candidates.logits - candidates.logits.max())
    with np.errstate(divide="ignore"):
        return -np.log2(weights / weights.sum())
