"""Temperature: how sharp the distribution is.  It rescales and never reorders."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nalar.candidates import Candidates
from nalar.checks import check_number
from nalar.stages.base import Context, Stage

__all__ = ["Temperature"]


@dataclass(frozen=True)
class Temperature(Stage):
    """logit ← logit / ``value``, so p ← p^(1/value), normalised.

    ``value``: finite, ≥ 0; neutral 1.  Below 1 sharper, above 1 flatter.  0 is greedy: the largest logit is all that is left, the
    lowest id among equals.  Where the quotient overflows, the result is the limit: the maxima share everything.
    Source: Ackley, Hinton and Sejnowski, "A learning algorithm for Boltzmann machines", 1985.

    >>> import nalar
    >>> nalar.Chain([Temperature(0.5)]).distribution([0.0, 0.0, float("-inf")]).probs.tolist()
    [0.5, 0.5]
    >>> nalar.Chain([Temperature(0)]).distribution([1.0, 3.0, 3.0])
    Distribution(ids=[1], probs=[1])
    """

    value: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", check_number("temperature", self.value, 0))

    def apply(self, candidates: Candidates, context: Context) -> Candidates:
        logits = candidates.logits
        if self.value == 1:
            return candidates
        if self.value == 0:
            return candidates.replace(np.where(np.arange(logits.size) == np.argmax(logits), 0.0, -np.inf))
        with np.errstate(over="ignore"):
            divided = logits / self.value
        if not np.isfinite(divided.max()):
            return candidates.replace(np.where(logits == logits.max(), 0.0, -np.inf))
        return candidates.replace(divided)
