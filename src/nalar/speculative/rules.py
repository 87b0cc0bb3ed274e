"""Three exact rules for one drafted chain.  Each is a pure function of laws, drafted tokens and a source of randomness.

``target[i]`` is the law p after ``tokens[:i]``, k + 1 of them; ``draft[i]`` is the law q that ``tokens[i]`` was drawn from.  The number
type is the caller's: on Fractions ``nalar.exact`` proves these very functions exact, on float64 they run in production.  A rule
asks for target laws in order, and never for one behind a token that the target cannot draw: they may be made as they are asked for.

Here p is the target and q the draft, as in Leviathan et al.; Chen et al. use the letters the other way round.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from nalar.speculative.laws import Law, Laws, Number
from nalar.speculative.randomness import Randomness

__all__ = ["RULES", "Decision", "Rule", "block", "follow", "remainder", "token"]


class Decision(NamedTuple):
    """The first ``accepted`` draft tokens stand, then comes ``token``.  ``cost``: the total variation a lossy rule paid."""

    accepted: int
    token: int
    cost: Number = 0


Rule = Callable[[Laws, Sequence[int], Sequence[Law], Randomness], Decision]


def follow(target: Laws, tokens: Sequence[int], draft: Sequence[Law], random: Randomness) -> Decision:
    """Draw from the target at each position, and go on while the draw equals the draft.

    Exact whatever the draft's law: the emitted tokens are the target's own draws.  P(accepted ≥ i) = Π p(xⱼ), which is the
    optimum for a draft without randomness of its own.  Emitting the mismatching draw itself is essential; a fresh one would be biased.
    """
    del draft
    for i, drafted in enumerate(tokens):
        drawn = random.choose(target[i], "draw", i)
        if drawn != drafted:
            return Decision(i, drawn)
    return Decision(len(tokens), random.choose(target[len(tokens)], "draw", len(tokens)))


def token(target: Laws, tokens: Sequence[int], draft: Sequence[Law], random: Randomness) -> Decision:
    """Accept with min(1, p/q), recover from norm([p − q]⁺), bonus after full acceptance.

    Leviathan et al. 2023 (arXiv 2211.17192), Chen et al. 2023 (arXiv 2302.01318).  A token leaves with probability
    q·min(1, p/q) + (1 − Σ min(p, q))·norm([p − q]⁺) = min(p, q) + [p − q]⁺ = p.
    """
    for i, (x, p, q) in enumerate(zip(tokens, target, draft, strict=False)):
        if not random.below(p.prob(x), q.prob(x), "accept", i):
            return Decision(i, random.choose(remainder(p.over(q), p), "recover", i))
    return _bonus(target, tokens, random)


def block(target: Laws, tokens: Sequence[int], draft: Sequence[Law], random: Randomness) -> Decision:
    """Block verification, the optimum for one sampled chain: Sun et al. (arXiv 2403.10444, ICLR 2025).

        s₀ = 1,  sᵢ = min(sᵢ₋₁ · p(xᵢ)/q(xᵢ), 1)           how much of the target's mass the draft's first i tokens carry
        rᵢ = [sᵢ·p − q]⁺,  Sᵢ = Σ rᵢ                          what the next draft token cannot carry further
        hᵢ = Sᵢ / (Sᵢ + 1 − sᵢ) for i < k,  h_k = s_k,  h₀ = 1
        accepted = the largest i whose uniform is below hᵢ;  then a token from norm(rᵢ), or from p after all k

    Invariant, from the leaf down: P(drafted x₁…xᵢ, accepted ≥ i) = q(x₁…xᵢ)·sᵢ.
    """
    if not tokens:
        return _bonus(target, tokens, random)
    scales: list[Number] = [1]
    for x, p, q in zip(tokens, target, draft, strict=False):
        scales.append(min(scales[-1] * p.prob(x) / q.prob(x), 1))
        if scales[-1] == 0:
            break  # nothing gets past this token
    last = len(scales) - 2
    if random.below(scales[-1], 1, "accept", last):
        return _bonus(target, tokens, random)
    for i in range(last, -1, -1):
        rest = target[i].over(draft[i], scales[i])
        if i == 0 or _stops(rest.total(), scales[i], random, i - 1):
            return Decision(i, random.choose(remainder(rest, target[i]), "recover", i))
    raise AssertionError("h₀ is 1")


RULES: dict[str, Rule] = {"follow": follow, "token": token, "block": block}


def remainder(rest: Law, law: Law) -> Law:
    """What to recover from; where p equals q up to rounding nothing is left, and p itself is right."""
    return rest if rest.total() > 0 else law


def _stops(left: Number, scale: Number, random: Randomness, row: int) -> bool:
    return random.below(left, left + (1 - scale), "accept", row)


def _bonus(target: Laws, tokens: Sequence[int], random: Randomness) -> Decision:
    return Decision(len(tokens), random.choose(target[len(tokens)], "recover", len(tokens)))
