"""The law as an object: validation, its numbers against their formulas, and draws at the very ends of the uniform."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import nalar
from nalar import Chain, Distribution, Key
from nalar.errors import InvalidType, InvalidValue
from strategies import cases, rows

HALVES = Distribution.from_probs([0.5, 0.0, 0.25, 0.25])


@st.composite
def laws(draw: st.DrawFn) -> Distribution:
    """A sparse law over some of 60 ids, its probabilities multiples of 1/n, or down to 1e-200."""
    ids = draw(st.lists(st.integers(0, 59), min_size=1, max_size=12, unique=True))
    entry = st.integers(1, 9) | st.just(1e-200) | st.floats(1e-3, 1)
    mass = np.array([draw(entry) for _ in ids], float)
    return Distribution.from_probs(mass / mass.sum(), ids)


@given(laws())
def test_ids_ascend_and_probs_sum_to_one(law: Distribution) -> None:
    assert (law.ids.dtype, law.probs.dtype, law.logprobs.dtype) == (np.int32, np.float64, np.float64)
    assert (np.diff(law.ids) > 0).all()
    assert (law.probs > 0).all()
    assert abs(math.fsum(law.probs.tolist()) - 1) <= 1e-12


@given(cases())
def test_the_law_of_a_chain_is_ascending_positive_and_sums_to_one(case: Any) -> None:
    try:
        law = case.chain.distribution(case.row, case.history)
    except nalar.NalarError:
        assume(False)
    assert (law.ids.dtype, law.probs.dtype, law.logprobs.dtype) == (np.int32, np.float64, np.float64)
    assert (np.diff(law.ids) > 0).all()
    assert (law.probs > 0).all()
    assert abs(math.fsum(law.probs.tolist()) - 1) <= 1e-12


def test_from_probs_takes_dense_and_sparse() -> None:
    assert (HALVES.ids.tolist(), HALVES.probs.tolist()) == ([0, 2, 3], [0.5, 0.25, 0.25])
    sparse = Distribution.from_probs(np.array([0.75, 0.25], np.float32), ids=[299_999, 7])
    assert (sparse.ids.tolist(), sparse.probs.tolist()) == ([7, 299_999], [0.25, 0.75])


def test_from_probs_copies_what_it_is_given() -> None:
    probs, ids = np.array([0.5, 0.5]), np.array([4, 9], np.int32)
    law = Distribution.from_probs(probs, ids)
    probs[:], ids[:] = [1, 0], [0, 0]
    assert (law.ids.tolist(), law.probs.tolist()) == ([4, 9], [0.5, 0.5])
    assert probs.flags.writeable
    assert ids.flags.writeable


def test_from_probs_divides_by_the_sum() -> None:
    law = Distribution.from_probs([0.5, 0.5 + 5e-7])
    assert abs(law.probs.sum() - 1) < 1e-15
    assert law.prob(0) == 0.5 / (1 + 5e-7)


@pytest.mark.parametrize(
    "probs", [[0.5, 0.4], [0.5, 0.6], [1.5, -0.5], [0.5, math.nan], [math.inf, 0.5], [], [[0.5, 0.5]], [0.0, 0.0], 1.0, [0.5, 0.5 + 2e-6]]
)
def test_probs_that_are_no_distribution_are_an_error(probs: Any) -> None:
    with pytest.raises(InvalidValue, match="probs must"):
        Distribution.from_probs(probs)


@pytest.mark.parametrize("probs", [["0.5", "0.5"], [True, False], None, [None, 1.0], [0.5 + 0j, 0.5], np.array([0.5 + 0j, 0.5]), {0: 1.0}])
def test_probs_of_the_wrong_type_are_an_error(probs: Any) -> None:
    with pytest.raises(InvalidType, match="probs must"):
        Distribution.from_probs(probs)


@pytest.mark.parametrize("ids", [[1], [1, 1], [0, -1], [0, 2**31], [1, 2, 3], []])
def test_ids_that_do_not_fit_are_an_error(ids: Any) -> None:
    with pytest.raises(InvalidValue, match="ids must"):
        Distribution.from_probs([0.5, 0.5], ids)


@pytest.mark.parametrize("ids", [[0.0, 1.0], ["a", "b"], 3, "ab", [True, False], [2, True]])
def test_ids_of_the_wrong_type_are_an_error(ids: Any) -> None:
    with pytest.raises(InvalidType, match="ids must"):
        Distribution.from_probs([0.5, 0.5], ids)


@given(laws(), st.integers(0, 70))
def test_prob_logprob_and_rank_follow_their_formulas(law: Distribution, token: int) -> None:
    probs = dict(zip(law.ids.tolist(), law.probs.tolist(), strict=True))
    mine = probs.get(token, 0.0)
    assert law.prob(token) == mine
    assert law.logprob(token) == (pytest.approx(math.log(mine), rel=1e-12, abs=1e-12) if mine else -math.inf)
    better = sum(prob > mine for prob in probs.values())
    assert law.rank(token) == 1 + better + sum(probs.get(lower, 0.0) == mine for lower in range(token))


def test_ranks_put_the_lower_id_first_among_equals() -> None:
    assert [HALVES.rank(token) for token in range(6)] == [1, 4, 2, 3, 5, 6]
    assert HALVES.top(3).tolist() == [0, 2, 3]
    assert HALVES.top(99).tolist() == [0, 2, 3]
    assert HALVES.top(0).tolist() == []


@given(laws(), st.integers(0, 14))
def test_top_is_the_order_of_the_ranks(law: Distribution, n: int) -> None:
    expected = sorted(law.ids.tolist(), key=lambda token: (-law.prob(token), token))[:n]
    assert law.top(n).tolist() == expected
    assert [law.rank(token) for token in expected] == list(range(1, len(expected) + 1))


@pytest.mark.parametrize("token", [-1, 2**31, True, 1.0, "1"])
def test_a_token_that_is_no_id_is_an_error(token: Any) -> None:
    for question in (HALVES.prob, HALVES.logprob, HALVES.rank):
        with pytest.raises((InvalidValue, InvalidType), match=r"token must be an integer in \[0, 2147483647\]"):
            question(token)


@given(laws())
def test_entropy_is_minus_the_sum_of_p_log_p_in_nats(law: Distribution) -> None:
    assert law.entropy() == pytest.approx(-math.fsum(p * math.log(p) for p in law.probs.tolist()), rel=1e-12, abs=1e-12)
    assert 0 <= law.entropy() <= math.log(law.ids.size) + 1e-12


def test_a_certain_token_has_no_entropy() -> None:
    assert math.copysign(1, Chain.parse("temperature(0)").distribution([1.0, 2.0]).entropy()) == 1
    assert Chain([]).distribution([7.0]).entropy() == 0


@given(laws())
def test_dense_has_every_probability_in_its_place(law: Distribution) -> None:
    dense = law.dense(61)
    assert dense.dtype == np.float64
    assert dense.tolist() == [law.prob(token) for token in range(61)]


def test_dense_must_have_room() -> None:
    assert HALVES.dense(4).tolist() == [0.5, 0, 0.25, 0.25]
    with pytest.raises(InvalidValue, match="size must be an integer >= 4, got 3"):
        HALVES.dense(3)


@given(laws(), laws())
def test_tv_and_kl_follow_their_formulas(law: Distribution, other: Distribution) -> None:
    pairs = [(law.prob(token), other.prob(token)) for token in range(60)]
    assert law.tv(other) == pytest.approx(math.fsum(abs(p - q) for p, q in pairs) / 2, rel=1e-12, abs=1e-15)
    assert law.tv(other) == other.tv(law) <= 1 + 1e-15
    if any(p > 0 and q == 0 for p, q in pairs):
        assert law.kl(other) == math.inf
    else:
        expected = math.fsum(p * (math.log(p) - math.log(q)) for p, q in pairs if p > 0)
        assert law.kl(other) == pytest.approx(expected, rel=1e-9, abs=1e-12)
        assert law.kl(other) >= 0
    assert law.tv(law) == law.kl(law) == 0


def test_a_token_that_underflows_vanishes() -> None:
    law = Chain([]).distribution([0.0, -700.0, -744.0, -746.0, -1000.0, -math.inf])
    assert law.ids.tolist() == [0, 1, 2]
    assert law.prob(4) == 0
    assert law.logprob(4) == -math.inf


def test_a_logprob_is_exact_where_its_probability_is_tiny() -> None:
    """From the logits, not from the probability, which near 1e-320 has a few bits only."""
    law = Chain([]).distribution([0.0, -740.0])
    assert law.logprob(1) == pytest.approx(-740, rel=1e-15)
    assert abs(math.log(law.prob(1)) + 740) > 1e-4
    assert Chain([]).distribution([0.0, -40.0]).logprob(0) == pytest.approx(-math.exp(-40), rel=1, abs=1e-16)


@given(rows(2, 20))
def test_logprobs_are_the_log_softmax(row: Any) -> None:
    law = Chain([]).distribution(row)
    logits = row.astype(np.float64)[law.ids].tolist()
    total = max(logits) + math.log(math.fsum(math.exp(logit - max(logits)) for logit in row.astype(np.float64).tolist()))
    assert law.logprobs.tolist() == pytest.approx([logit - total for logit in logits], rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("law", [HALVES, Chain([]).distribution([0.0, 1.0])])
def test_arrays_are_read_only(law: Distribution) -> None:
    for array in (law.ids, law.probs, law.logprobs):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1


@given(laws(), st.floats(0, 1, exclude_max=True))
def test_an_inverse_draw_is_the_first_token_whose_cumulative_exceeds_the_uniform(law: Distribution, uniform: float) -> None:
    with mock.patch.object(Key, "uniform", return_value=uniform):
        token = law.draw(Key(1, position=0))
    reached = Fraction(0)
    total = sum(map(Fraction, law.probs.tolist()))
    expected = []
    for candidate, prob in zip(law.ids.tolist(), law.probs.tolist(), strict=True):
        reached += Fraction(prob) / total
        assume(abs(reached - Fraction(uniform)) > Fraction(1, 10**14))
        expected += [candidate] if reached > uniform else []
    assert token == expected[0]


@pytest.mark.parametrize(("uniform", "token"), [(0.0, 0), (0.5 - 2**-53, 0), (0.5, 2), (0.75, 3), (1 - 2**-53, 3)])
def test_an_inverse_draw_at_its_boundaries(uniform: float, token: int) -> None:
    with mock.patch.object(Key, "uniform", return_value=uniform):
        assert HALVES.draw(Key(1, position=0)) == token


@given(laws(), st.sampled_from([0.0, 1 - 2**-53]))
def test_the_extreme_uniforms_draw_a_token_of_the_law(law: Distribution, uniform: float) -> None:
    with mock.patch.object(Key, "uniform", return_value=uniform):
        token = law.draw(Key(1, position=0))
    assert law.prob(token) > 0
    assert uniform > 0 or token == law.ids[0]


@given(laws(), st.integers(0, 2**64 - 1))
def test_a_race_is_won_by_the_largest_log_p_plus_gumbel_noise(law: Distribution, seed: int) -> None:
    noise = dict(zip(law.ids.tolist(), Key(seed, position=0).noise(law.ids).tolist(), strict=True))
    scores = {token: math.log(law.prob(token)) - math.log(-math.log(noise[token])) for token in noise}
    assert law.draw(Key(seed, position=0), "race") == max(scores, key=lambda token: scores[token])


def test_laws_that_share_a_key_race_to_the_same_token_where_they_agree() -> None:
    law, other = Distribution.from_probs([0.5, 0.3, 0.2]), Distribution.from_probs([0.3, 0.5, 0.2], ids=[1, 0, 7])
    together = [(law.draw(Key(1, position=n), "race"), other.draw(Key(1, position=n), "race")) for n in range(400)]
    assert all(theirs == mine for mine, theirs in together if mine != 2 and theirs != 7)
    assert sum(theirs == mine for mine, theirs in together) > 200


@pytest.mark.parametrize("draw", ["gumbel", None, 1, []])
def test_an_unknown_way_to_draw_is_an_error(draw: Any) -> None:
    with pytest.raises(InvalidValue, match="draw must be one of 'inverse', 'race', got"):
        HALVES.draw(Key(1, position=0), draw)


def test_tv_and_kl_cost_what_the_laws_hold_and_not_their_largest_id() -> None:
    """Densely, 2³¹ ids would take 32 GiB."""
    far, near = Distribution.from_probs([0.75, 0.25], ids=[2**31 - 1, 4]), Distribution.from_probs([0.5, 0.5], ids=[4, 2**31 - 1])
    assert (far.tv(near), near.tv(far), far.tv(far)) == (0.25, 0.25, 0.0)
    assert far.kl(near) == pytest.approx(0.75 * math.log(1.5) + 0.25 * math.log(0.5))


def test_a_wrong_argument_is_an_error() -> None:
    for measure in (HALVES.tv, HALVES.kl):
        with pytest.raises(InvalidType, match=r"other must be a nalar\.Distribution, got \[1\.0\]"):
            measure([1.0])  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match="draw must be one of"):
        HALVES.draw(Key(1), np.array(["inverse", "race"]))  # type: ignore[arg-type]
    for n in (-1, 1.5, True):
        with pytest.raises((InvalidValue, InvalidType), match="n must be an integer >= 0"):
            HALVES.top(n)  # type: ignore[arg-type]
    with pytest.raises(InvalidType, match=r"key must be a nalar\.Key, got 7"):
        HALVES.draw(7)  # type: ignore[arg-type]


def test_logits_at_the_ends_of_double_precision_have_a_law() -> None:
    assert Chain([]).distribution([1.7e308, -1.7e308]).probs.tolist() == [1.0]
    assert Chain.parse("temperature(3e-307)").distribution([50.0, -50.0]).ids.tolist() == [0]


def test_a_held_law_outlives_its_logits() -> None:
    row = np.log([0.5, 0.25, 0.25])
    law = Chain([]).distribution(row).hold()
    row[:] = 0
    assert law.probs.tolist() == [0.5, 0.25, 0.25]
    assert "ids=[0, 1, 2]" in repr(law)
