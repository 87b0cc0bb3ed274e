"""The tokens that can still be drawn at one point of a chain, with their logits."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from nalar.rows import FloatRow, as_float64, check_row

__all__ = ["Candidates", "Logits", "Mask", "TokenIds", "log_sum_exp", "rank_of", "weights"]

TokenIds = npt.NDArray[np.int32]
Logits = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Candidates:
    """``ids`` int32 [n], ascending; ``logits`` float64 [n], not normalised; ``log_total``, see below.

    A *masked* token stays in ``ids`` with logit −inf; a *removed* one is gone.  Both have probability 0, but counts, entropies
    and standard deviations over the candidates differ between the two, and engines differ in which they do.

    ``log_total`` is the log-sum-exp at the last stage that changed a logit: what cuts measure the original mass against.
    None means that no token was removed since, so it is this object's own.

    >>> Candidates(np.arange(3, dtype=np.int32), np.array([2.0, 1.0, 0.0])).keep(np.array([True, True, False]))
    Candidates(ids=[0, 1], logits=[2.0, 1.0], log_total=2.40761)
    """

    ids: TokenIds
    logits: Logits
    log_total: float | None = None
    mass: tuple[float, float] | None = None  # (maximum, Σ exp(logit − maximum)) behind log_total: exact where its logarithm is not

    @classmethod
    def from_row(cls, row: FloatRow) -> Candidates:
        """Every token of a row of logits; a row that defines no distribution raises BrokenRow."""
        values = check_row(as_float64(row))
        return cls(np.arange(values.size, dtype=np.int32), values)

    def total(self) -> float:
        """log Σ exp(logit) at the last stage that changed a logit."""
        return log_sum_exp(self.logits) if self.log_total is None else self.log_total

    def keep(self, mask: Mask) -> Candidates:
        """Only the tokens where ``mask`` is true; the others are removed, the logits stay."""
        if mask.all():
            return self
        mass = (float(self.logits.max()), float(weights(self.logits).sum())) if self.log_total is None else self.mass
        return Candidates(self.ids[mask], self.logits[mask], self.total(), mass)

    def replace(self, logits: Logits) -> Candidates:
        """The same tokens with new logits, whose log-sum-exp is the new total; the same candidates where no logit changes."""
        return self if np.array_equal(logits, self.logits) else Candidates(self.ids, logits)

    def masked(self, mask: Mask) -> Candidates:
        """The same tokens; where ``mask`` is true the logit becomes −inf."""
        return self.replace(np.where(mask, -np.inf, self.logits))

    def places(self, tokens: npt.NDArray[np.integer]) -> npt.NDArray[np.intp]:
        """Where in ``ids`` those of ``tokens`` stand that are candidates, in the order of ``tokens``.

        >>> Candidates(np.array([2, 5, 7], np.int32), np.zeros(3)).places(np.array([7, 3, 2]))
        array([2, 0])
        """
        places = np.searchsorted(self.ids, tokens)
        inside = places < self.ids.size
        places, tokens = places[inside], np.asarray(tokens)[inside]
        found: npt.NDArray[np.intp] = places[self.ids[places] == tokens]
        return found

    def __repr__(self) -> str:
        total = "None" if self.log_total is None else f"{self.log_total:.6g}"
        return f"Candidates(ids={self.ids.tolist()}, logits={self.logits.tolist()}, log_total={total})"


def weights(logits: Logits) -> Logits:
    """exp(logit − maximum): unnormalised probabilities, the largest exactly 1.  At least one logit is finite."""
    with np.errstate(over="ignore"):  # a difference past the range of floats weighs nothing
        shifted: Logits = np.exp(logits - logits.max())
    return shifted


def log_sum_exp(logits: Logits) -> float:
    """log Σ exp(logit), without overflow; −inf where nothing is left."""
    greatest = logits.max(initial=-np.inf)
    return float(greatest + np.log(weights(logits).sum())) if greatest > -np.inf else -np.inf


def rank_of(values: Logits, place: int) -> int:
    """The rank of the value at ``place``: 1 + greater values + equal ones before it."""
    return 1 + int((values > values[place]).sum()) + int((values[:place] == values[place]).sum())
