"""A check that runs in production: are the emitted tokens draws from the law they should come from?

For each emitted token the target law p is known.  Any feature g of it that is fixed before the token is known gives a fair bet:

    E = 1 + λ·(g(x) − Σ p·g) / max|g − Σ p·g|,    |λ| < 1,    with mean 1 if x was drawn from p

Bets multiply along the output, and their products, averaged over features and λ, are a test martingale: the chance that it *ever*
reaches 1/α is at most α, however long the output and whenever one looks (Ville's inequality; Ramdas et al., "Game-theoretic
statistics and safe anytime-valid inference", 2023).  So an alarm is news, and looking all the time costs nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from nalar.checks import check_number
from nalar.distribution import Distribution
from nalar.errors import InvalidType

__all__ = ["FEATURES", "Feature", "Monitor"]

Values = npt.NDArray[np.float64]
Feature = Callable[[Distribution, Distribution | None], Values]  # one value for each of law.ids
STRENGTHS = (0.05, 0.15, 0.4, 0.8)
UNUSUAL = 3.0  # nats of surprisal beyond the entropy, from which on a token is as surprising as can be
RATIO = 5.0


def surprisal(law: Distribution, draft: Distribution | None) -> Values:
    """−log p, held below the entropy plus ``UNUSUAL``: is the text too bold, or too tame?"""
    del draft
    return np.minimum(-law.logprobs, law.entropy() + UNUSUAL)


def best(law: Distribution, draft: Distribution | None) -> Values:
    """Whether it is the most likely token."""
    del draft
    return np.asarray(law.logprobs == law.logprobs.max(), np.float64)


def tail(law: Distribution, draft: Distribution | None) -> Values:
    """Whether it is among the unlikely tokens that share about a fifth of the mass."""
    del draft
    order = np.argsort(-law.probs, kind="stable")
    before = np.cumsum(law.probs[order]) - law.probs[order]
    unlikely = np.zeros(law.ids.size)
    unlikely[order] = before >= 0.8
    return unlikely


def preferred(law: Distribution, draft: Distribution | None) -> Values:
    """min(q/p, 5) where the draft's law q is known: does the text lean towards the draft?"""
    if draft is None:
        return np.zeros(law.ids.size)
    places = np.minimum(np.searchsorted(draft.ids, law.ids), draft.ids.size - 1)
    drafted = np.where(draft.ids[places] == law.ids, draft.probs[places], 0.0)
    return np.minimum(drafted / law.probs, RATIO)


FEATURES: dict[str, Feature] = {"surprisal": surprisal, "best": best, "tail": tail, "preferred": preferred}


class Monitor:
    """``Monitor(false_alarm=1e-6)``: show it every emitted token with its target law; ``alarm`` turns true on evidence of another law.

    ``false_alarm``: the chance, in (0, 1), that a correct sampler ever raises it.  ``features``: your own, each a function of the
    target law, and of the draft's law on the same prefix if you pass one.  A feature may not look at the token, nor at
    whether it was drafted.

    >>> from nalar import Key
    >>> law, tame = Distribution.from_probs([0.5, 0.3, 0.2]), Distribution.from_probs([0.8, 0.15, 0.05])
    >>> good, bad = Monitor(), Monitor()
    >>> for position in range(400):
    ...     _ = good.observe(law, law.draw(Key(7, position=position))), bad.observe(law, tame.draw(Key(7, position=position)))
    >>> good.alarm, bad.alarm
    (False, True)
    """

    def __init__(self, false_alarm: float = 1e-6, features: Mapping[str, Feature] | None = None) -> None:
        self.false_alarm = check_number("false_alarm", false_alarm, 0, 1, above=True)
        self.features = dict(FEATURES if features is None else features)
        self.tokens = 0
        self.alarm = False
        self._bets = np.array([sign * strength for strength in STRENGTHS for sign in (1, -1)])
        self._wealth = {name: np.zeros(self._bets.size) for name in self.features}  # logarithms

    def observe(self, law: Distribution, token: int, draft: Distribution | None = None) -> bool:
        """Count one emitted token; True once there was an alarm.  A token that ``law`` cannot draw is proof by itself."""
        if not isinstance(law, Distribution):
            raise InvalidType(f"law must be a nalar.Distribution, got {law!r}")
        self.tokens += 1
        if not law.prob(token) > 0:
            self._wealth = {name: np.full(self._bets.size, math.inf) for name in self._wealth}
        else:
            place = int(np.searchsorted(law.ids, token))
            for name, feature in self.features.items():
                values = feature(law, draft)
                self._wealth[name] += self._log_bets(law.probs, values, place)
        self.alarm = self.alarm or self.evidence >= -math.log(self.false_alarm)
        return self.alarm

    @property
    def evidence(self) -> float:
        """The logarithm of the averaged bets: 0 says nothing, log(1/α) is an alarm, inf is proof."""
        wealth = np.concatenate([*self._wealth.values(), np.zeros(1)])  # one that never bets
        greatest = float(wealth.max())
        return greatest if greatest == math.inf else greatest + math.log(float(np.exp(wealth - greatest).mean()))

    @property
    def suspicions(self) -> dict[str, float]:
        """The largest evidence of each feature, in nats: what to look at first."""
        return {name: float(wealth.max()) for name, wealth in self._wealth.items()}

    def _log_bets(self, probs: Values, values: Values, place: int) -> Any:
        centred = values - probs @ values
        widest = float(np.abs(centred).max())
        return np.log1p(self._bets * (centred[place] / widest)) if widest > 1e-12 else 0.0
