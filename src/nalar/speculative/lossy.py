"""Rules that change the law on purpose: more tokens a step, for a stated price.  None is ever a default.

A rule of this kind *keeps* a drafted token x with probability a(x), so a position passes kept(x) = q(x)·a(x) on.  What is missing is
recovered from norm([p − kept]⁺), which makes the law of the position

    out = kept + (1 − Σ kept) · norm([p − kept]⁺),      total variation from p:  Σ [kept − p]⁺

the least that any recovery could reach for that acceptance; with kept = min(p, q) it is 0, and the rule is ``token``.  For a draft
without a law q is the point mass on its token.

``cost`` adds this up over the positions a step tried.  The total variation of a whole output is at most the expected sum of its
costs, so a ``budget``, which no path exceeds, bounds it: a position that would cost more than is left is verified by the exact rule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Self

import numpy as np
import numpy.typing as npt

from nalar.checks import check_choice, check_integer, check_number
from nalar.speculative.laws import Law, Laws, Number, weights_at
from nalar.speculative.randomness import Randomness
from nalar.speculative.rules import Decision, remainder

__all__ = ["Lossy", "lenient", "relaxed", "typical"]

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Lossy:
    """Base of the rules below.  ``budget``: the total variation that may still be spent, ≥ 0; None is no limit."""

    budget: float | None = field(default=None, kw_only=True)
    name: ClassVar[str] = ""

    def __post_init__(self) -> None:
        if self.budget is not None:
            check_number("budget", self.budget, 0)

    def kept(self, p: Array, q: Array, law: Law) -> Array:
        """q(x)·a(x) for each x that q can draw: ``p`` and ``q`` are the probabilities there, ``law`` is the target."""
        raise NotImplementedError(f"{type(self).__name__} must define kept(p, q, law)")

    def recovered(self, rest: Law, law: Law) -> Law:
        """What a rejected token is replaced from."""
        return remainder(rest, law)

    def after(self, spent: float) -> Self:
        """This rule with ``spent`` taken off its budget."""
        return self if self.budget is None else replace(self, budget=max(0.0, self.budget - spent))

    def __call__(self, target: Laws, tokens: Sequence[int], draft: Sequence[Law], random: Randomness) -> Decision:
        spent: Number = 0
        for i, (x, p, q) in enumerate(zip(tokens, target, draft, strict=False)):
            kept, cost = self._afforded(p, q, spent)
            spent = spent + cost
            if not random.below(kept.prob(x), q.prob(x), "accept", i):
                recovered = self.recovered(p.over(kept), p) if cost else remainder(p.over(kept), p)
                return Decision(i, random.choose(recovered, "recover", i), spent)
        return Decision(len(tokens), random.choose(target[len(tokens)], "recover", len(tokens)), spent)

    def _afforded(self, p: Law, q: Law, spent: Number) -> tuple[Law, Number]:
        """What this position keeps and what that costs; min(p, q) and 0 where it would cost more than is left."""
        ids, drawn = q.arrays()
        asked = weights_at(p, ids)
        kept = q.like(ids, self.kept(asked, drawn, p))
        cost = self._cost(p, kept)
        if self.budget is not None and spent + cost > self.budget:
            return q.like(ids, np.minimum(asked, drawn)), 0
        return kept, cost

    def _cost(self, p: Law, kept: Law) -> Number:
        """The total variation of the position's law from p, in closed form."""
        return kept.over(p).total()


@dataclass(frozen=True)
class lenient(Lossy):  # noqa: N801  a rule reads as a name: rule=lenient(0.5)
    """``lenient(l)``: accept with min(1, p/(l·q)).  Leviathan et al. 2023, appendix A.5; l in (0, 1], 1 is exact.

    kept = min(q, p/l), so no token becomes more than 1/l times as likely.

    >>> from nalar import Distribution, Key, verify
    >>> from nalar.speculative import Proposal
    >>> target, draft = Distribution.from_probs([0.4, 0.3, 0.2, 0.1]), Distribution.from_probs([0.1, 0.2, 0.3, 0.4])
    >>> verdict = verify([target, target], Proposal([3], [draft]), Key(7, position=0), rule=lenient(0.5))
    >>> verdict.lossy, round(verdict.cost, 3)
    (True, 0.2)
    """

    l: float  # noqa: E741  the paper's letter, and what the design calls it
    name: ClassVar[str] = "lenient"

    def __post_init__(self) -> None:
        check_number("l", self.l, 0, 1, above=True)
        super().__post_init__()

    def kept(self, p: Array, q: Array, law: Law) -> Array:
        """min(q, p/l)."""
        del law
        return np.minimum(q, p / self.l)


