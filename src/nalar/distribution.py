"""The law: a distribution over token ids.  A chain *is* one of these; a draw is a function of it and a key."""

from __future__ import annotations

import math
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from nalar.candidates import Candidates, Logits, TokenIds, rank_of, weights
from nalar.checks import INT32_MAX, check_choice, check_integer
from nalar.errors import InvalidType, InvalidValue
from nalar.history import as_ids
from nalar.keys import Key, check_key

__all__ = ["DRAWS", "Distribution", "Draw", "check_draw"]

Draw = Literal["inverse", "race"]
DRAWS: tuple[Draw, ...] = ("inverse", "race")


class Distribution:
    """``ids`` int32, ascending, and ``probs`` float64, summing to 1: only tokens that can be drawn.

    A chain makes one, and ``from_probs`` one of your own; the constructor itself takes its arrays over and checks nothing.
    A token whose probability underflows double precision (more than 745 nats below the most likely) is not among them.

    >>> law = Distribution.from_probs([0.5, 0.0, 0.25, 0.25])
    >>> law.ids.tolist(), law.prob(2), law.prob(1), round(law.entropy(), 4)
    ([0, 2, 3], 0.25, 0.0, 1.0397)
    """

    __slots__ = ("_ids", "_logprobs", "_probs")

    def __init__(self, ids: TokenIds, probs: Logits, logprobs: Logits) -> None:
        for array in (ids, probs, logprobs):
            array.flags.writeable = False
        self._ids, self._probs, self._logprobs = ids, probs, logprobs

    @classmethod
    def from_candidates(cls, candidates: Candidates) -> Distribution:
        """softmax of the candidates' logits: p = exp(logit − max) / Σ exp(logit − max)."""
        mass = weights(candidates.logits)
        total = mass.sum()
        live = mass / total > 0
        shifted = candidates.logits[live] - candidates.logits.max()  # none is far below, or its weight would be 0
        return cls(candidates.ids[live], mass[live] / total, shifted - math.log(total))

    @classmethod
    def from_probs(cls, probs: Any, ids: Any = None) -> Distribution:
        """A law of your own: ``probs`` [n] ≥ 0 that sum to 1 within 1e-6, for ``ids`` [n] (0 … n − 1 when None).

        The probabilities are divided by their sum.

        >>> Distribution.from_probs([0.75, 0.25], ids=[90, 7])
        Distribution(ids=[7, 90], probs=[0.25, 0.75])
        """
        mass = _check_probs(probs)
        tokens = np.arange(mass.size, dtype=np.int32) if ids is None else as_ids("ids", ids)
        if tokens.size != mass.size or np.unique(tokens).size != tokens.size or tokens.min() < 0:
            raise InvalidValue(f"ids must be {mass.size} different token ids, one for each probability, got {tokens.tolist()[:20]}")
        order = np.argsort(tokens)
        order = order[mass[order] > 0]
        live = mass[order] / mass.sum()
        return cls(tokens[order], live, np.log(live))

    @property
    def ids(self) -> TokenIds:
        """The tokens that can be drawn, int32 [n], ascending."""
        return self._ids

    @property
    def probs(self) -> Logits:
        """Their probabilities, float64 [n], summing to 1."""
        return self._probs

    @property
    def logprobs(self) -> Logits:
        """Their natural logarithms, float64 [n], from the logits: exact also where a probability is tiny."""
        return self._logprobs

    def prob(self, token: int) -> float:
        """The probability of ``token``; 0.0 when it cannot be drawn."""
        place = self._place(token)
        return 0.0 if place is None else float(self.probs[place])

    def logprob(self, token: int) -> float:
        """The natural logarithm of its probability; −inf when it cannot be drawn."""
        place = self._place(token)
        return -math.inf if place is None else float(self.logprobs[place])

    def rank(self, token: int) -> int:
        """1 + tokens more likely + equally likely ones with a lower id, among all ids from 0 on."""
        place = self._place(token)
        if place is None:
            return self.ids.size + token + 1 - int(np.searchsorted(self.ids, token))
        return rank_of(self.logprobs, place)

    def top(self, n: int) -> TokenIds:
        """The ids of the ``n`` most likely tokens, most likely first, the lower id first among equals."""
        return self.ids[np.argsort(-self.logprobs, kind="stable")[: check_integer("n", n, 0)]]  # ids ascend, so equals stay in id order

    def entropy(self) -> float:
        """−Σ p log p, in nats."""
        return max(0.0, -float(self.probs @ self.logprobs))

    def dense(self, size: int) -> Logits:
        """All probabilities as float64 [size]; ``size`` must exceed the largest id that can be drawn."""
        full = np.zeros(check_integer("size", size, int(self.ids[-1]) + 1), np.float64)
        full[self.ids] = self.probs
        return full

    def draw(self, key: Key, draw: Draw = "inverse") -> int:
        """One token.  The same law and key give the same token.

        ``inverse``: the first token, ids ascending, at which the cumulative probability exceeds the key's uniform.
        ``race``: the largest log p + Gumbel noise wins; the noise belongs to (key, token id), so two laws that share a key
        tend to the same token.
        """
        check_key(key)
        place = _inverse(self.probs, key) if check_draw(draw) == "inverse" else _race(self.ids, self.logprobs, key)
        return int(self.ids[place])

    def tv(self, other: Distribution) -> float:
        """Total variation, ½ Σ |p − q|, in [0, 1]."""
        ids = np.union1d(self.ids, _check_law(other).ids)
        return float(np.abs(_probs_at(self, ids) - _probs_at(other, ids)).sum() / 2)

    def kl(self, other: Distribution) -> float:
        """Kullback–Leibler divergence Σ p log(p / q) from ``other``, in nats; inf where the other cannot draw a token of this."""
        if not np.isin(self.ids, _check_law(other).ids).all():
            return math.inf
        theirs = other.logprobs[np.searchsorted(other.ids, self.ids)]
        return max(0.0, float(self.probs @ (self.logprobs - theirs)))

    def hold(self) -> Distribution:
        """A law that borrows nothing: it stays valid after the logits it came from are gone."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return Distribution, (self.ids, self.probs, self.logprobs)  # a lazy law too travels as its values, read-only again on arrival

    def _place(self, token: int) -> int | None:
        token = check_integer("token", token, 0, INT32_MAX)
        place = int(np.searchsorted(self.ids, token))
        return place if place < self.ids.size and self.ids[place] == token else None

    def __repr__(self) -> str:
        shown = ", ".join(f"{prob:.4g}" for prob in self.probs[:8])
        more = "" if self.ids.size <= 8 else f", … {self.ids.size} tokens"
        return f"Distribution(ids=[{', '.join(map(str, self.ids[:8]))}{more}], probs=[{shown}{', …' if more else ''}])"


def check_draw(draw: Any) -> Draw:
    """A way to draw, by its name."""
    return check_choice("draw", draw, DRAWS)


def _check_law(other: Any) -> Distribution:
    if not isinstance(other, Distribution):
        raise InvalidType(f"other must be a nalar.Distribution, got {other!r}")
    return other


def _probs_at(law: Distribution, ids: TokenIds) -> Logits:
    """The law's probabilities of ``ids``, ascending and holding all of its own."""
    probs = np.zeros(ids.size)
    probs[np.searchsorted(ids, law.ids)] = law.probs
    return probs


