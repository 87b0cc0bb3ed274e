"""The proof itself: it counts right, and it fails on every sampler with a known mistake, by the known amount."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction as F  # noqa: N817  it is on every other line
from typing import Any

import numpy as np
import pytest

import nalar
from nalar import Distribution, Key
from nalar.errors import InvalidType
from nalar.exact import Branches, Monitor, assert_law, complete, distance, generation, law_of, one_step, plain
from nalar.keys import Purpose
from nalar.speculative import rules
from nalar.speculative.laws import Table
from nalar.speculative.randomness import address
from speculation import (
    CASE_A,
    EXAMPLE,
    GAMMA,
    MODELS,
    Model,
    draw_again,
    missing_cap,
    p_without_the_token,
    penalised,
    recipe,
    residual_of_p,
    tenths,
    too_eager,
)

HALF = Table({0: F(1, 2), 1: F(1, 2)})


def off(target: Model, draft: Model, rule: Any, length: int) -> F:
    """Total variation of one step, continued from the target."""
    law = law_of(one_step(target, draft, rule, length=length))
    return F(distance(complete(law, target, length + 1), plain(target, length + 1)))


# --- it counts right --------------------------------------------------------------------------------------------------


def test_a_run_without_questions_has_one_outcome() -> None:
    assert law_of(lambda branches: "done") == {"done": 1}


def test_different_keys_are_independent_and_one_key_is_one_number() -> None:
    def coins(second: int) -> Callable[[Branches], tuple[int, int]]:
        def run(branches: Branches) -> tuple[int, int]:
            return branches.at(Key(0, position=0)).choose(HALF, "draw", 0), branches.at(Key(0, position=second)).choose(HALF, "draw", 0)

        return run

    assert law_of(coins(1)) == {(a, b): F(1, 4) for a in range(2) for b in range(2)}
    assert law_of(coins(0)) == {(a, a): F(1, 2) for a in range(2)}


def test_an_interval_is_split_where_the_questions_say() -> None:
    def run(branches: Branches) -> tuple[bool, bool]:
        random = branches.at(Key(0, position=0))
        return random.below(F(1, 3), 1, "accept", 0), random.below(F(1, 2), 1, "accept", 0)

    assert law_of(run) == {(True, True): F(1, 3), (False, True): F(1, 6), (False, False): F(1, 2)}


def test_a_run_that_hides_randomness_is_refused() -> None:
    asked = iter([HALF, HALF, Table({0: F(1, 3), 1: F(1, 3), 2: F(1, 3)}), HALF])

    def run(branches: Branches) -> int:
        random = branches.at(Key(0, position=0))
        return random.choose(next(asked), "draw", 0) + random.choose(HALF, "draw", 1)

    with pytest.raises((AssertionError, StopIteration)):
        law_of(run)


def test_assert_law_says_how_far_off_and_where() -> None:
    run = one_step(*CASE_A, residual_of_p, length=1)
    law = law_of(run)
    assert_law(run, law)
    with pytest.raises(AssertionError, match=r"total variation 1/5 \(0\.200000\); most at \(7,\): 0 instead of 1/5"):
        assert_law(run, {**{e: c * F(4, 5) for e, c in law.items()}, (7,): F(1, 5)})


def test_floats_are_allowed_with_a_tolerance() -> None:
    target = lambda prefix: {0: 0.1, 1: 0.9}  # noqa: E731
    draft = lambda prefix: {0: 0.3, 1: 0.7}  # noqa: E731
    assert_law(generation(target, draft, rules.block, tokens=3, length=2), plain(target, 3), tolerance=1e-12)


# --- one step with a mistake ------------------------------------------------------------------------------------------


def greedy(model: Model) -> Model:
    def law(prefix: tuple[int, ...]) -> dict[int, F]:
        probs = model(prefix)
        return {max(sorted(probs), key=lambda x: probs[x]): F(1)}

    return law


def with_wrong_law(rule: Any, claimed: Model) -> Any:
    """Verifies against a law the tokens were not drawn from."""

    def run(target: Any, tokens: Any, draft: Any, random: Any) -> Any:
        return rule(target, tokens, [Table(claimed(tokens[:i])) for i in range(len(tokens))], random)

    return run


def trimmed(rule: Any, least: F) -> Any:
    """Drops a drafted token because of its own probability, with what follows it."""

    def run(target: Any, tokens: Any, draft: Any, random: Any) -> Any:
        kept = next((i for i, (x, q) in enumerate(zip(tokens, draft, strict=True)) if q.prob(x) < least), len(tokens))
        return rule(target[: kept + 1], tokens[:kept], draft[:kept], random)

    return run


def stale(rule: Any, target: Model) -> Any:
    """Verifies against laws that do not see the drafted tokens."""

    def run(laws: Any, tokens: Any, draft: Any, random: Any) -> Any:
        return rule([Table(target(())) for _ in laws], tokens, draft, random)

    return run


@pytest.mark.parametrize(
    ("mutant", "draft", "wanted"),
    [
        (with_wrong_law(rules.token, CASE_A[1]), greedy(CASE_A[1]), F(5, 16)),
        (residual_of_p, CASE_A[1], F(7, 50)),
        (p_without_the_token, CASE_A[1], F(7, 60)),
        (draw_again, CASE_A[1], F(1, 25)),
        (trimmed(rules.token, F(15, 100)), CASE_A[1], F(3, 50)),
        (trimmed(rules.token, F(25, 100)), CASE_A[1], F(11, 100)),
        (trimmed(rules.token, F(35, 100)), CASE_A[1], F(1, 8)),
    ],
)
def test_one_token_with_a_mistake_is_off_by_the_published_amount(mutant: Any, draft: Model, wanted: F) -> None:
    target = CASE_A[0]
    assert off(target, draft, mutant, 1) >= wanted - F(1, 1000)
    law = law_of(one_step(target, draft, mutant, length=1))
    first: dict[tuple[int, ...], F] = {}
    for emitted, chance in complete(law, target, 1).items():
        first[emitted[:1]] = first.get(emitted[:1], F(0)) + chance
    assert distance(first, plain(target, 1)) == wanted
    with pytest.raises(AssertionError, match="total variation"):
        assert_law(generation(target, draft, mutant, tokens=1, length=1), plain(target, 1))


@pytest.mark.parametrize(("length", "wanted"), [(2, 1 / 9), (3, 0.0617)])
def test_a_missing_cap_is_off_by_the_published_amount(length: int, wanted: float) -> None:
    assert float(off(*EXAMPLE, missing_cap, length)) == pytest.approx(wanted, abs=1e-4)


@pytest.mark.parametrize(("case", "wanted"), [(0, (0.031, 0.082)), (1, (0.158, 0.094)), (2, (0.048, 0.091))])
def test_a_missing_cap_on_the_models(case: int, wanted: tuple[float, float]) -> None:
    got = [float(off(*MODELS[case], missing_cap, length)) for length in (2, 3)]
    assert got == pytest.approx(wanted, abs=6e-4)


@pytest.mark.parametrize("case", range(len(MODELS)))
def test_stopping_a_little_too_often_is_caught(case: int) -> None:
    assert off(*MODELS[case], too_eager, GAMMA) > 0


@pytest.mark.parametrize("rule", [rules.token, rules.block])
def test_stale_penalties_are_caught(rule: Any) -> None:
    target = penalised(CASE_A[0])
    assert off(target, CASE_A[1], stale(rule, target), 2) > F(1, 50)
    assert off(target, CASE_A[1], rule, 2) == 0


@pytest.mark.parametrize("rule", [rules.token, rules.block])
def test_trimming_by_what_was_drafted_is_caught(rule: Any) -> None:
    assert off(*MODELS[0], trimmed(rule, F(1, 4)), 3) > F(1, 100)


# --- what leaks from one step into the next ---------------------------------------------------------------------------


def by_position(purposes: set[str]) -> Callable[[Key, Purpose, int], Key]:
    """Keys ``purposes`` by the token's own position, as ``nalar.sample`` would, instead of by the step."""

    def named(key: Key, purpose: Purpose, row: int) -> Key:
        assert key.position is not None
        return replace(key.at(key.position + row), purpose=purpose) if purpose in purposes else address(key, purpose, row)

    return named


