"""Tiny models in exact fractions, the linear program that bounds every rule, and rules with one mistake each."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from fractions import Fraction as F  # noqa: N817  it is on every other line
from pathlib import Path
from typing import Any

import numpy as np
from scipy import optimize, sparse

from nalar.exact import Branches
from nalar.keys import Key
from nalar.speculative.laws import Law, Table
from nalar.speculative.rules import Decision, remainder

Model = Callable[[tuple[int, ...]], dict[int, F]]
VECTORS = json.loads((Path(__file__).parent / "data" / "speculative.json").read_text())["cases"]
GAMMA = 3


def constant(*probs: F) -> Model:
    """The same law after every prefix."""
    law = dict(enumerate(probs))
    return lambda prefix: law


def tenths(*parts: int) -> Model:
    return constant(*(F(part, 10) for part in parts))


EXAMPLE = constant(F(1, 3), F(2, 3)), constant(F(2, 3), F(1, 3))  # the block verification paper's motivating example
CASE_A = tenths(4, 3, 2, 1), tenths(1, 2, 3, 4)


def recipe(a: int, b: int, c: int, size: int = 3) -> Model:
    """w[x] = 1 + ((a·k + b·(x + 1)² + c·k·(x + 1)) mod 11), where k reads the prefix in base size + 1."""

    def law(prefix: tuple[int, ...]) -> dict[int, F]:
        k = 1
        for token in prefix:
            k = k * (size + 1) + token + 1
        weights = [1 + ((a * k + b * (x + 1) ** 2 + c * k * (x + 1)) % 11) for x in range(size)]
        return {x: F(weight, sum(weights)) for x, weight in enumerate(weights)}

    return law


MODELS = [(recipe(*case["coeff"][:3]), recipe(*case["coeff"][3:])) for case in VECTORS]
RAGGED = (  # each lacks tokens that the other has, and one law of each is a single token
    lambda prefix: {1: F(1)} if len(prefix) == 1 else {0: F(1, 2), 1: F(1, 3), 2: F(1, 6)},
    lambda prefix: {2: F(1)} if prefix and prefix[-1] == 1 else {1: F(1, 5), 3: F(3, 5), 2: F(1, 5)},
)


def penalised(base: Model) -> Model:
    """``base`` with a token's weight halved for each time it occurred in the prefix, drafted tokens included."""

    def law(prefix: tuple[int, ...]) -> dict[int, F]:
        weights = {x: p / 2 ** prefix.count(x) for x, p in base(prefix).items()}
        return {x: weight / sum(weights.values()) for x, weight in weights.items()}

    return law


def decisions(rule: Any, target: Model, draft: Model, tokens: tuple[int, ...]) -> Callable[[Branches], tuple[int, int]]:
    """A run of ``rule`` on one given draft: how much was accepted, and the token after it."""
    laws = [Table(target(tokens[:i])) for i in range(len(tokens) + 1)]
    drafts = [Table(draft(tokens[:i])) for i in range(len(tokens))]

    def run(branches: Branches) -> tuple[int, int]:
        decision = rule(laws, tokens, drafts, branches.at(Key(0, position=0)))
        return decision.accepted, decision.token

    return run


def optimum(target: Model, draft: Model, length: int, size: int) -> float:
    """The largest E[accepted] of any verifier of one drafted chain that is exact, whatever it looks at (a linear program).

    Unknowns: how much of each drafted path is emitted as its first τ tokens and then y.  What is emitted, continued from the
    target to length + 1 tokens, must have the target's law.
    """
    paths = list(itertools.product(range(size), repeat=length))
    columns = {(path, tau, y): i for i, (path, tau, y) in enumerate(itertools.product(paths, range(length + 1), range(size)))}
    sequences = {word: i for i, word in enumerate(itertools.product(range(size), repeat=length + 1))}
    drafted = sparse.lil_matrix((len(paths), len(columns)))
    emitted = sparse.lil_matrix((len(sequences), len(columns)))
    for (path, tau, y), column in columns.items():
        drafted[paths.index(path), column] = 1
        start = (*path[:tau], y)
        for rest in itertools.product(range(size), repeat=length - tau):
            emitted[sequences[start + rest], column] = float(chance(target, rest, start))
    wanted = [*(float(chance(draft, path)) for path in paths), *(float(chance(target, word)) for word in sequences)]
    gain = [-tau for _, tau, _ in columns]
    solved = optimize.linprog(gain, A_eq=sparse.vstack([drafted, emitted]).tocsr(), b_eq=wanted, method="highs")
    assert solved.success, solved.message
    return -float(solved.fun)


