"""Draws follow their law: G-tests whose false-alarm rate is 1e-9 each, and broken draws that the same tests must catch.

Keys are fixed, so a test that passes once passes always; 1e-9 is the chance that a *correct* generator would ever have
failed one.  ``test_the_tests_have_the_power_they_claim`` says what they can see.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from nalar import Chain, Distribution, History, Key, Sampler

FALSE_ALARM = 1e-9
DRAWS = 4_000
SMALLEST = 10  # expected draws in a cell; rarer tokens share one

Probs = npt.NDArray[np.float64]

LAWS = {
    "even": Distribution.from_probs([0.25] * 4),
    "skew": Chain.parse("top_k(6) | temperature(0.7)").distribution([1.0, 3.0, 2.5, -1.0, 0.0, 2.0, 1.5]),
    "nucleus": Chain.parse("repetition(1.3) | top_p(0.9)").distribution(np.linspace(2, -2, 30), History([0, 4], [2])),
    "sparse": Chain.parse("min_p(0.1)").distribution(np.log([0.3, 0.001, 0.25, 0.002, 0.2, 0.05, 0.197])),
    "rare first": Distribution.from_probs([0.005, 0.01, 0.985], ids=[8, 9, 70_000]),
    "wide": Chain([]).distribution(np.sin(np.arange(300.0))),
}

# How the n-th key differs from the others.
AXES: dict[str, Callable[[int], Key]] = {
    "position": lambda n: Key(7, position=n),
    "sequence": lambda n: Key(7, sequence=n, position=3),
    "attempt": lambda n: Key(7, position=3, attempt=n),
    "seed": lambda n: Key(n, position=3),
    "high half of the seed": lambda n: Key(n << 32, position=0),
    "draft index": lambda n: Key(7, position=3).draft(n),
    "draft step": lambda n: Key(7, position=n).draft(2),
}


def g_test(counts: Any, probs: Any, lost: int = 0) -> bool:
    """Whether ``counts`` are draws from ``probs``: 2 Σ observed · log(observed / expected) against χ² at the false-alarm rate."""
    observed, expected = np.asarray(counts, float).ravel(), np.asarray(probs, float).ravel() * np.sum(counts)
    assert abs(np.sum(probs) - 1) < 1e-9
    order = np.argsort(expected)
    rare = np.cumsum(expected[order]) < SMALLEST
    together, alone = order[: rare.sum() + 1], order[rare.sum() + 1 :]
    observed = np.append(observed[alone], observed[together].sum())
    expected = np.append(expected[alone], expected[together].sum())
    seen = observed > 0
    statistic = 2 * (observed[seen] * np.log(observed[seen] / expected[seen])).sum()
    return bool(statistic < stats.chi2.isf(FALSE_ALARM, observed.size - 1 - lost))


def fits(law: Distribution, tokens: Sequence[int]) -> bool:
    places = np.searchsorted(law.ids, tokens)
    assert (law.ids[places] == tokens).all()
    return g_test(np.bincount(places, minlength=law.ids.size), law.probs)


def independent(first: Sequence[int], second: Sequence[int], law: Probs) -> bool:
    """Whether pairs are draws from the product of ``law`` with itself."""
    table = np.zeros((law.size, law.size))
    np.add.at(table, (np.asarray(first), np.asarray(second)), 1)
    return g_test(table, np.outer(law, law))


def test_the_tests_have_the_power_they_claim() -> None:
    """With 4,000 draws, 0.06 of probability moved between two of four even tokens is seen with probability above 0.9999, and so is
    0.08 moved between two of six tokens."""
    for probs, moved in ([0.25] * 4, 0.06), ([1 / 3, 1 / 3, 1 / 12, 1 / 12, 1 / 12, 1 / 12], 0.08):
        wrong = np.add(probs, [moved, -moved, *[0] * (len(probs) - 2)])
        strength = 2 * DRAWS * (wrong * np.log(wrong / probs)).sum()
        power = stats.ncx2.sf(stats.chi2.isf(FALSE_ALARM, len(probs) - 1), len(probs) - 1, strength)
        assert power > 0.9999


@pytest.mark.parametrize("draw", ["inverse", "race"])
@pytest.mark.parametrize("name", LAWS)
def test_draws_follow_their_law(name: str, draw: Any) -> None:
    assert fits(LAWS[name], [LAWS[name].draw(Key(11, position=n), draw) for n in range(DRAWS)])


@pytest.mark.parametrize("draw", ["inverse", "race"])
@pytest.mark.parametrize("axis", AXES)
def test_draws_follow_their_law_whatever_the_keys_differ_in(axis: str, draw: Any) -> None:
    assert fits(LAWS["skew"], [LAWS["skew"].draw(AXES[axis](n), draw) for n in range(DRAWS)])


@pytest.mark.parametrize("draw", ["inverse", "race"])
@pytest.mark.parametrize("axis", AXES)
def test_neighbours_are_independent(axis: str, draw: Any) -> None:
    tokens = [LAWS["even"].draw(AXES[axis](n), draw) for n in range(DRAWS)]
    assert independent(tokens[::2], tokens[1::2], LAWS["even"].probs)


def test_the_purposes_of_one_key_are_independent() -> None:
    names = ("draw", "accept", "recover", "draft", "coin 0", "coin 1", "noise 0", "noise 1", "noise 2")
    columns: dict[str, list[int]] = {name: [] for name in names}
    for n in range(DRAWS // 2):
        key = Key(5, position=n)
        uniforms = [*map(key.uniform, ("draw", "accept", "recover", "draft")), key.coin(0), key.coin(1), *key.noise(np.arange(3))]
        for column, uniform in zip(columns.values(), uniforms, strict=True):
            column.append(int(uniform * 4))
    for first, second in itertools.combinations(columns, 2):
        assert independent(columns[first], columns[second], np.full(4, 0.25)), (first, second)


def test_the_two_ways_to_draw_share_no_randomness() -> None:
    law = LAWS["even"]
    both = [[law.draw(Key(2, position=n), draw) for n in range(DRAWS // 2)] for draw in ("inverse", "race")]
    assert independent(both[0], both[1], law.probs)


def test_uniforms_are_even_at_both_ends_of_their_53_bits() -> None:
    bits = [int(Key(3, position=n).uniform() * 2**53) for n in range(DRAWS)]
    for shift in (49, 24, 0):
        assert g_test(np.bincount([value >> shift & 15 for value in bits], minlength=16), np.full(16, 1 / 16))


# --- rewinding: the same uniform again would be biased ---------------------------------------------------------------

LOGITS, AFTER_BAN = np.log([0.5, 0.3, 0.2]), np.array([0.0, 0.6, 0.4])


def with_rewind(seed: int, *, next_attempt: bool) -> int:
    """Draw from (.5, .3, .2); token 0 is found to be banned, so take it back and draw from (.6, .4)."""
    sampler = Sampler(Chain([]), seed=seed)
    token = sampler.sample(LOGITS).token
    if token:
        return token
    sampler.rollback(1)
    if next_attempt:
        sampler.redraw()
    sampler.chain = Chain.parse("ban([0])")
    return sampler.sample(LOGITS).token


def test_redraw_gives_the_law_after_a_rewind() -> None:
    tokens = [with_rewind(seed, next_attempt=True) for seed in range(DRAWS // 2)]
    assert fits(Distribution.from_probs(AFTER_BAN), tokens)


def test_broken_the_same_key_after_a_rewind_is_caught() -> None:
    """A uniform below .5 is below .6 too: token 1 always, .80 instead of .60."""
    tokens = [with_rewind(seed, next_attempt=False) for seed in range(DRAWS // 2)]
    assert not fits(Distribution.from_probs(AFTER_BAN), tokens)
    assert fits(Distribution.from_probs([0.0, 0.8, 0.2]), tokens)


# --- broken draws: the tests above must fail on each -----------------------------------------------------------------


def off_by_one(law: Distribution, key: Key) -> int:
    """Searches the cumulative distribution that starts with 0, which puts every token one place too far."""
    starts = np.cumsum(law.probs) - law.probs
    return int(law.ids[min(np.searchsorted(starts, key.uniform()), law.ids.size - 1)])


def without_the_last(law: Distribution, key: Key) -> int:
    """Leaves out the last token of the law."""
    reached = np.cumsum(law.probs[:-1])
    return int(law.ids[np.searchsorted(reached, key.uniform() * reached[-1])])


def uniform_noise(law: Distribution, key: Key) -> int:
    """A race with uniform instead of Gumbel noise."""
    return int(law.ids[np.argmax(np.log(law.probs) + key.noise(law.ids))])


def one_noise_for_a_pair(law: Distribution, key: Key) -> int:
    """A race in which tokens 2t and 2t + 1 share their noise."""
    return int(law.ids[np.argmax(np.log(law.probs) - np.log(-np.log(key.noise(law.ids // 2 * 2))))])


def squared(law: Distribution, key: Key) -> int:
    """A product of two uniforms is not uniform."""
    return int(law.ids[np.searchsorted(np.cumsum(law.probs[:-1]), key.uniform() * key.uniform("accept"))])


@pytest.mark.parametrize("broken", [off_by_one, without_the_last, uniform_noise, one_noise_for_a_pair, squared])
@pytest.mark.parametrize("name", ["skew", "sparse"])
def test_a_broken_draw_is_caught(broken: Callable[[Distribution, Key], int], name: str) -> None:
    assert not fits(LAWS[name], [broken(LAWS[name], Key(11, position=n)) for n in range(DRAWS)])


@pytest.mark.parametrize("draw", ["inverse", "race"])
def test_broken_noise_shared_between_positions_is_caught(draw: Any) -> None:
    """Each draw alone is right; only the pairs tell."""
    law = LAWS["even"]
    tokens = [law.draw(Key(7, position=n // 2), draw) for n in range(DRAWS)]
    assert not independent(tokens[::2], tokens[1::2], law.probs)
    assert fits(law, tokens[::2])


def test_broken_uniforms_shared_by_draft_and_accept_are_caught() -> None:
    draft = [int(Key(5, position=n).uniform("draft") * 4) for n in range(DRAWS // 2)]
    assert not independent(draft, draft, np.full(4, 0.25))


def test_broken_uniforms_of_single_precision_are_caught() -> None:
    """24 bits leave the low ones 0; and where tokens are rarer than 2⁻²⁴ they decide who is drawn."""
    bits = [int(float(np.float32(Key(3, position=n).uniform())) * 2**53) for n in range(DRAWS)]
    assert not g_test(np.bincount([value & 15 for value in bits], minlength=16), np.full(16, 1 / 16))