def shared(key: Key, purpose: Purpose, row: int) -> Key:
    """The recovery draw reuses the draft's noise."""
    return address(key, "draft" if purpose == "recover" else purpose, row)


ALL = {"accept", "recover", "draft"}


@pytest.mark.parametrize("purposes", [ALL, {"accept", "recover"}, {"accept"}, {"draft"}])
def test_keys_by_position_are_caught_under_block(purposes: set[str]) -> None:
    target, draft = EXAMPLE if "draft" in purposes else (recipe(3, 5, 7, 2), recipe(2, 9, 4, 2))
    run = generation(target, draft, rules.block, tokens=4, length=2, address=by_position(purposes))
    got = float(distance(law_of(run), plain(target, 4)))
    assert got > (0.06 if "draft" in purposes else 0.02)
    with pytest.raises(AssertionError, match="total variation"):
        assert_law(run, plain(target, 4))


@pytest.mark.parametrize("rule", ["token", "follow"])
def test_keys_by_position_are_right_where_nothing_looks_ahead(rule: str) -> None:
    target, draft = EXAMPLE
    assert_law(generation(target, draft, rules.RULES[rule], tokens=4, length=2, address=by_position(ALL)), plain(target, 4))


@pytest.mark.parametrize("rule", ["token", "block"])
def test_noise_shared_by_draft_and_recovery_is_caught(rule: str) -> None:
    run = generation(*CASE_A, rules.RULES[rule], tokens=1, length=1, address=shared)
    with pytest.raises(AssertionError, match="total variation"):
        assert_law(run, plain(CASE_A[0], 1))


