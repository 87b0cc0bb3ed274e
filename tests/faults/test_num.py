"""NUM: NaN, infinity, overflow, low precision.

Rule: double precision, the maximum subtracted, a NaN row never a token, noise without 0 and 1, no arithmetic on 1 − p.  Each
case is a report of facts/faults.md on another engine, with the value that the report calls right; design.md pins the form (the logits
are divided by T, the softmax subtracts the maximum, an overflow is the limit).
"""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import nalar
from faults.laws import GREATEST, LEAST, LawCase, check_law, log, random_words, uniforms
from faults.scripted import PROMPT, scripted
from nalar import Chain, Distribution, Key, SamplingParams
from nalar.errors import BrokenRow
from strategies import DTYPES

BF16 = ml_dtypes.bfloat16
NEAR = [10.0, 9.99, -3.0]
EQUAL = np.zeros(131072, BF16)

CASES = [
    LawCase(
        "B001-tiny-temperature", "vLLM: logits / 1e-4 overflow half precision, inf − inf is NaN, and the request stream dies",
        np.array([12, 11, 3], np.float16), "temperature(0.0001)", {0: 1}, "e^(−1 / 1e-4) = e^−10000 is 0 in double precision",
    ),
    LawCase(
        "B001-tiny-top-p", "vLLM: the same with top_p = 1e-4",
        np.array([12, 11, 3], np.float16), "top_p(0.0001)", {0: 1}, "a truncation keeps the most likely token",
    ),
    *(
        LawCase(
            f"B003-temperature-{temperature:g}-{np.dtype(dtype).name}",
            "TensorRT-LLM: T = 1e-12 passes validation and logits / T overflows",
            np.array(NEAR, dtype), f"temperature({temperature!r})", {0: 1, 1: 1} if dtype is BF16 else {0: 1},
            "the argmax; bfloat16 rounds 9.99 to 10 (steps of 1/16), so there both are",
        )
        for temperature in (1e-6, 1e-12, 5e-324)
        for dtype in (np.float16, BF16, np.float32)
    ),
    LawCase(
        "B003-no-clamp", "TensorRT-LLM: a clamp at 1e-2 would change a legitimate T = 0.005",
        np.array([10.0, 9.990234375, -3.0]), "temperature(0.005)", {0: 1, 1: math.exp(-1.953125)},
        "e^((9.990234375 − 10) / 0.005) = e^−1.953125 (9.99 rounded to a binary fraction); e^−2600 is 0",
    ),
    LawCase(
        "B007-flat-nucleus", "Megatron-LM: a bfloat16 sum over 131,072 tokens stalls, and top-p cuts a wrong block of the tail",
        EQUAL, "top_p(0.9)", dict.fromkeys(range(117965), 1), "⌈0.9 · 131072⌉ = 117965, each 1 / 117965",
    ),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_law(case: LawCase) -> None:
    check_law(case)


@pytest.mark.parametrize("temperature", [1e-4], ids=["B002-every-token-the-argmax"])
def test_a_low_temperature_in_a_reply(temperature: float) -> None:
    """vLLM: 100 "generated" tokens decode to nothing, for a NaN row had silently become some id.  Right: the argmax, rank 1, each step."""
    with nalar.load("toy") as model:
        reply = model.generate("Once upon", temperature=temperature, seed=3, max_tokens=100, ignore_eos=True, logprobs=0)
    assert [sample.raw_rank for sample in reply.samples] == [1] * 100
    assert len(reply.text) == 100


@pytest.mark.parametrize("value", [np.nan, np.inf], ids=["B002-nan-row-in-a-reply", "B013-inf-row-in-a-reply"])
def test_a_broken_row_ends_a_reply_with_an_error(value: float) -> None:
    """vLLM, rten: it became a token.  Right (design.md): an error that names the place, and the pieces before it stand."""
    row = np.zeros(6)
    row[4] = value
    pieces = scripted([b"Hi", row]).stream(PROMPT, temperature=0)
    assert next(pieces) == "Hi"
    with pytest.raises(BrokenRow, match=f"{value} at token 4"):
        next(pieces)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        pytest.param([0.0, np.inf, 1.0], "got inf at token 1", id="B013-inf"),
        pytest.param([0.0, np.nan, 1.0], "got nan at token 1", id="B013-nan"),
        pytest.param([-np.inf] * 3, "-inf at all 3", id="B013-nothing-left"),
    ],
)
@pytest.mark.parametrize("chain", ["identity", "temperature(0)", "ban([1])", "top_k(1)"])
def test_a_broken_row_is_an_error(row: list[float], said: str, chain: str) -> None:
    """rten: NaN or +inf panics; its fix returns id 0.  Right (design.md): an error naming the token, even where it is banned."""
    with pytest.raises(BrokenRow, match=said):
        nalar.sample(row, Chain.parse(chain), Key(1))


TAIL = 262_144


