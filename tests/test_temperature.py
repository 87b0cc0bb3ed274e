"""Temperature divides, keeps the order, is greedy at 0, and takes the limit where a quotient overflows."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from nalar import Chain, NalarError
from nalar.stages import Temperature

INF = math.inf
LN2 = math.log(2)
ROWS = st.lists(st.floats(-50, 50) | st.sampled_from([0.0, 1.0, -INF]), min_size=1, max_size=12).filter(lambda row: max(row) > -INF)


def law(value: float, row: list[float]) -> Any:
    return Chain([Temperature(value)]).distribution(row)


def logits(value: float, row: list[float]) -> list[float]:
    return Chain([Temperature(value)]).candidates(row).logits.tolist()


def test_it_divides_the_logits() -> None:
    assert logits(0.5, [1.0, -2.0, 0.0, -INF]) == [2.0, -4.0, 0.0, -INF]
    assert logits(3.0, [1.0, 5.0]) == [1.0 / 3.0, 5.0 / 3.0]  # division, not multiplication by 1/T
    assert 5.0 / 3.0 != 5.0 * (1 / 3.0)


def test_it_is_a_power_of_the_probabilities() -> None:
    probs = law(0.5, [LN2, 0.0, 0.0]).probs  # (2, 1, 1)² = (4, 1, 1)
    assert probs == pytest.approx([4 / 6, 1 / 6, 1 / 6], rel=1e-14)
    assert law(2.0, [2 * LN2, 0.0]).probs == pytest.approx([2 / 3, 1 / 3], rel=1e-14)


@given(ROWS)
def test_one_is_the_identity(row: list[float]) -> None:
    assert logits(1, row) == row


@given(ROWS, st.floats(1e-3, 1e3))
def test_it_never_reorders_and_equals_the_formula(row: list[float], value: float) -> None:
    scaled = logits(value, row)
    assert scaled == [logit / value for logit in row]
    order = sorted(range(len(row)), key=lambda token: row[token])
    assert all(scaled[low] <= scaled[high] for low, high in pairwise(order))
    top = max(scaled)
    total = math.fsum(math.exp(logit - top) for logit in scaled)
    for token, logit in enumerate(scaled):
        assert law(value, row).prob(token) == pytest.approx(math.exp(logit - top) / total, rel=1e-12, abs=0)


@given(ROWS)
def test_zero_is_greedy_and_the_lowest_id_wins_a_tie(row: list[float]) -> None:
    drawn = law(0, row)
    assert drawn.ids.tolist() == [row.index(max(row))]
    assert drawn.probs.tolist() == [1.0]
    assert law(-0.0, row).ids.tolist() == drawn.ids.tolist()


def test_zero_masks_and_does_not_remove() -> None:
    candidates = Chain([Temperature(0)]).candidates([1.0, 3.0, 3.0])
    assert candidates.ids.tolist() == [0, 1, 2]
    assert candidates.logits[0] == candidates.logits[2] == -INF


@pytest.mark.parametrize("value", [1e-320, 5e-324, 1e-308, 1e-300])
@pytest.mark.parametrize(
    ("row", "maxima"),
    [
        ([50.0, -50.0, 50.0], [0, 2]), ([-50.0, -49.0], [1]), ([1e300, -1e300, 0.0], [0]), ([-1e300, -1e300, -INF], [0, 1]),
        ([0.0, -1e-5, -50.0], [0]), ([1e300, 9e299], [0]), ([-INF, -1.0], [1]), ([-1.7e308, 1.7e308], [1]),
    ],
)
def test_where_a_quotient_overflows_the_maxima_share_everything(value: float, row: list[float], maxima: list[int]) -> None:
    drawn = law(value, row)
    assert drawn.ids.tolist() == maxima
    assert drawn.probs.tolist() == [1 / len(maxima)] * len(maxima)
    assert max(logits(value, row)) == 0.0 or math.isfinite(max(logits(value, row)))


def test_the_limit_counts_the_maxima_as_equals() -> None:
    assert logits(1e-320, [50.0, -50.0, 50.0, -INF]) == [0.0, -INF, 0.0, -INF]


@pytest.mark.parametrize("value", [1e300, 1.7e308])
def test_a_huge_temperature_is_the_uniform_law_over_what_is_left(value: float) -> None:
    assert law(value, [50.0, -50.0, -INF, 3.0]).probs.tolist() == [1 / 3] * 3


@given(ROWS)
def test_greedy_is_the_limit_of_a_small_temperature(row: list[float]) -> None:
    ranked = sorted(row, reverse=True)
    assume(len(row) == 1 or ranked[0] - ranked[1] > 1e-6)
    assert law(1e-9, row).ids.tolist() == law(0, row).ids.tolist()


@pytest.mark.parametrize("value", [-1.0, -5e-324, math.nan, INF, "1", True, None])
def test_values_outside_are_refused(value: Any) -> None:
    with pytest.raises(NalarError, match="temperature must be a finite number >= 0"):
        Temperature(value)


def test_the_value_is_stored_as_a_float() -> None:
    assert Temperature(np.float32(0.5)) == Temperature(0.5)
    assert (type(Temperature(2).value), str(Chain([Temperature(2)]))) == (float, "temperature(2.0)")
