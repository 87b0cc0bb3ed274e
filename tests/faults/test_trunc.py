"""TRUNC: the set that a truncation keeps is one too few, one too many, or all.

Rule: a token stays while the mass before it is < top_p; exactly k for top-k with a documented tie rule; always at least one.  Each case is
a report of facts/faults.md on another engine, with the value that the report calls right.  Where a report sits on an equality, its
numbers are not binary fractions, and rounding decides: design.md tests equality on weights that are exact in binary, so such a report
is here twice, a hair off the equality as reported, and on it with binary fractions.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from faults.laws import LawCase, check_law, every_path, log, random_words, uniforms
from nalar import Chain, Key, sample

SWIFT = [2.0, 1, 3, -5, -23, 12.5]
CASES = [
    LawCase(
        "B184-equality", "transformers: one token more where the sum is exactly top_p",
        log([0.25, 0.125, 0.125, 0.5]), "top_p(0.75)", {3: 2, 0: 1}, "0.5 + 0.25 = 0.75 is not < 0.75",
    ),
    LawCase(
        "B184-below", "transformers, its numbers: {3, 0}", log([0.3, 0.1, 0.1, 0.5]), "top_p(0.799999999)", {3: 5, 0: 3}, "0.5 + 0.3 > p",
    ),
    LawCase(
        "B184-above", "transformers, its numbers", log([0.3, 0.1, 0.1, 0.5]), "top_p(0.800000001)", {3: 5, 0: 3, 1: 1},
        "0.8 < p, so the next stays too; of the two 0.1 the lower id",
    ),
    LawCase(
        "B186-crossing", "fish-speech: the token that crosses top_p was left out",
        log([0.50, 0.35, 0.10, 0.05]), "top_p(0.9)", {0: 50, 1: 35, 2: 10}, "0.85 < 0.9: mass 0.95",
    ),
    LawCase(
        "B187-crossing", "Biohub's esm: the same, in a protein model",
        log([0.4, 0.3, 0.2, 0.1]), "top_p(0.8)", {0: 4, 1: 3, 2: 2}, "0.7 < 0.8: mass 0.9",
    ),
    LawCase(
        "B188-crossing", "reasoning-from-scratch: the same, in a text book",
        log([0.5, 0.41, 0.09]), "top_p(0.9)", {0: 50, 1: 41}, "0.5 < 0.9 ≤ 0.91",
    ),
    LawCase(
        "B190-everything", "ChatRWKV: argmax of a mask that is false everywhere is 0, so top_p = 1 was greedy",
        log([0.25] * 4), "top_p(1.0)", dict.fromkeys(range(4), 1), "p = 1 is the identity",
    ),
    LawCase(
        "B191-renormalised", "mlx-lm: top-p behind a top-k never reached its mass, and masked everything",
        [0.0] * 10, "top_k(1) | top_p(0.8)", {0: 1}, "k = 1 keeps the lowest of equals, and it is all the mass",
    ),
    LawCase(
        "B191-original-mass", "mlx-lm: the same where p measures the mass before top-k",
        [0.0] * 10, 'top_k(1) | top_p(0.8, mass="original")', {0: 1}, "0.1 is left, 0.8 is out of reach: all that is left stays",
    ),
    LawCase(
        "B192-one-and-not-two", "mesh-transformer-jax: > in place of >= kept two",
        [-2, -1, 0, 0.8, 0, 0.1, 0.3, 0.4, 0.5, 0.6, 0.7, -3], "top_k(1)", {3: 1}, "0.8 is the largest",
    ),
    LawCase(
        "B194-ties-at-k", "vLLM: a threshold kept every tie",
        [1, 2, 2, 2, 3], "top_k(3)", {4: np.e, 1: 1, 2: 1}, "3 kept, of equals the lowest ids",
    ),
    LawCase(
        "B194-ties-asked-for", "vLLM: which is right only where it is asked for",
        [1, 2, 2, 2, 3], 'top_k(3, ties="all")', {4: np.e, 1: 1, 2: 1, 3: 1}, "every token equal to the third",
    ),
    LawCase(
        "B195-tie-at-k", "flashinfer: acceptance by value let all ties through",
        log([0.4, 0.3, 0.3, 0.0]), "top_k(2)", {0: 4, 1: 3}, "0.4 / 0.7 and 0.3 / 0.7",
    ),
    LawCase(
        "B195-tie-at-p-binary", "flashinfer: the same with top_p, on the equality",
        log([0.5, 0.25, 0.25, 0.0]), "top_p(0.75)", {0: 2, 1: 1}, "½ + ¼ is not < 0.75",
    ),
    LawCase(
        "B195-tie-at-p", "flashinfer, its numbers",
        log([0.4, 0.3, 0.3, 0.0]), "top_p(0.699999999)", {0: 4, 1: 3}, "0.7 > p; the lower id of the two",
    ),
    LawCase(
        "B196-one-large", "FreeToken: an estimated threshold kept all when one token holds over 40%",
        log([0.5] + [0.5 / 49999] * 49999), "top_k(5)", {0: 49999, 1: 1, 2: 1, 3: 1, 4: 1}, "exactly 5, the lowest ids of equals",
    ),
    LawCase(
        "B198-ratio-of-probabilities", "sglang-jax: min-p compared logits, and gave the rejected 0.0, the best logit there",
        [-1.0, -2.0, -6.0], "min_p(0.1)", {0: np.e, 1: 1}, "e^−1 = 0.37 ≥ 0.1 > e^−5 = 0.007",
    ),
    LawCase(
        "B202-ids-behind-a-filter", "swift-transformers: the second filter returned places in what the first had left",
        SWIFT, "top_k(3) | top_p(0.99)", {5: 1}, "e^12.5 of e^12.5 + e^3 + e^2 is 0.9999 > 0.99",
    ),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_law(case: LawCase) -> None:
    check_law(case)


@pytest.mark.parametrize("top_p", [1.0], ids=["B190-every-id-is-drawn"])
def test_top_p_1_is_not_greedy(top_p: float) -> None:
    """ChatRWKV, as it was noticed: always the same id.  Right: uniforms of ⅛, ⅜, ⅝, ⅞ draw the four ids of an even row in turn."""
    drawn = []
    for uniform in 0.125, 0.375, 0.625, 0.875:
        with uniforms(uniform):
            drawn.append(sample(log([0.25] * 4), Chain.parse(f"top_p({top_p})"), Key(0)).token)
    assert drawn == [0, 1, 2, 3]


WEIGHTS = st.lists(st.integers(0, 2).map(lambda power: 2**power), min_size=1, max_size=12)  # exp gives ½ and ¼ exactly; sums are exact


@given(WEIGHTS, st.integers(0, 14), st.integers(0, 64), st.sampled_from([0, 1, 16, 17, 32, 33, 64]))
def test_rule(weights: list[int], k: int, p_in_64: int, ratio_in_64: int) -> None:
    """The definitions in whole numbers: the k first of the ranking, and their ties if asked for; those before which less than p of the
    weight lies, at least one; those at least as heavy as the ratio asks.  Survivors keep their ratios."""
    row, ranked = log(np.array(weights) / max(weights)), sorted(range(len(weights)), key=lambda token: (-weights[token], token))
    before, nucleus = 0, []
    for token in ranked:
        if not nucleus or before * 64 < p_in_64 * sum(weights) or p_in_64 == 64:
            nucleus.append(token)
        before += weights[token]
    near = [token for token in ranked if weights[token] * 64 >= ratio_in_64 * max(weights)]
    first = ranked[:k] or ranked
    tied = [token for token in ranked if weights[token] >= weights[first[-1]]]
    right_sets = {
        f"top_k({k})": first, f'top_k({k}, ties="all")': tied, f"top_p({p_in_64 / 64})": nucleus, f"min_p({ratio_in_64 / 64})": near,
    }  # fmt: skip
    for text, kept in right_sets.items():
        for law in every_path(row, Chain.parse(text)).values():
            assert law.ids.tolist() == sorted(kept), text
            right = [float(Fraction(weights[token], sum(weights[other] for other in kept))) for token in sorted(kept)]
            np.testing.assert_allclose(law.probs, right, rtol=1e-14)
        with random_words(2**32 - 1):
            assert sample(row, Chain.parse(text), Key(0)).token == max(kept)