@pytest.mark.parametrize("hit", [0, 1, TAIL // 2, TAIL - 1], ids="B005-inverse-tail-{}".format)
def test_every_token_of_a_heavy_tail_can_be_drawn(hit: int) -> None:
    """vLLM: float32 noise ends at 2⁻²⁴, so logits [20.5, 0 × 262144] never gave a tail token: 0 in 100,000 draws where
    100,000 · 262144 e^−20.5 ≈ 32.8 are right.  Inverse: tail token j is drawn at uniforms from (e^20.5 + j) / (e^20.5 + 262144) on."""
    law = Chain().distribution(np.array([20.5] + [0.0] * TAIL))
    total = math.exp(20.5) + TAIL
    with uniforms((math.exp(20.5) + hit + 0.5) / total):
        assert law.draw(Key(0, position=0)) == 1 + hit
    with uniforms(math.exp(20.5) / total - 1e-10):
        assert law.draw(Key(0, position=0)) == 0
    assert math.isclose(1e5 * (1 - law.prob(0)), 32.8, abs_tol=0.05)


@pytest.mark.parametrize("noise", [1 - 2.0**-31, 1 - 2.0**-53], ids="B005-race-noise-{!r}".format)
def test_the_race_has_noise_for_a_heavy_tail(noise: float) -> None:
    """vLLM, the same row by Gumbel noise: −log(−log u) must pass 20.5 + 0.37, the lead of the large logit at u = ½."""
    law = Chain().distribution(np.array([20.5, 0.0, 0.0, 0.0]))
    with uniforms(0.5, {2: noise}):
        assert law.draw(Key(0, position=0), "race") == 2
    with uniforms(0.5, {2: 1 - 2.0**-24}):  # the fault: the greatest float32 below 1 does not reach it
        assert law.draw(Key(0, position=0), "race") == 0


@pytest.mark.parametrize(
    ("word", "value"),
    [
        pytest.param(GREATEST, 1 - 2.0**-53, id="B005-B006-greatest-noise"),
        pytest.param(LEAST, 2.0**-54, id="B014-least-noise"),
    ],
)
def test_noise_excludes_0_and_1(word: int, value: float) -> None:
    """vLLM: a uniform of 1 gives +inf noise, with a masked −inf logit NaN, and an id near 2⁶³.  PyTorch: an exponential of 0 gives
    −log 0 = inf, and NaN.  Right: 0 < u < 1, with 53 bits; [0, −inf] gives id 0, and equal noise leaves the larger logit ahead."""
    with random_words(word):
        assert Key(0, position=0).noise(np.arange(4)).tolist() == [value] * 4
        assert nalar.sample([0.0, -np.inf], Chain(), Key(0), draw="race").token == 0
        assert nalar.sample([0.0, 1.0, 0.5], Chain.parse("ban([0])"), Key(0), draw="race").token == 1


@pytest.mark.parametrize("size", [2**20], ids=["B010-both-halves"])
def test_a_million_categories(size: int) -> None:
    """PyTorch: single-precision sums collapse, and half of the support is never drawn.  Weights 2, then 1: the upper half has ⅓.
    30 uniforms, one in the middle of each thirtieth, must give it exactly 10 times, and the place is that of the inverse."""
    law = Chain().distribution(np.repeat(log([2, 1]), size // 2))
    drawn = []
    for place in range(30):
        with uniforms((place + 0.5) / 30):
            drawn.append(law.draw(Key(0, position=0)))
    mass = [(place + 0.5) / 30 * 1.5 for place in range(30)]  # in half-widths of the lower half's weight: 0 … 1 there, then 1 … 1.5
    right = [size / 2 * (m if m < 1 else 1 + 2 * (m - 1)) for m in mass]
    np.testing.assert_allclose(drawn, right, atol=1)
    assert sum(token >= size // 2 for token in drawn) == 10


@pytest.mark.parametrize("size", [2**24 + 1], ids=["B011-more-than-16777216"])
def test_sixteen_million_categories(size: int) -> None:
    """PyTorch: more than 2²⁴ categories are refused.  Right: the draw works, and reaches the last of equal weights."""
    law = Distribution(np.arange(size, dtype=np.int32), np.full(size, 1 / size), np.full(size, -math.log(size)))
    for uniform, token in (0.0, 0), (0.5, size // 2), (1 - 2.0**-53, size - 1):
        with uniforms(uniform):
            assert law.draw(Key(0, position=0)) == token


@pytest.mark.parametrize("uniform", [1 - 2.0**-24, 1 - 2.0**-53, 1.0], ids="B015-uniform-{!r}".format)
def test_a_uniform_at_its_end(uniform: float) -> None:
    """aprender: (2³¹ − 1) / 2³¹ is 1 in float32, no sum exceeds it, and the last, impossible id is returned.  Right: id 1 at most."""
    with uniforms(uniform):
        assert nalar.sample(log([0.6, 0.4, 0.0]), Chain(), Key(0)).token == 1
    with random_words(GREATEST):
        assert Key(0).uniform() == 1 - 2.0**-53


@pytest.mark.parametrize(
    ("chain", "row"),
    [
        ("bias({0: -1e308})", [-1e308, 0.0]), ("frequency(1e308)", [1.0, 0.0]), ("presence(1e308)", [-1e308, 0.0]),
        ("repetition(1e308)", [-1e308, 0.0]), ("ban([0]) | frequency(-1e308)", [1.0, 0.0]), ("identity", [-1e308, 1e308]),
    ],
)  # fmt: skip
def test_an_overflow_downwards_is_a_mask(chain: str, row: list[float]) -> None:
    """The rule where B001 and B003 did not look: a logit past the least float is −inf, without a warning, and never NaN."""
    drawn = nalar.sample(row, Chain.parse(chain), Key(1), nalar.History(output=[0] * 10), logprobs=2, keep_law=True)
    assert drawn.law is not None
    assert drawn.law.ids.tolist() == [1]


@pytest.mark.parametrize(
    ("chain", "row"),
    [
        ("bias({0: 1e308})", [1e308, 0.0]), ("frequency(-1e308)", [1.0, 0.0]), ("presence(-1e308)", [1e308, 0.0]),
        ("repetition(1e-308)", [9.0, 0.0]),
    ],
)  # fmt: skip
def test_an_overflow_upwards_is_an_error(chain: str, row: list[float]) -> None:
    """As a +inf in the row itself is (B013): never a certainty, never a NaN."""
    with pytest.raises(BrokenRow, match=f"{chain.split('(')[0]} left a logit of inf"):
        nalar.sample(row, Chain.parse(chain), Key(1), nalar.History(output=[0] * 10))


@st.composite
def any_rows(draw: st.DrawFn) -> Any:
    """Any finite float of any type, ties and −inf among them."""
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    greatest = float(ml_dtypes.finfo(dtype).max)
    value = st.floats(-greatest, greatest) | st.floats(-30, 30) | st.sampled_from([0.0, 1.0, -np.inf, greatest, -greatest])
    row = np.array(draw(st.lists(value, min_size=1, max_size=12))).clip(-np.inf, greatest).astype(dtype)
    row[draw(st.integers(0, row.size - 1))] = draw(st.floats(-30, 30))
    return row


TEMPERATURES = st.floats(0, 1e300) | st.sampled_from([5e-324, 1e-310, 1e-12, 1e-4, 1e-2])


@given(any_rows(), TEMPERATURES, st.sampled_from([0.0, 5e-324, 1 - 2.0**-53, 1]))
@example(np.array([1e308, -1e308]), 1.0, 1.0)  # their difference is −inf, and no accident
def test_rule(row: Any, temperature: float, top_p: float) -> None:
    """softmax(logits / T) whatever the row's type and T: finite, summing to 1, greedy where nothing else fits; a tiny top_p leaves one
    token, and one next to 1 is no 1; with one NaN or +inf put in, there is no token at all."""
    values = [float(value) for value in row]
    law = Chain.from_params(SamplingParams(temperature=temperature)).distribution(row)
    top = max(values)
    for token, value in enumerate(values):
        if temperature == 0:
            right = float(token == values.index(top))
            assert law.prob(token) == right
        elif value - top > -1e300 and abs(top) + abs(value) < 1e280 * temperature:
            ratio = math.exp(value / temperature - top / temperature)
            assert math.isclose(law.prob(token), ratio * law.prob(values.index(top)), rel_tol=1e-12, abs_tol=1e-300)
    assert abs(law.probs.sum() - 1) < 1e-12
    assert (law.probs > 0).all()
    assert np.isfinite(law.logprobs).all()
    nucleus = Chain.from_params(SamplingParams(top_p=top_p)).distribution(row)
    assert nucleus.ids.size == 1 if top_p < 1e-300 else nucleus.prob(values.index(top)) > 0
    for broken in np.nan, np.inf:
        row[-1] = broken
        with pytest.raises(BrokenRow):
            Chain.from_params(SamplingParams(temperature=temperature, top_p=top_p)).distribution(row)


@given(st.lists(st.floats(-80, 80), min_size=1, max_size=20), st.floats(0.01, 50))
def test_log_softmax_before_temperature_changes_nothing(row: list[float], temperature: float) -> None:
    """Reported on Kimi-Audio as a fault, and none (facts/faults.md, section 3): softmax ignores what is added to a whole row."""
    logits = np.array(row)
    normalised = logits - np.logaddexp.reduce(logits)
    chain = Chain.from_params(SamplingParams(temperature=temperature))
    law, shifted = chain.distribution(logits), chain.distribution(normalised)
    assert law.tv(shifted) < 1e-15 * (4 + 400 / temperature)  # logits of up to 80 + log 20 round at 1.4e-14, and T magnifies that
