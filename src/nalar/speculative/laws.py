"""What a rule asks of a law, twice: ``Table`` is the readable form for any number type, ``Sparse`` the fast one on arrays.

A rule compares a target law p with a draft law q.  All it needs is a token's probability, the part of one law that is above
another, [a·p − b·q]⁺, and that part's total.  The two forms answer alike; a rule is written once, and the code that is proven
in rational arithmetic is the code that runs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from nalar.candidates import Logits, TokenIds
from nalar.distribution import Distribution, Draw
from nalar.keys import Key

__all__ = ["Law", "Laws", "Number", "Sparse", "Table", "weights_at"]

Number = Any  # Fraction, float, …: whatever can be added, multiplied, divided and compared
Array = npt.NDArray[Any]


class Law(Protocol):
    """Weights ≥ 0 on token ids.  A law's sum to 1; what is left of one after a comparison sums to less."""

    def prob(self, token: int) -> Number: ...
    def total(self) -> Number: ...  # Σ weights
    def over(self, other: Law, scale: Number = 1, other_scale: Number = 1, without: Collection[int] = ()) -> Law: ...
    def arrays(self) -> tuple[TokenIds, Array]: ...  # ids ascending, and their weights
    def like(self, ids: TokenIds, weights: Array) -> Law: ...  # another law of the same form
    def draw(self, key: Key, draw: Draw = "inverse") -> int: ...  # a token, with probability weight / total


class Laws(Protocol):
    """A list of laws, or what makes them one by one as they are asked for."""

    def __getitem__(self, index: int, /) -> Law: ...
    def __iter__(self) -> Iterator[Law]: ...


@dataclass(frozen=True, slots=True)
class Table:
    """Weights as a mapping from id to any number.

    >>> from fractions import Fraction as F
    >>> p, q = Table({0: F(1, 3), 1: F(2, 3)}), Table({0: F(2, 3), 1: F(1, 3)})
    >>> p.over(q)
    Table(weights={1: Fraction(1, 3)})
    """

    weights: Mapping[int, Number]

    def prob(self, token: int) -> Number:
        """The weight of ``token``."""
        return self.weights.get(token, 0)

    def total(self) -> Number:
        """Σ weights."""
        return sum(self.weights.values())

    def over(self, other: Law, scale: Number = 1, other_scale: Number = 1, without: Collection[int] = ()) -> Table:
        """[scale · this − other_scale · other]⁺, outside ``without``."""
        left = {x: scale * weight - other_scale * other.prob(x) for x, weight in self.weights.items() if x not in without}
        return Table({x: weight for x, weight in left.items() if weight > 0})

    def arrays(self) -> tuple[TokenIds, Array]:
        """Ids, ascending, and weights as they are."""
        ids = sorted(self.weights)
        weights = np.empty(len(ids), object)
        weights[:] = [self.weights[x] for x in ids]
        return np.array(ids, np.int32), weights

    def like(self, ids: TokenIds, weights: Array) -> Table:
        """A table of these weights."""
        return Table(dict(zip(ids.tolist(), weights.tolist(), strict=True)))

    def draw(self, key: Key, draw: Draw = "inverse") -> int:
        """The first id, ascending, at which the cumulative weight exceeds the key's uniform times the total."""
        del draw
        reached, level = 0, key.uniform() * self.total()
        for x in sorted(self.weights):
            reached += self.weights[x]
            if reached > level:
                return x
        return max(self.weights)


class Sparse:
    """Weights as arrays: ``ids`` ascending, ``weights`` float64.  One made of a Distribution asks it for arrays only when it must.

    >>> p, q = Sparse.of(Distribution.from_probs([0.25, 0.75])), Sparse.of(Distribution.from_probs([0.75, 0.25]))
    >>> p.over(q).arrays()
    (array([1], dtype=int32), array([0.5]))
    """

    __slots__ = ("_arrays", "_law")

    def __init__(self, ids: TokenIds, weights: Logits, law: Distribution | None = None) -> None:
        self._arrays: tuple[TokenIds, Logits] | None = (ids, weights)
        self._law = law

    @classmethod
    def of(cls, law: Distribution) -> Self:
        """A Distribution as a rule sees it."""
        sparse = cls.__new__(cls)
        sparse._arrays, sparse._law = None, law
        return sparse

    @classmethod
    def point(cls, token: int) -> Self:
        """All weight on one token."""
        return cls(np.array([token], np.int32), np.ones(1))

    def prob(self, token: int) -> float:
        """The weight of ``token``."""
        if self._law is not None:
            return self._law.prob(token)
        ids, weights = self.arrays()
        place = int(np.searchsorted(ids, token))
        return float(weights[place]) if place < ids.size and ids[place] == token else 0.0

    def total(self) -> float:
        """Σ weights."""
        return float(self.arrays()[1].sum())

    def over(self, other: Law, scale: Number = 1, other_scale: Number = 1, without: Collection[int] = ()) -> Sparse:
        """[scale · this − other_scale · other]⁺, outside ``without``."""
        ids, weights = self.arrays()
        left = scale * weights - other_scale * weights_at(other, ids)
        keep = left > 0
        if without:
            keep &= ~np.isin(ids, np.fromiter(without, np.int32, len(without)))
        return Sparse(ids[keep], left[keep])

    def arrays(self) -> tuple[TokenIds, Logits]:
        """Ids, ascending, and weights, float64."""
        if self._arrays is None:
            assert self._law is not None
            self._arrays = self._law.ids, self._law.probs
        return self._arrays

    def like(self, ids: TokenIds, weights: Array) -> Sparse:
        """A law of these weights."""
        return Sparse(ids, np.asarray(weights, np.float64))

    def draw(self, key: Key, draw: Draw = "inverse") -> int:
        """As ``Distribution.draw``; what is left of a law is drawn from by inverse."""
        if self._law is not None:
            return self._law.draw(key, draw)
        ids, weights = self.arrays()
        cumulative = np.cumsum(weights)
        place = int(np.searchsorted(cumulative, key.uniform() * cumulative[-1], side="right"))
        return int(ids[min(place, ids.size - 1)])


def weights_at(law: Law, ids: TokenIds) -> Array:
    """The weights that ``law`` gives to ``ids``, 0 where it has none."""
    own, weights = law.arrays()
    if own.size == ids.size and np.array_equal(own, ids):
        return weights
    places = np.minimum(np.searchsorted(own, ids), own.size - 1)
    return np.where(own[places] == ids, weights[places], 0.0) if own.size else np.zeros(ids.size)