def chance(model: Model, tokens: tuple[int, ...], start: tuple[int, ...] = ()) -> F:
    """The probability that ``tokens`` follow ``start``."""
    product = F(1)
    for i, token in enumerate(tokens):
        product *= model(start + tokens[:i]).get(token, F(0))
    return product


def best_of_set(p: dict[int, F], inside: Callable[[frozenset[int]], F]) -> F:
    """min over sets H of p(H) + 1 − P(all drafted tokens are in H): the optimal-transport optimum at one node."""
    tokens = sorted(p)
    sets = [frozenset(some) for n in range(len(tokens) + 1) for some in itertools.combinations(tokens, n)]
    return min(sum((p[x] for x in some), F(0)) + 1 - inside(some) for some in sets)


# --- rules with one mistake each -------------------------------------------------------------------------------------


def missing_cap(target: Sequence[Law], tokens: Sequence[int], draft: Sequence[Law], random: Any) -> Decision:
    """``block``, but the last position is accepted with the uncapped joint ratio (HSD as released)."""
    last, scales, ratio = len(tokens) - 1, [F(1)], F(1)
    for x, p, q in zip(tokens, target, draft, strict=False):
        ratio *= p.prob(x) / q.prob(x)
        scales.append(min(scales[-1] * p.prob(x) / q.prob(x), F(1)))
    if random.below(ratio, 1, "accept", last):
        return Decision(last + 1, random.choose(target[last + 1], "recover", last + 1))
    return stop_from_the_end(target, draft, random, scales, lambda left, scale: left / (left + 1 - scale) if left else F(0))


def too_eager(target: Sequence[Law], tokens: Sequence[int], draft: Sequence[Law], random: Any) -> Decision:
    """``block`` with h → min(1.03 h, 1)."""
    scales = [F(1)]
    for x, p, q in zip(tokens, target, draft, strict=False):
        scales.append(min(scales[-1] * p.prob(x) / q.prob(x), F(1)))
    if random.below(min(scales[-1] * F(103, 100), 1), 1, "accept", len(tokens) - 1):
        return Decision(len(tokens), random.choose(target[len(tokens)], "recover", len(tokens)))

    def eager(left: F, scale: F) -> F:
        return min(left / (left + 1 - scale) * F(103, 100), F(1)) if left else F(0)

    return stop_from_the_end(target, draft, random, scales, eager)


def stop_from_the_end(target: Any, draft: Any, random: Any, scales: list[F], chance: Callable[[F, F], F]) -> Decision:
    for i in range(len(scales) - 2, -1, -1):
        rest = target[i].over(draft[i], scales[i])
        if i == 0 or random.below(chance(rest.total(), scales[i]), 1, "accept", i - 1):
            return Decision(i, random.choose(remainder(rest, target[i]), "recover", i))
    raise AssertionError


def residual_of_p(target: Sequence[Law], tokens: Sequence[int], draft: Sequence[Law], random: Any) -> Decision:
    """``token``, but recovers from p itself."""
    for i, (x, p, q) in enumerate(zip(tokens, target, draft, strict=False)):
        if not random.below(p.prob(x), q.prob(x), "accept", i):
            return Decision(i, random.choose(p, "recover", i))
    return Decision(len(tokens), random.choose(target[len(tokens)], "recover", len(tokens)))


def p_without_the_token(target: Sequence[Law], tokens: Sequence[int], draft: Sequence[Law], random: Any) -> Decision:
    """``token``, but recovers from p without the rejected token: right for a point draft, wrong for a sampled one."""
    for i, (x, p, q) in enumerate(zip(tokens, target, draft, strict=False)):
        if not random.below(p.prob(x), q.prob(x), "accept", i):
            return Decision(i, random.choose(p.over(Table({x: 1})), "recover", i))
    return Decision(len(tokens), random.choose(target[len(tokens)], "recover", len(tokens)))


def draw_again(target: Sequence[Law], tokens: Sequence[int], draft: Sequence[Law], random: Any) -> Decision:
    """``follow``, but after a mismatch it draws once more."""
    del draft
    for i, x in enumerate(tokens):
        if random.choose(target[i], "draw", i) != x:
            return Decision(i, random.choose(target[i], "recover", i))
    return Decision(len(tokens), random.choose(target[len(tokens)], "draw", len(tokens)))


def arrays(law: Table) -> Any:
    ids, weights = law.arrays()
    return ids, np.asarray(weights, np.float64)
