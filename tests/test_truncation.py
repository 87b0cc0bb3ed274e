"""Top-k, top-p and min-p: boundaries, ties and every variant, against examples by hand and a plain restatement."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nalar import Chain, NalarError
from nalar.stages import MinP, Temperature, TopK, TopP

INF = math.inf
LN2 = math.log(2)
SMALL = [0.0, -1 * LN2, -2 * LN2, -4 * LN2, -INF]  # weights 1, 1/2, 1/4, 1/16 exactly (the first test) and 0
ROWS = st.lists(st.sampled_from(SMALL), max_size=10).flatmap(lambda rest: st.permutations([0.0, *rest]))
VARIANTS = list(itertools.product([True, False], ["stop", "continue"], ["first", "all"], ["renormalised", "original"]))


def test_the_weights_here_are_exact_in_binary() -> None:
    assert np.exp(SMALL * 9).tolist() == [1.0, 0.5, 0.25, 0.0625, 0.0] * 9
    assert [math.exp(logit) for logit in SMALL] == [1.0, 0.5, 0.25, 0.0625, 0.0]


def kept(row: list[float], *stages: Any) -> list[int]:
    return Chain(stages).candidates(row).ids.tolist()


def ranked(row: list[float]) -> list[int]:
    return sorted(range(len(row)), key=lambda token: (-row[token], token))


def with_ties(row: list[float], chosen: list[int], ties: str) -> list[int]:
    """``chosen``, most likely first; with "all", also what equals the last of them."""
    more = [token for token in range(len(row)) if ties == "all" and row[token] == row[chosen[-1]]]
    return sorted({*chosen, *more})


def slow_top_k(row: list[float], k: int, ties: str) -> list[int]:
    return list(range(len(row))) if k == 0 or k >= len(row) else with_ties(row, ranked(row)[:k], ties)


def slow_top_p(row: list[float], p: float, crossing: bool, at_equality: str, ties: str, total: float | None = None) -> list[int]:
    """Walk down the ranking until the mass is reached: ≥ p where equality stops, > p where it goes on."""
    weights = [math.exp(logit - max(row)) for logit in row]
    target = p * (sum(weights) if total is None else total)
    chosen, mass = [], 0.0
    for token in ranked(row):
        chosen.append(token)
        mass += weights[token]
        if mass > target or (mass == target and at_equality == "stop"):
            if not crossing and len(chosen) > 1:
                chosen.pop()
            break
    return list(range(len(row))) if p >= 1 else with_ties(row, chosen, ties)


# --- top-k -----------------------------------------------------------------------------------------------------------


@given(ROWS, st.integers(0, 12), st.sampled_from(["first", "all"]))
def test_top_k_equals_its_restatement(row: list[float], k: int, ties: Any) -> None:
    assert kept(row, TopK(k, ties=ties)) == slow_top_k(row, k, ties)


def test_top_k_keeps_exactly_k_lowest_ids_first_or_every_equal() -> None:
    row = [1.0, 3.0, 1.0, 0.0, 1.0]
    assert kept(row, TopK(2)) == [0, 1]
    assert kept(row, TopK(3)) == [0, 1, 2]
    assert kept(row, TopK(2, ties="all")) == [0, 1, 2, 4]
    assert kept(row, TopK(4, ties="all")) == [0, 1, 2, 4]


@pytest.mark.parametrize("k", [0, 3, 4, 10**9, 2**70])
def test_top_k_of_none_or_of_all_is_the_identity(k: int) -> None:
    assert kept([0.0, 1.0, -INF], TopK(k)) == [0, 1, 2]


def test_top_k_counts_masked_tokens_last() -> None:
    row = [-INF, 0.0, -INF, 0.0, -INF]
    assert kept(row, TopK(2)) == [1, 3]
    assert kept(row, TopK(3)) == [0, 1, 3]
    assert kept(row, TopK(3, ties="all")) == [0, 1, 2, 3, 4]
    assert Chain([TopK(3)]).distribution(row).probs.tolist() == [0.5, 0.5]


def test_top_k_after_a_truncation_counts_what_is_left() -> None:
    assert kept([0.0, 0.0, 0.0, -1.0], TopP(0.5), TopK(1)) == [0]
    assert kept([5.0, 4.0, 3.0, 2.0], TopK(3), TopK(2), TopK(3)) == [0, 1]


# --- top-p -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("crossing", "at_equality", "ties", "mass"), VARIANTS)
@given(row=ROWS, p=st.sampled_from([0.0, 0.25, 0.5, 0.75, 0.9375, 1.0, 0.3, 0.9, 1 - 2**-53]))
def test_top_p_equals_its_restatement(crossing: bool, at_equality: Any, ties: Any, mass: Any, row: list[float], p: float) -> None:
    assert kept(row, TopP(p, crossing, at_equality, ties, mass)) == slow_top_p(row, p, crossing, at_equality, ties)


@pytest.mark.parametrize(("crossing", "at_equality", "ties", "mass"), VARIANTS)
@given(row=ROWS, k=st.integers(1, 6), p=st.sampled_from([0.1234, 0.3142, 0.618, 0.7072, 0.9137]))  # far from any mass here
def test_top_p_after_top_k(crossing: bool, at_equality: Any, ties: Any, mass: Any, row: list[float], k: int, p: float) -> None:
    first = slow_top_k(row, k, "first")
    left = [row[token] for token in first]
    total = sum(math.exp(logit - max(row)) for logit in (row if mass == "original" else left))
    expected = [first[place] for place in slow_top_p(left, p, crossing, at_equality, ties, total)]
    assert kept(row, TopK(k), TopP(p, crossing, at_equality, ties, mass)) == expected


EQUALITY = [0.0, -LN2, -2 * LN2, -2 * LN2]  # weights 1, 1/2, 1/4, 1/4 of 2


@pytest.mark.parametrize(
    ("p", "crossing", "at_equality", "ties", "expected"),
    [
        (0.75, True, "stop", "first", [0, 1]), (0.75, True, "continue", "first", [0, 1, 2]), (0.75, True, "continue", "all", [0, 1, 2, 3]),
        (0.75, False, "stop", "first", [0]), (0.75, False, "continue", "first", [0, 1]), (0.75, True, "stop", "all", [0, 1]),
        (0.5, True, "stop", "first", [0]), (0.5, True, "continue", "first", [0, 1]), (0.5, False, "stop", "all", [0]),
        (0.8, True, "stop", "first", [0, 1, 2]), (0.8, False, "stop", "first", [0, 1]), (0.8, True, "stop", "all", [0, 1, 2, 3]),
        (0.0, True, "stop", "first", [0]), (0.0, False, "continue", "all", [0]), (0.4, False, "stop", "first", [0]),
        (1.0, False, "stop", "first", [0, 1, 2, 3]), (1, True, "continue", "all", [0, 1, 2, 3]),
    ],
)
def test_top_p_at_the_boundary(p: float, crossing: bool, at_equality: Any, ties: Any, expected: list[int]) -> None:
    assert kept(EQUALITY, TopP(p, crossing, at_equality, ties)) == expected


@pytest.mark.parametrize("size", [1, 2, 3, 7, 10, 16, 49, 1000, 4096])
def test_top_p_of_equal_rows_does_not_hang_on_rounding(size: int) -> None:
    for numerator in {0, 1, size // 3, size // 2, size - 1} - {size}:
        p = numerator / size
        exact = p * size == numerator
        expected = max(1, numerator if exact else math.ceil(p * size))
        for level in (0.0, 1.0, -7.3, 50.0):  # a constant does not matter
            assert len(kept([level] * size, TopP(p))) == expected
    assert kept([0.0] * 16, TopP(0.5)) == list(range(8))
    assert kept([0.0] * 16, TopP(0.5, at_equality="continue")) == list(range(9))
    assert kept([0.0] * 16, TopP(0.5, crossing=False)) == list(range(7))
    assert kept([0.0] * 16, TopP(0.5, ties="all")) == list(range(16))


def test_top_p_of_what_is_left_or_of_the_original_mass() -> None:
    row = np.log([0.5, 0.3, 0.2]).tolist()
    assert kept(row, TopK(2), TopP(0.6)) == [0]
    assert Chain([TopK(2), TopP(0.6, mass="original")]).distribution(row).probs == pytest.approx([0.625, 0.375], rel=1e-12)  # candle
    assert kept(row, TopP(0.6, mass="original")) == [0, 1]
    assert kept(row, TopK(2), Temperature(2), TopP(0.55, mass="original")) == [0]  # a stage that changes logits starts a new total


NEUTRAL = [
    "temperature(1)", "ban([])", "bias({})", "repetition(1)", "frequency(0)", "presence(0)", "min_tokens(0, [])", "min_tokens(9, [])",
]


@pytest.mark.parametrize("neutral", NEUTRAL)
def test_a_neutral_stage_in_between_does_not_change_the_original_mass(neutral: str) -> None:
    from nalar import History

    row, past = np.log([0.5, 0.3, 0.2]), History([0, 1], [0])
    plain, with_it = (Chain.parse(f"top_k(2) |{stage} top_p(0.6, mass='original')") for stage in ("", f" {neutral} |"))
    assert with_it.distribution(row, past).ids.tolist() == plain.distribution(row, past).ids.tolist() == [0, 1]


# --- min-p -----------------------------------------------------------------------------------------------------------


@given(ROWS, st.sampled_from([0.0, 0.1, 0.125, 0.25, 0.3, 0.5, 1.0]), st.booleans())
def test_min_p_equals_its_restatement(row: list[float], p: float, strict: bool) -> None:
    weights = [math.exp(logit - max(row)) for logit in row]
    enough = [token for token, weight in enumerate(weights) if p == 0 or (weight > p if strict else weight >= p)]
    assert kept(row, MinP(p, strict)) == (enough or [row.index(max(row))])


def test_min_p_at_the_boundary() -> None:
    row = [0.0, -LN2, -LN2]  # (.5, .25, .25): engines differ here
    assert kept(row, MinP(0.5)) == [0, 1, 2]
    assert kept(row, MinP(0.5, strict=True)) == [0]
    assert kept(row, MinP(1.0)) == [0]
    assert kept([0.0, 0.0, -LN2], MinP(1.0)) == [0, 1]
    assert kept([-1.0, 0.0, 0.0], MinP(1.0, strict=True)) == [1]


def test_min_p_measures_at_its_place_in_the_chain() -> None:
    row = [0.0, -LN2, -2 * LN2]
    assert kept(row, MinP(0.3), Temperature(2)) == [0, 1]
    assert kept(row, Temperature(2), MinP(0.3)) == [0, 1, 2]


# --- engines, and what all three share -------------------------------------------------------------------------------

PROBS = np.log([0.5, 0.3, 0.2]).tolist()
EXPONENTIALS = [2.0, 1.0, 0.0, -1.0]


@pytest.mark.parametrize(
    ("text", "row", "probs"),
    [
        ("top_p(0.75)", PROBS, [0.625, 0.375, 0.0]),  # llama.cpp, transformers, mistral.rs
        ("top_p(0.75, crossing=false)", PROBS, [1.0, 0.0, 0.0]),  # exllamav3, llm-samplers
        ("top_k(2) | top_p(0.6)", PROBS, [1.0, 0.0, 0.0]),  # llama.cpp, mistral.rs, transformers
        ("top_k(2) | top_p(0.6, mass='original')", PROBS, [0.625, 0.375, 0.0]),  # candle
        ("top_p(0.85) | temperature(2)", EXPONENTIALS, [0.622, 0.378, 0.0, 0.0]),  # llama.cpp
        ("temperature(2) | top_p(0.85)", EXPONENTIALS, [0.506, 0.307, 0.186, 0.0]),  # ollama, mistral.rs, text-generation-webui
        ("min_p(0.5)", [0.0, -LN2, -LN2], [0.5, 0.25, 0.25]),  # llama.cpp on the CPU, KoboldCpp, transformers
        ("min_p(0.5, strict=true)", [0.0, -LN2, -LN2], [1.0, 0.0, 0.0]),  # mistral.rs
    ],
)
def test_what_engines_do_can_be_written_down(text: str, row: list[float], probs: list[float]) -> None:
    assert Chain.parse(text).distribution(row).dense(len(row)) == pytest.approx(probs, abs=6e-4)


@pytest.mark.parametrize("text", ["top_k(2)", "top_p(0.8)", "top_p(0.8, crossing=false)", "min_p(0.4)", "top_p(0, mass='original')"])
def test_a_truncation_removes_and_leaves_ratios_and_logits_alone(text: str) -> None:
    row = [1.0, -0.5, 0.75, -3.0]
    left = Chain.parse(text).candidates(row)
    assert left.logits.tolist() == [row[token] for token in left.ids]
    assert 0 in left.ids
    assert left.ids.size < 4


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: TopK(-1), "k must be an integer >= 0, got -1"), (lambda: TopK(1.0), "k must"),
        (lambda: TopK(True), "k must"),  # type: ignore[arg-type]
        (lambda: TopK(1, ties="last"), "ties must be one of 'first', 'all', got 'last'"),  # type: ignore[arg-type]
        (lambda: TopP(1.1), r"p must be a number in \[0, 1\], got 1.1"), (lambda: TopP(math.nan), "p must"),
        (lambda: TopP(0.5, crossing=1), "crossing must be True or False, got 1"),  # type: ignore[arg-type]
        (lambda: TopP(0.5, at_equality="go"), "at_equality must"), (lambda: TopP(0.5, mass="old"), "mass must"),  # type: ignore[arg-type]
        (lambda: MinP(-0.1), r"p must be a number in \[0, 1\], got -0.1"),
        (lambda: MinP(0.5, strict=None), "strict must"),  # type: ignore[arg-type]
    ],
)
def test_fields_are_checked(make: Any, words: str) -> None:
    with pytest.raises(NalarError, match=words):
        make()
