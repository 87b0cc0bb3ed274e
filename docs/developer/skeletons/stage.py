"""Copy me: a stage of your own.  Three kinds; keep the one you need, rename it, and run the battery in ``test_stage.py`` on it.

A stage is a frozen dataclass.  Its fields are its parameters, checked once in ``__post_init__``; its docstring has the formula,
range, neutral value and source; ``apply`` is the formula in NumPy.  It must be pure: no clock, no global, no ``numpy.random``.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nalar.candidates import Candidates, log_sum_exp
from nalar.checks import check_number
from nalar.errors import MemoryRequired
from nalar.stages import Context, Stage

__all__ = ["DropBest", "Steady", "Within"]


@dataclass(frozen=True)
class Within(Stage):
    """Keeps tokens whose logit is at most ``gap`` below the largest: logit ≥ max − gap.

    ``gap``: in nats, ≥ 0; neutral inf; 0 keeps the maxima.  (It is min-p, written as a distance: p = exp(−gap).)
    """

    gap: float

    def __post_init__(self) -> None:
        if self.gap != float("inf"):  # the house's checks take finite numbers only
            object.__setattr__(self, "gap", check_number("gap", self.gap, 0))

    def apply(self, candidates: Candidates, context: Context) -> Candidates:
        del context  # this stage needs nothing but the logits
        return candidates.keep(candidates.logits >= candidates.logits.max() - self.gap)


@dataclass(frozen=True)
class Steady(Stage):
    """A stage with memory: a temperature that falls after surprising tokens and rises after dull ones.

    T ← T − rate · (surprise − target), held in [0.1, 2]; surprise = −log p of the drawn token as this stage was given it, in nats.
    ``target``: ≥ 0.  ``rate``: ≥ 0; neutral 0, since T starts at 1.
    """

    target: float
    rate: float = 0.1

    def __post_init__(self) -> None:
        object.__setattr__(self, "target", check_number("target", self.target, 0))
        object.__setattr__(self, "rate", check_number("rate", self.rate, 0))

    def initial(self, context: Context) -> float:
        """The state before the first output token.  An immutable value: it is kept for every token, for rollback."""
        del context
        return 1.0

    def observe(self, state: float, token: int, candidates: Candidates | None) -> float:
        """The state after ``token``; ``candidates`` is what ``apply`` was given for that draw, None if nobody kept it."""
        if candidates is None:
            raise MemoryRequired(f"{self.name} must have seen the earlier draws: restore a snapshot, or use a Sampler")
        place = candidates.places(np.array([token]))
        surprise = log_sum_exp(candidates.logits) - float(candidates.logits[place[0]])
        return min(2.0, max(0.1, state - self.rate * (surprise - self.target)))

    def apply(self, candidates: Candidates, context: Context) -> Candidates:
        return candidates.replace(candidates.logits / context.state)


@dataclass(frozen=True)
class DropBest(Stage):
    """A stage that flips a coin: with probability ``chance`` the most likely token is removed, if another is left.

    ``chance``: in [0, 1]; neutral 0.  Chance comes from ``context.coin()`` and from nowhere else; then a draw can be replayed.
    """

    chance: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "chance", check_number("chance", self.chance, 0, 1))

    def apply(self, candidates: Candidates, context: Context) -> Candidates:
        heads = context.coin() < self.chance  # flipped first, so that every row takes the same coin
        if not heads or np.isfinite(candidates.logits).sum() < 2:
            return candidates
        return candidates.keep(np.arange(candidates.ids.size) != np.argmax(candidates.logits))