@dataclass(frozen=True)
class _Cut(Lossy):
    """Keeps a drafted token wherever the target gives it enough, whatever the draft thought of it."""

    recover: Literal["residual", "argmax"] = field(default="residual", kw_only=True)

    def __post_init__(self) -> None:
        check_choice("recover", self.recover, ("residual", "argmax"))
        super().__post_init__()

    def kept(self, p: Array, q: Array, law: Law) -> Array:
        """q where the token passes, 0 elsewhere."""
        return np.where(self.passes(p, law), q, 0 * q)

    def passes(self, p: Array, law: Law) -> npt.NDArray[np.bool_]:
        """Which tokens are kept, by their target probability."""
        raise NotImplementedError(f"{type(self).__name__} must define passes(p, law)")

    def recovered(self, rest: Law, law: Law) -> Law:
        """From what is left of p, or its most likely token with ``recover="argmax"``."""
        return _best(law) if self.recover == "argmax" else remainder(rest, law)

    def _cost(self, p: Law, kept: Law) -> Number:
        if self.recover != "argmax":
            return kept.over(p).total()
        best, missing = _best(p).arrays()[0][0], 1 - kept.total()
        beside = kept.over(p, without=(int(best),)).total()
        return beside + max(kept.prob(int(best)) + missing - p.prob(int(best)), 0)


@dataclass(frozen=True)
class typical(_Cut):  # noqa: N801
    """``typical(epsilon, delta)``: accept where p(x) > min(ε, δ·exp(−H(p))).  Medusa (arXiv 2401.10774): ε = 0.09, δ = 0.3.

    ``epsilon`` and ``delta`` ≥ 0.  ``recover``: "residual" as above, or "argmax" as Medusa does it, which costs more.
    """

    epsilon: float
    delta: float
    name: ClassVar[str] = "typical"

    def __post_init__(self) -> None:
        check_number("epsilon", self.epsilon, 0)
        check_number("delta", self.delta, 0)
        super().__post_init__()

    def passes(self, p: Array, law: Law) -> npt.NDArray[np.bool_]:
        """p(x) > min(ε, δ·exp(−H))."""
        probs = law.arrays()[1].astype(np.float64)
        entropy = -float((probs * np.log(probs, where=probs > 0, out=np.zeros(probs.size))).sum())
        return np.asarray(p > min(self.epsilon, self.delta * float(np.exp(-entropy))), np.bool_)


@dataclass(frozen=True)
class relaxed(_Cut):  # noqa: N801
    """``relaxed(top_n, delta)``: accept one of the ``top_n`` most likely tokens with p(x) ≥ max p − δ.  TensorRT-LLM's relaxed acceptance.

    ``top_n`` ≥ 1, ``delta`` in [0, 1]; a token the target cannot draw is never accepted.  ``recover``: as for ``typical``.
    """

    top_n: int
    delta: float
    name: ClassVar[str] = "relaxed"

    def __post_init__(self) -> None:
        check_integer("top_n", self.top_n, 1)
        check_number("delta", self.delta, 0, 1)
        super().__post_init__()

    def passes(self, p: Array, law: Law) -> npt.NDArray[np.bool_]:
        """p(x) ≥ the n-th largest, and ≥ max p − δ, and > 0; ties at the n-th place pass."""
        probs = law.arrays()[1]
        greatest = np.sort(probs)[::-1]
        lowest = max(greatest[min(self.top_n, probs.size) - 1], greatest[0] - self.delta)
        return np.asarray((p >= lowest) & (p > 0), np.bool_)


def _best(law: Law) -> Law:
    """All mass on the most likely token, the lowest id of equals."""
    ids, probs = law.arrays()
    place = int(np.argmax(probs))
    return law.like(ids[place : place + 1], probs[place : place + 1] * 0 + 1)