def _inverse(probs: Logits, key: Key) -> int:
    cumulative = np.cumsum(probs)
    place = int(np.searchsorted(cumulative, key.uniform() * cumulative[-1], side="right"))
    return min(place, probs.size - 1)  # the product can round up to the total


def _race(ids: TokenIds, logprobs: Logits, key: Key) -> int:
    gumbel = -np.log(-np.log(key.noise(ids)))
    return int(np.argmax(logprobs + gumbel))  # the first of equals: the lowest id


def _check_probs(probs: Any) -> npt.NDArray[np.float64]:
    try:
        given = np.asarray(probs)
    except (TypeError, ValueError):
        raise InvalidType(f"probs must be numbers, got {type(probs).__name__}") from None
    if given.dtype.kind not in "fiu":
        raise InvalidType(f"probs must be numbers, got {type(probs).__name__} of {given.dtype}")
    mass = np.array(given, np.float64, subok=False)
    if mass.ndim != 1 or mass.size == 0:
        raise InvalidValue(f"probs must have shape [n] with n >= 1, got shape {list(mass.shape)}")
    if not (mass >= 0).all() or not abs(mass.sum() - 1) <= 1e-6:
        raise InvalidValue(f"probs must be >= 0 and sum to 1 within 1e-06, got minimum {mass.min():.6g} and sum {mass.sum():.9g}")
    return mass
