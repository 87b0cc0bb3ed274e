"""Does a draft pay?  Leviathan et al. 2023 (arXiv 2211.17192), §3: the arithmetic before any measurement.

a is the chance that a drafted token is accepted when those before it were, k the draft's length, c the cost of drafting one token
in units of one step of the model; verifying k tokens is taken to cost as much as one step, which holds only while the model's
step is bound by memory.  On a processor whose cores are busy it is not, and the gain is smaller.
"""

from __future__ import annotations

from nalar.checks import check_integer, check_number

__all__ = ["best_length", "speedup", "tokens_per_step"]


def tokens_per_step(acceptance: float, length: int) -> float:
    """1 + a + a² + … + aᵏ: the expected tokens of one step.

    >>> round(tokens_per_step(0.3, 5), 2), tokens_per_step(0.5, 2)
    (1.43, 1.75)
    """
    a = check_number("acceptance", acceptance, 0, 1)
    return sum(a**i for i in range(check_integer("length", length, 0) + 1))


def speedup(acceptance: float, length: int, cost: float) -> float:
    """Tokens a step, divided by what the step costs: 1 + k·c.  Above 1 some length pays; that is so exactly when a > c.

    >>> round(speedup(0.3, 5, 0.2), 2), round(speedup(0.8, 6, 0.1), 2)
    (0.71, 2.47)
    """
    return tokens_per_step(acceptance, length) / (1 + length * check_number("cost", cost, 0))


def best_length(acceptance: float, cost: float, longest: int = 32) -> int:
    """The length with the largest ``speedup``; 0 says that no draft is better than this one.

    >>> best_length(0.8, 0.1), best_length(0.1, 0.2)
    (6, 0)
    """
    return max(range(check_integer("longest", longest, 0) + 1), key=lambda length: speedup(acceptance, length, cost))