def test_noise_shared_with_follow_is_what_coupling_means() -> None:
    """A draft may share the target's noise where the rule is ``follow``: more is accepted, and the law stays."""

    def coupled(key: Key, purpose: Purpose, row: int) -> Key:
        return address(key, "draw" if purpose == "draft" else purpose, row)

    target, draft = EXAMPLE
    for how, least in ((coupled, F(2, 3)), (address, F(4, 9))):
        run = generation(target, draft, rules.follow, tokens=2, length=1, address=how)
        assert_law(run, plain(target, 2))
        law = law_of(lambda branches, how=how: _accepted(branches, how))  # type: ignore[misc]
        assert law[1] == least


def _accepted(branches: Branches, how: Any) -> int:
    random = branches.at(Key(0, position=0), how)
    p, q = (Table(model(())) for model in EXAMPLE)
    return rules.follow([p, p], [random.choose(q, "draft", 0)], [q], random).accepted


@pytest.mark.parametrize("attempt", [0, 1])
def test_the_same_key_after_a_rewind_is_caught(attempt: int) -> None:
    """Token 0 is drawn, found to be banned, and drawn again from what is left."""

    def run(branches: Branches) -> int:
        key = Key(0, position=0)
        drawn = branches.at(key).choose(Table(tenths(5, 3, 2)(())), "draw", 0)
        if drawn:
            return drawn
        return branches.at(replace(key, attempt=attempt)).choose(Table({1: F(3, 5), 2: F(2, 5)}), "draw", 0)

    law = law_of(run)
    assert law == ({1: F(3, 5), 2: F(2, 5)} if attempt else {1: F(4, 5), 2: F(1, 5)})


# --- the monitor ------------------------------------------------------------------------------------------------------


def contexts(count: int = 64, size: int = 50) -> list[tuple[Distribution, Distribution]]:
    """Laws of a target and of a draft that leans another way."""
    random = np.random.default_rng(5)
    pairs = []
    for _ in range(count):
        logits = random.normal(0, 2, size)
        pairs.append((_softmax(logits), _softmax(logits + random.normal(0, 1, size))))
    return pairs


def _softmax(logits: Any) -> Distribution:
    return nalar.Chain([]).distribution(logits)


def watched(emit: Callable[[Distribution, Distribution, Any], int], tokens: int, seed: int, **how: Any) -> Monitor:
    monitor, random, pairs = Monitor(**how), np.random.default_rng(seed), contexts()
    for _ in range(tokens):
        p, q = pairs[random.integers(len(pairs))]
        if monitor.observe(p, emit(p, q, random), q):
            break
    return monitor


def _draw(law: Distribution, random: Any) -> int:
    return int(random.choice(law.ids, p=law.probs))


def test_a_right_sampler_raises_no_alarm() -> None:
    for seed in range(3):
        monitor = watched(lambda p, q, random: _draw(p, random), 3000, seed, false_alarm=1e-9)
        assert not monitor.alarm
        assert monitor.tokens == 3000


def _recover_from_p(p: Distribution, q: Distribution, random: Any) -> int:
    x = _draw(q, random)
    return x if random.random() * q.prob(x) < p.prob(x) else _draw(p, random)


def _lenient(p: Distribution, q: Distribution, random: Any) -> int:
    x = _draw(q, random)
    if random.random() * q.prob(x) / 2 < p.prob(x):
        return x
    left = np.maximum(p.dense(50) - q.dense(50), 0)
    return int(random.choice(50, p=left / left.sum()))


def _too_cold(p: Distribution, q: Distribution, random: Any) -> int:
    return _draw(Distribution.from_probs(p.probs**1.3 / (p.probs**1.3).sum(), p.ids), random)


@pytest.mark.parametrize(("emit", "within"), [(_recover_from_p, 6000), (_lenient, 4000), (_too_cold, 4000)])
def test_a_wrong_sampler_is_found(emit: Any, within: int) -> None:
    monitor = watched(emit, within, 1)
    assert monitor.alarm, monitor.suspicions
    assert monitor.evidence > 13


def test_a_bet_is_fair_whatever_the_feature() -> None:
    p, q = contexts()[0]
    monitor = Monitor()
    for feature in monitor.features.values():
        values = feature(p, q)
        means = np.array([np.exp(monitor._log_bets(p.probs, values, place)) for place in range(p.ids.size)])
        assert np.allclose(p.probs @ np.broadcast_to(means.reshape(p.ids.size, -1), (p.ids.size, means[0].size)), 1)


def test_a_token_that_cannot_be_drawn_is_proof() -> None:
    monitor = Monitor()
    assert monitor.observe(Distribution.from_probs([0.5, 0.5]), 5)
    assert monitor.evidence == np.inf
    assert monitor.observe(Distribution.from_probs([0.5, 0.5]), 1)


def test_the_monitor_of_a_sampler_of_ones_own() -> None:
    seen = Monitor(features={"even": lambda law, draft: (law.ids % 2 == 0).astype(float)})
    law = Distribution.from_probs([0.25] * 4)
    for position in range(200):
        seen.observe(law, 2 * (law.draw(Key(3, position=position)) // 2))
    assert seen.alarm
    with pytest.raises(InvalidType, match=r"law must be a nalar\.Distribution"):
        seen.observe([0.5, 0.5], 1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="false_alarm must be a number"):
        Monitor(false_alarm=0)

