"""Proof by enumeration: run a sampler with every possible randomness, and get the exact law of what it emits.

``law_of(run)`` calls ``run(branches)`` again and again.  Each time ``branches`` answers every question in a new way, and knows how
probable its answers were.  With Fractions the result is exact; a rule that is off by anything is seen to be off.

A uniform is an *interval* here.  The first question about a key splits [0, 1); a later question about the same key splits
what is left.  So a sampler that uses one key twice is caught as it would be in production, where it meets the same number again.

    >>> from fractions import Fraction as F
    >>> p, q = {0: F(1, 3), 1: F(2, 3)}, {0: F(2, 3), 1: F(1, 3)}
    >>> run = one_step(lambda prefix: p, lambda prefix: q, rules.block, length=2)
    >>> expected(law_of(run), lambda emitted: len(emitted) - 1)
    Fraction(11, 9)
    >>> complete(law_of(run), lambda prefix: p, 3) == plain(lambda prefix: p, 3)
    True
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any, TypeVar

from nalar.keys import Key, Purpose
from nalar.monitor import Monitor
from nalar.speculative import rules
from nalar.speculative.laws import Law, Number, Table
from nalar.speculative.randomness import address

__all__ = [
    "Branches", "Branching", "Monitor", "assert_law", "complete", "distance", "drafted", "expected", "generation", "law_of", "one_step",
    "plain",
]

T = TypeVar("T", bound=Hashable)
Tokens = tuple[int, ...]
Weights = Mapping[int, Number]
Model = Callable[[Tokens], Weights]  # the law after these tokens
Stop = Callable[[Tokens], bool]  # whether a draft ends after these tokens, the drafted ones included


class Branches:
    """One way through all the questions.  ``weight`` is how probable its answers were."""

    def __init__(self, path: list[tuple[int, int]]) -> None:
        self.path = path  # (answer, answers there were), question by question
        self.weight: Number = 1
        self._asked = 0
        self._known: dict[Hashable, tuple[Number, Number]] = {}

    def at(self, key: Key, address: Callable[[Key, Purpose, int], Hashable] = address) -> Branching:
        """The randomness of the step at ``key.position``; another ``address`` shares uniforms where it likes, to break things."""
        return Branching(self, key, address)

    def uniform(self, name: Hashable, bounds: Sequence[Number]) -> int:
        """In which of the intervals between ``bounds``, 0 … 1, the uniform ``name`` lies."""
        low, high = self._known.get(name, (0, 1))
        parts = [(index, max(low, a), min(high, b)) for index, (a, b) in enumerate(pairwise(bounds)) if max(low, a) < min(high, b)]
        index, left, right = parts[self._answer(len(parts))]
        self.weight = self.weight * _ratio(right - left, high - low)
        self._known[name] = left, right
        return index

    def _answer(self, answers: int) -> int:
        if self._asked == len(self.path):
            self.path.append((0, answers))
        answer, known = self.path[self._asked]
        if known != answers:
            raise AssertionError("run must ask the same questions when it gets the same answers")
        self._asked += 1
        return answer


@dataclass(frozen=True, slots=True)
class Branching:
    """The branching form of ``Keyed``: the same questions about the same keys, answered in every way."""

    branches: Branches
    key: Key
    address: Callable[[Key, Purpose, int], Hashable] = address

    def below(self, part: Number, whole: Number, purpose: Purpose, row: int) -> bool:
        """u · whole < part, for every u."""
        chance = min(_ratio(part, whole), 1) if whole > 0 else 1
        return self.branches.uniform(self.address(self.key, purpose, row), (0, chance, 1)) == 0

    def choose(self, law: Law, purpose: Purpose, row: int) -> int:
        """Every token of ``law``: ids ascending cut [0, 1) into intervals as the inverse draw does."""
        ids, weights = law.arrays()
        total, reached, bounds = law.total(), 0, [0]
        for weight in weights[:-1]:
            reached = reached + weight
            bounds.append(_ratio(reached, total))
        return int(ids[self.branches.uniform(self.address(self.key, purpose, row), [*bounds, 1])])


def law_of(run: Callable[[Branches], T]) -> dict[T, Number]:
    """The exact law of what ``run`` returns.  It takes all its randomness from the branches it is given."""
    law: defaultdict[T, Number] = defaultdict(int)
    path: list[tuple[int, int]] = []
    while True:
        branches = Branches(path)
        outcome = run(branches)
        law[outcome] += branches.weight
        while path and path[-1][0] + 1 == path[-1][1]:
            path.pop()
        if not path:
            return dict(law)
        path[-1] = path[-1][0] + 1, path[-1][1]


def drafted(random: Branching, draft: Model, output: Tokens, length: int, stop: Stop | None = None) -> tuple[Tokens, list[Table]]:
    """Up to ``length`` tokens drawn from ``draft`` with the step's draft keys, and the law each was drawn from.

    ``stop`` sees the prefix and what was drafted so far.  It may end the draft after a token, whichever that was; what it may not do
    is take a token back.
    """
    tokens: Tokens = ()
    laws: list[Table] = []
    while len(tokens) < length and not (stop is not None and stop(output + tokens)):
        laws.append(Table(draft(output + tokens)))
        tokens = (*tokens, random.choose(laws[-1], "draft", len(tokens)))
    return tokens, laws


def one_step(
    target: Model, draft: Model, rule: rules.Rule, *, length: int, stop: Stop | None = None, output: Tokens = (),
) -> Callable[[Branches], Tokens]:
    """A run of one speculative step after ``output``: what it emits."""

    def run(branches: Branches) -> Tokens:
        return _step(branches, target, draft, rule, length, stop, output)

    return run


def generation(
    target: Model, draft: Model, rule: rules.Rule, *, tokens: int, length: int, stop: Stop | None = None, **how: Any,
) -> Callable[[Branches], Tokens]:
    """A run of as many steps as ``tokens`` tokens take, each with its own keys: its first ``tokens`` tokens.

    Two steps at least are needed to see what leaks from one step into the next.
    """

    def run(branches: Branches) -> Tokens:
        output: Tokens = ()
        while len(output) < tokens:
            output += _step(branches, target, draft, rule, length, stop, output, **how)
        return output[:tokens]

    return run


def plain(target: Model, tokens: int, output: Tokens = ()) -> dict[Tokens, Number]:
    """The law of ``tokens`` tokens drawn one by one."""
    return complete({(): 1}, target, tokens, output)


def complete(law: Mapping[Tokens, Number], target: Model, tokens: int, output: Tokens = ()) -> dict[Tokens, Number]:
    """Every emitted sequence continued by plain sampling to ``tokens`` tokens."""
    full: defaultdict[Tokens, Number] = defaultdict(int)
    for emitted, chance in law.items():
        if len(emitted) >= tokens:
            full[emitted[:tokens]] += chance
            continue
        following = {(*emitted, x): chance * p for x, p in target(output + emitted).items() if p}
        for sequence, more in complete(following, target, tokens, output).items():
            full[sequence] += more
    return dict(full)


def distance(law: Mapping[T, Number], other: Mapping[T, Number]) -> Number:
    """Total variation, ½ Σ |a − b|."""
    return sum(abs(law.get(outcome, 0) - other.get(outcome, 0)) for outcome in {*law, *other}) / 2


def expected(law: Mapping[T, Number], value: Callable[[T], Number]) -> Number:
    """Σ probability · value."""
    return sum(chance * value(outcome) for outcome, chance in law.items())


def assert_law(run: Callable[[Branches], T], law: Mapping[T, Number], tolerance: Number = 0) -> None:
    """Raise AssertionError unless ``run`` emits exactly ``law``; says how far off it is, and where most.

    ``tolerance``: the total variation to allow, for laws of floats.

    >>> from fractions import Fraction as F
    >>> p, q = {0: F(1, 3), 1: F(2, 3)}, {0: F(2, 3), 1: F(1, 3)}
    >>> run = generation(lambda prefix: p, lambda prefix: q, rules.token, tokens=2, length=2)
    >>> assert_law(run, plain(lambda prefix: p, 2))
    """
    got = law_of(run)
    off = distance(got, law)
    if off > tolerance:
        worst = max({*got, *law}, key=lambda outcome: abs(got.get(outcome, 0) - law.get(outcome, 0)))
        raise AssertionError(
            f"total variation {off} ({float(off):.6f}); most at {worst!r}: {got.get(worst, 0)} instead of {law.get(worst, 0)}"
        )


def _ratio(part: Number, whole: Number) -> Number:
    """part / whole, a Fraction where both are integers."""
    return Fraction(part, whole) if isinstance(part, int) and isinstance(whole, int) else part / whole


def _step(
    branches: Branches, target: Model, draft: Model, rule: rules.Rule, length: int, stop: Stop | None, output: Tokens, **how: Any
) -> Tokens:
    random = branches.at(Key(0, position=len(output)), **how)
    tokens, laws = drafted(random, draft, output, length, stop)
    along = [Table(target(output + tokens[:i])) for i in range(len(tokens) + 1)]
    decision = rule(along, tokens, laws, random)
    return (*tokens[: decision.accepted], decision.token)
