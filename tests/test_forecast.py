"""The published table of expected tokens and speed-ups."""

from __future__ import annotations

import pytest

from nalar.speculative.forecast import best_length, speedup, tokens_per_step

TOKENS = {
    0.5: [1.5, 1.75, 1.875, 1.9375, 1.96875, 1.992188, 1.996094],
    0.6: [1.6, 1.96, 2.176, 2.3056, 2.38336, 2.45801, 2.474806],
    0.7: [1.7, 2.19, 2.533, 2.7731, 2.94117, 3.141173, 3.198821],
    0.8: [1.8, 2.44, 2.952, 3.3616, 3.68928, 4.161139, 4.328911],
    0.9: [1.9, 2.71, 3.439, 4.0951, 4.68559, 5.695328, 6.125795],
}


@pytest.mark.parametrize("acceptance", TOKENS)
def test_tokens_per_step(acceptance: float) -> None:
    got = [tokens_per_step(acceptance, length) for length in (1, 2, 3, 4, 5, 7, 8)]
    assert got == pytest.approx(TOKENS[acceptance], abs=1e-6)


@pytest.mark.parametrize(
    ("acceptance", "cost", "length", "gain"),
    [(0.6, 0.05, 4, 1.921), (0.6, 0.2, 2, 1.400), (0.7, 0.1, 4, 1.981), (0.8, 0.05, 8, 3.092), (0.9, 0.1, 10, 3.431), (0.9, 0.2, 7, 2.373)],
)
def test_best_lengths(acceptance: float, cost: float, length: int, gain: float) -> None:
    assert best_length(acceptance, cost) == length
    assert speedup(acceptance, length, cost) == pytest.approx(gain, abs=5e-4)


def test_a_draft_pays_only_if_it_is_accepted_more_often_than_it_costs() -> None:
    for cost in (0.1, 0.3, 0.6):
        assert best_length(cost - 0.02, cost) == 0
        assert best_length(cost + 0.02, cost) > 0
    assert tokens_per_step(1.0, 4) == 5
    with pytest.raises(ValueError, match="acceptance must be a number"):
        tokens_per_step(1.1, 4)
