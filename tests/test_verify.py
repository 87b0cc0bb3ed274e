"""Verification on Nalar's laws: the same decision as the reference for the same uniforms, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction as F  # noqa: N817  it is on every other line
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import nalar
from nalar import Chain, Distribution, Key, Proposal, verify
from nalar.errors import InvalidType, InvalidValue
from nalar.speculative import lenient, relaxed, typical
from nalar.speculative.laws import Sparse, Table
from nalar.speculative.randomness import Keyed
from nalar.speculative.rules import RULES

KEY = Key(seed=7, position=3)
P, Q = Distribution.from_probs([0.4, 0.3, 0.2, 0.1]), Distribution.from_probs([0.1, 0.2, 0.3, 0.4])
HOT = Distribution.from_probs([1.0], ids=[5])
LOSSY = [lenient(0.5), typical(0.09, 0.3), relaxed(2, 0.2), relaxed(2, 0.2, recover="argmax"), lenient(0.5, budget=0.1)]


class Fixed:
    """Randomness in which every uniform is the same number."""

    def __init__(self, uniform: float) -> None:
        self.uniform = uniform

    def below(self, part: Any, whole: Any, purpose: Any, row: int) -> bool:
        return bool(self.uniform * whole < part or whole <= 0)

    def choose(self, law: Any, purpose: Any, row: int) -> int:
        ids, weights = law.arrays()
        return int(ids[min(np.searchsorted(np.cumsum(weights), self.uniform * weights.sum(), side="right"), ids.size - 1)])


def some_law(random: np.random.Generator, size: int) -> Distribution:
    """Full, sparse, one-hot, peaked, tied or dyadic."""
    ids = np.arange(size)
    match random.integers(6):
        case 0:
            weights = np.exp(random.normal(0, 2, size))
        case 1:
            ids = random.choice(size, random.integers(1, size + 1), replace=False)
            weights = random.random(ids.size) + 1e-3
        case 2:
            ids, weights = random.integers(size, size=1), np.ones(1)
        case 3:
            weights = np.exp(random.normal(0, 12, size))
        case 4:
            weights = random.integers(1, 3, size).astype(float)
        case _:
            weights = 0.5 ** random.integers(0, 8, size)
    return Distribution.from_probs(weights / weights.sum(), ids)


def exactly(law: Distribution) -> Table:
    """The law in rational arithmetic."""
    return Table({int(x): F(float(p)) for x, p in zip(law.ids, law.probs, strict=True)})


def some_case(seed: int) -> tuple[list[Distribution], list[Distribution], tuple[int, ...], Key]:
    """Targets, draft laws (now and then the target's own, or off by one unit in the last place), tokens drawn from them."""
    random = np.random.default_rng(seed)
    size, length = int(random.integers(1, 9)), int(random.integers(0, 5))
    target = [some_law(random, size) for _ in range(length + 1)]
    draft = [some_law(random, size + int(random.integers(0, 3))) for _ in range(length)]
    for i in range(length):
        if random.random() < 0.2:
            draft[i] = target[i]
        elif random.random() < 0.1:
            probs: npt.NDArray[np.float64] = np.nextafter(target[i].probs, random.integers(0, 2, target[i].ids.size).astype(float))
            draft[i] = Distribution.from_probs(probs, target[i].ids)
    key = Key(seed, position=int(random.integers(50)))
    return target, draft, tuple(law.draw(key.draft(i)) for i, law in enumerate(draft)), key


def check_same_decision(seed: int) -> None:
    target, draft, tokens, key = some_case(seed)
    random = Keyed(key)
    for name, rule in [*RULES.items(), *((each.name, each) for each in LOSSY)]:
        proposal = Proposal(tokens, draft)
        verdict = verify(target, proposal, key, rule if name not in RULES else name)
        if not tokens:
            rule = RULES["follow"]
        decision = rule([exactly(law) for law in target], tokens, [exactly(law) for law in draft], random)
        assert (verdict.accepted, verdict.token) == decision[:2], (seed, name)
        assert verdict.cost == pytest.approx(float(decision.cost), abs=1e-12)
        assert target[verdict.accepted].prob(verdict.token) > 0


def test_the_same_decision_as_the_reference_for_the_same_uniforms() -> None:
    for seed in range(1000):
        check_same_decision(seed)


@pytest.mark.long
def test_the_same_decision_a_million_times() -> None:
    for seed in range(1000, 1000 + 1_000_000 // (len(RULES) + len(LOSSY))):
        check_same_decision(seed)


# --- keys -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("draw", ["inverse", "race"])
def test_follow_draws_as_sample_would(draw: Any) -> None:
    """Every draft and length: token for token what sampling without a draft gives."""
    rows = np.log([[0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4], [0.25] * 4, [0.7, 0.1, 0.1, 0.1]])
    laws = [Chain([]).distribution(row) for row in rows]
    plain = [nalar.sample(row, Chain([]), KEY.at(3 + i), draw=draw).token for i, row in enumerate(rows)]
    for tokens in np.ndindex(4, 4, 4):
        for length in range(4):
            verdict = verify(laws[: length + 1], Proposal.point(tokens[:length]), KEY, draw=draw)
            assert verdict.rule == "follow"
            assert list(verdict.tokens) == plain[: verdict.accepted + 1]
            agrees = [a == b for a, b in zip(tokens[:length], plain, strict=False)]
            assert verdict.accepted == (agrees.index(False) if False in agrees else length)


@pytest.mark.parametrize("rule", ["token", "block"])
def test_ratio_rules_take_the_step_and_the_row(rule: str) -> None:
    verdict = verify([P] * 3, Proposal([3, 3], [Q, Q]), KEY, rule)
    for i, sample in enumerate(verdict.samples):
        purpose = "recover" if i == verdict.accepted else "accept"
        assert sample.key == replace(KEY, row=i, purpose=purpose)
    assert Keyed(KEY).below(1, 2, "accept", 1) is (replace(KEY, row=1).uniform("accept") < 0.5)


def test_another_attempt_decides_anew() -> None:
    draft = Proposal([3, 3, 3], [Q] * 3)
    outcomes = {verify([P] * 4, draft, replace(KEY, attempt=attempt), "token").tokens for attempt in range(40)}
    assert len(outcomes) > 4


@pytest.mark.parametrize(("probs", "draft", "wanted"), [([4, 3, 2, 1], [1, 2, 3, 4], 19 / 35), ([6, 2, 1, 1], [3, 4, 2, 1], 44 / 65)])
def test_a_draft_that_shares_the_targets_race_noise(probs: list[int], draft: list[int], wanted: float) -> None:
    """Coupled drafting (Daliri, Musco, Suresh, arXiv 2408.07978): P(equal) = Σ 1 / Σ max(pⱼ/pᵢ, qⱼ/qᵢ), and the target's own tokens."""
    p, q = Distribution.from_probs(np.array(probs) / 10), Distribution.from_probs(np.array(draft) / 10)
    accepted, runs = 0, 4000
    for seed in range(runs):
        key = Key(seed, position=5)
        verdict = verify([p, p], Proposal.point([q.draw(key, "race")]), key, draw="race")
        accepted += verdict.accepted
        assert verdict.tokens[0] == p.draw(key, "race")
    assert abs(accepted / runs - wanted) < 6 * (wanted * (1 - wanted) / runs) ** 0.5


# --- defaults ---------------------------------------------------------------------------------------------------------


def test_defaults() -> None:
    assert verify([P, P], Proposal.point([0]), KEY).rule == "follow"
    assert verify([P, P], Proposal([0], [Q]), KEY).rule == "block"
    assert verify([P], Proposal([]), KEY, "block").rule == "follow"
    assert verify([P, P], Proposal.point([0]), KEY, lenient(0.5)).rule == "lenient"


def test_an_empty_draft_is_one_plain_draw() -> None:
    for rule in (None, "token", "block", "follow"):
        verdict = verify([P], Proposal([]), KEY, rule)
        assert (verdict.accepted, verdict.drafted, verdict.tokens) == (0, 0, (P.draw(KEY),))


def test_logprobs_are_of_the_target_law_for_recovered_tokens_too() -> None:
    seen = set()
    for seed in range(60):
        verdict = verify([P, Q, P], Proposal([3, 0], [Q, P]), Key(seed, position=0), "token")
        seen.add(verdict.accepted)
        assert verdict.logprobs == tuple(law.logprob(x) for law, x in zip([P, Q, P], verdict.tokens, strict=False))
    assert seen == {0, 1, 2}


# --- edges ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["follow", "token", "block"])
@pytest.mark.parametrize("uniform", [0.0, 0.5, 1 - 2.0**-53])
def test_one_hot_targets_accept_what_equals_them_and_nothing_else(rule: str, uniform: float) -> None:
    other = Sparse.of(Distribution.from_probs([0.5, 0.5], ids=[5, 6]))
    laws = [Sparse.of(HOT)] * 3
    assert RULES[rule](laws, (5, 5), [other, other], Fixed(uniform)) == (2, 5, 0)
    assert RULES[rule](laws, (5, 6), [other, other], Fixed(uniform)) == (1, 5, 0)
    assert RULES[rule](laws, (6, 5), [other, other], Fixed(uniform)) == (0, 5, 0)


@pytest.mark.parametrize("uniform", [0.0, 0.3, 1 - 2.0**-53])
@pytest.mark.parametrize("rule", ["token", "block"])
def test_equal_laws_and_laws_an_ulp_apart(rule: str, uniform: float) -> None:
    p = Distribution.from_probs([0.5, 0.25, 0.25])
    near = Distribution.from_probs(np.nextafter(p.probs, 1), p.ids)
    for q in (p, near):
        for x in range(3):
            decision = RULES[rule]([Sparse.of(p)] * 2, (x,), [Sparse.of(q)], Fixed(uniform))
            assert decision.token in p.ids
            assert decision.accepted == 1 or uniform > 0.9


def test_nothing_is_accepted_with_probability_zero() -> None:
    """At u = 0 too: the comparison is strict."""
    p, q = Distribution.from_probs([1.0], ids=[1]), Distribution.from_probs([0.5, 0.5])
    for rule in ("token", "block"):
        assert RULES[rule]([Sparse.of(p)] * 2, (0,), [Sparse.of(q)], Fixed(0.0))[:2] == (0, 1)


@pytest.mark.parametrize("rule", ["follow", "token", "block", lenient(0.1), typical(0.0, 0.0), relaxed(9, 1.0)], ids=str)
def test_the_production_comparison_is_strict(rule: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With every uniform 0.0 an impossible token is still rejected, and a possible one accepted."""
    monkeypatch.setattr(Key, "uniform", lambda self, *how: 0.0)
    p, q = Distribution.from_probs([0.5, 0.5], ids=[1, 2]), Distribution.from_probs([0.5, 0.5], ids=[0, 1])
    assert verify([p, p], Proposal([0], [q]), KEY, rule).accepted == 0
    assert verify([p, p], Proposal([1], [q]), KEY, rule).accepted == 1


def test_tiny_and_wide_probabilities() -> None:
    wide = Chain([]).distribution(np.linspace(0, -700, 60))
    flat = Distribution.from_probs(np.full(60, 1 / 60))
    for rule in ("token", "block"):
        for x in (0, 30, 59):
            verdict = verify([wide, flat, wide], Proposal([x, 59], [flat, wide]), KEY, rule)
            assert np.isfinite(verdict.logprobs).all()


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda: verify([P, P], Proposal([7], [Q]), KEY), InvalidValue, "draft law must give its own token .*, got 0 for token 7"),
        (lambda: verify([P, P], Proposal([7], [Q]), KEY, "follow"), InvalidValue, "draft law must give its own token"),
        (lambda: verify([P], Proposal([3], [Q]), KEY), InvalidValue, "target must hold 2 laws, one more than the 1 draft tokens, got 1"),
        (lambda: verify(P, Proposal([3], [Q]), KEY), InvalidType, "target must be a list of Distributions"),
        (lambda: verify([P, [0.5, 0.5]], Proposal([3], [Q]), KEY), InvalidType, "target must be a list of Distributions"),
        (lambda: verify([P, P], [3], KEY), InvalidType, "proposal must be a nalar.Proposal"),
        (lambda: verify([P, P], Proposal([3]), Key(7)), InvalidValue, "key must be the key of the step's start, with a position"),
        (lambda: verify([P, P], Proposal([3]), KEY.draft(0)), InvalidValue, "key must be the key of the step's start"),
        (lambda: verify([P, P], Proposal([3]), 7), InvalidType, "key must be a nalar.Key"),
        (lambda: verify([P, P], Proposal([3]), KEY, "tree"), InvalidValue, "rule must be one of 'follow', 'token', 'block', got 'tree'"),
        (lambda: verify([P, P], Proposal([3]), KEY, 0.5), InvalidType, "rule must be a name or a lossy rule"),
        (lambda: verify([P, P], Proposal([3]), KEY, draw="gumbel"), InvalidValue, "draw must be one of"),
        (lambda: verify([P, P], Proposal([4]), KEY, vocabulary=4), InvalidValue, r"a draft token must be an integer in \[0, 3\], got 4"),
    ],
)
def test_what_is_refused(call: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        call()


def test_a_proposal_drawn_for_another_step_is_refused() -> None:
    drawn = [nalar.sample(np.log(Q.probs), Chain([]), KEY.draft(0), keep_law=True)]
    verify([P, P], Proposal.sampled(drawn), KEY)
    for other in (KEY.at(4), replace(KEY, attempt=1), replace(KEY, seed=8), replace(KEY, sequence=1)):
        with pytest.raises(InvalidValue, match="proposal must be drawn for this step"):
            verify([P, P], Proposal.sampled(drawn), other)


def test_a_target_may_be_a_window() -> None:
    sampler = nalar.Sampler(Chain([]), seed=7)
    window = sampler.distributions([[0.0, 1.0]] * 3, [1, 1])
    assert verify(window, Proposal.point([1, 1]), sampler.key).accepted >= 0
