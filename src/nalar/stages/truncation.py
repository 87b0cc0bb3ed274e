"""Truncation by rank, by mass, and by ratio to the most likely token.

Truncations remove tokens and never touch a logit, so the ratio between any two survivors stays what it was.  Each always
keeps at least the most likely token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from nalar.candidates import Candidates, Logits, Mask, weights
from nalar.checks import check_choice, check_flag, check_integer, check_number
from nalar.stages.base import Context, Stage

__all__ = ["MinP", "TopK", "TopP"]


@dataclass(frozen=True)
class TopK(Stage):
    """Keeps the ``k`` largest logits.

    ``k``: integer ≥ 0; neutral 0, which keeps all.  ``ties``: what happens to tokens equal to the k-th.  "first" keeps exactly k, the
    lowest ids among equals; "all" keeps every one of them.
    Source: Fan, Lewis and Dauphin, "Hierarchical neural story generation", 2018.

    >>> import nalar
    >>> nalar.Chain([TopK(2)]).distribution([1.0, 3.0, 1.0, 1.0]).ids.tolist()
    [0, 1]
    >>> nalar.Chain([TopK(2, ties="all")]).distribution([1.0, 3.0, 1.0, 1.0]).ids.tolist()
    [0, 1, 2, 3]
    """

    k: int
    ties: Literal["first", "all"] = "first"

    def __post_init__(self) -> None:
        object.__setattr__(self, "k", check_integer("k", self.k, 0))
        object.__setattr__(self, "ties", check_choice("ties", self.ties, ("first", "all")))

    def apply(self, candidates: Candidates, context: Context) -> Candidates:
        logits, surplus = candidates.logits, candidates.logits.size - self.k
        if self.k == 0 or surplus <= 0:
            return candidates
        kth = np.partition(logits, surplus)[surplus]
        return candidates.keep(_above(logits, kth, self.k, self.ties))


@dataclass(frozen=True)
class TopP(Stage):
    """Keeps the most likely tokens, in order, while the weight before a token is < p · the total weight (the nucleus).

    With weights w = exp(logit − max), sorted descending, lowest id first among equals: token i stays while w₁ + … + wᵢ₋₁ < p · Σw.

    ``p``: in [0, 1]; neutral 1; 0 keeps the most likely token.  ``crossing``: whether the token whose weight reaches p stays.
    ``at_equality``: "stop" where the weight before a token is exactly p, or "continue" and keep one more.
    ``ties``: "first", or "all" to keep every token equal to the last one kept.
    ``mass``: p of what is left here ("renormalised"), or of the total at the last stage that changed a logit ("original").
    Source: Holtzman et al., "The curious case of neural text degeneration", 2020.

    >>> import nalar
    >>> row = np.log([0.5, 0.25, 0.125, 0.125])
    >>> nalar.Chain([TopP(0.75)]).distribution(row).ids.tolist()
    [0, 1]
    >>> nalar.Chain([TopP(0.75, at_equality="continue")]).distribution(row).ids.tolist()
    [0, 1, 2]
    """

    p: float
    crossing: bool = True
    at_equality: Literal["stop", "continue"] = "stop"
    ties: Literal["first", "all"] = "first"
    mass: Literal["renormalised", "original"] = "renormalised"

    def __post_init__(self) -> None:
        object.__setattr__(self, "p", check_number("p", self.p, 0, 1))
        check_flag("crossing", self.crossing)
        object.__setattr__(self, "at_equality", check_choice("at_equality", self.at_equality, ("stop", "continue")))
        object.__setattr__(self, "ties", check_choice("ties", self.ties, ("first", "all")))
        object.__setattr__(self, "mass", check_choice("mass", self.mass, ("renormalised", "original")))

    def apply(self, candidates: Candidates, context: Context) -> Candidates:
        if self.p >= 1:
            return candidates
        logits = candidates.logits
        order = np.argsort(-logits, kind="stable")  # ids ascend, so equals stay in id order
        cumulative = np.cumsum(weights(logits)[order])
        before = np.concatenate(([0.0], cumulative[:-1]))
        target = self.p * self._total(candidates, float(cumulative[-1])) if self.p > 0 else 0.0
        kept = int((before < target).sum() if self.at_equality == "stop" else (before <= target).sum())
        reached = cumulative[kept - 1] >= target if self.at_equality == "stop" else cumulative[kept - 1] > target
        if not self.crossing and reached:
            kept -= 1
        kept = max(kept, 1)
        return candidates.keep(_above(logits, logits[order[kept - 1]], kept, self.ties))

    def _total(self, candidates: Candidates, left: float) -> float:
        if self.mass == "renormalised" or candidates.log_total is None:
            return left
        greatest = float(candidates.logits.max())
        with np.errstate(over="ignore"):  # where a stage of yours removed the maximum, nothing left reaches p
            if candidates.mass is None:
                return float(np.exp(candidates.log_total - greatest))
            return candidates.mass[1] * float(np.exp(candidates.mass[0] - greatest))


@dataclass(frozen=True)
class MinP(Stage):
    """Keeps tokens at least ``p`` times as likely as the most likely: exp(logit − max) ≥ p.

    ``p``: in [0, 1]; neutral 0; 1 keeps the maxima.  ``strict``: > instead of ≥.
    Source: Nguyen et al., "Turning up the heat: min-p sampling", 2024.

    >>> import nalar
    >>> nalar.Chain([MinP(0.5)]).distribution(np.log([0.5, 0.25, 0.125, 0.125])).ids.tolist()
    [0, 1]
    """

    p: float
    strict: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "p", check_number("p", self.p, 0, 1))
        check_flag("strict", self.strict)

    def apply(self, candidates: Candidates, context: Context) -> Candidates:
        if self.p == 0:
            return candidates
        weight = weights(candidates.logits)
        mask = weight > self.p if self.strict else weight >= self.p
        mask[np.argmax(weight)] = True
        return candidates.keep(mask)


def _above(logits: Logits, boundary: np.float64, count: int, ties: str) -> Mask:
    """Which tokens lie above ``boundary``, and of those equal to it all, or the first that fill up to ``count``."""
    mask: Mask = logits >= boundary
    if ties == "first":
        equal = np.flatnonzero(logits == boundary)
        mask[equal[count - int((logits > boundary).sum()) :]] = False
    return mask
