"""IMPOS: a token that cannot be: of probability 0, in the padding, out of range.

Rule: after every draw, the id is in range and its processed probability is > 0.  Each case is a report of facts/faults.md on another
engine, with the value that the report calls right.  Where a report needed millions of draws to meet the extremes of its generator, they
are given to the draw at once: a uniform of 0 and of 1 − 2⁻⁵³, the least and the greatest noise.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nalar
from faults.laws import GREATEST, LEAST, log, random_words, uniforms
from nalar import Chain, Distribution, Key, Sampler, SamplingParams, sample, sample_batch
from nalar.distribution import DRAWS
from nalar.errors import BrokenRow, InvalidValue
from strategies import Case, cases

RANDOM = np.random.default_rng(226)
UNIFORMS = 0.0, 2.0**-53, 0.5, 1 - 2.0**-24, 1 - 2.0**-53


def drawn_at_extremes(row: Any, chain: Chain, seeds: int = 20, **options: Any) -> Iterator[int]:
    """Tokens at every extreme of the generator, by both ways to draw, and by some seeds."""
    for draw in DRAWS:
        for word in LEAST, GREATEST:
            with random_words(word):
                yield sample(row, chain, Key(0), draw=draw, **options).token
        for seed in range(seeds):
            yield sample(row, chain, Key(seed), draw=draw, **options).token
    for uniform in UNIFORMS:
        with uniforms(uniform):
            yield sample(row, chain, Key(0), **options).token


def sparse(size: int, ids: list[int], dtype: Any) -> Any:
    row = np.full(size, -np.inf, dtype)
    row[ids] = RANDOM.normal(0, 1, len(ids)).astype(dtype)
    return row


TEN = [3, 4, 11, 17, 18, 25, 30, 38, 44, 49]
FOUR = [17, 4000, 31999, 49998]
WEIGHTS = [0.0, 0.25, 0.75, 0.0]
SUPPORTS = [  # fault, row, chain, the ids that are possible
    pytest.param([-np.inf, 0.0], "identity", [1], id="B226-weights-0-and-1"),  # PyTorch: an exponential of 0 makes 0 / 0 win
    pytest.param(log([0.33, 0.34, 0.0, 0.33]), "identity", [0, 1, 3], id="B227-a-hole"),  # PyTorch: seen after 10 million draws
    pytest.param(sparse(50, TEN, np.float32), "identity", TEN, id="B228-40-of-50-masked"),  # PyTorch on CUDA: -inf was sampled
    pytest.param(sparse(50000, FOUR, np.float16), "identity", FOUR, id="B231-4-of-50000"),  # Clover: float16, others now and then
    *(  # litgpt: a float16 exponential underflows to 0, and an id outside of top_k = 1 is chosen
        pytest.param(RANDOM.permutation(50304).astype(np.float32).astype(dtype) / 512, "top_k(1)", None, id=f"B232-{np.dtype(dtype).name}")
        for dtype in (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)
    ),
    *(
        pytest.param(log(WEIGHTS).astype(dtype), "identity", [1, 2], id=f"B232-control-{np.dtype(dtype).name}")
        for dtype in (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)
    ),
    *(  # tt-metal: an index table half as wide as the logits; right: top_k = 1 is the argmax, wherever it is
        pytest.param(np.roll(np.sin(np.arange(size) / size), shift), "top_k(1)", None, id=f"B236-{size}-{shift}")
        for size in (32768, 65536)
        for shift in (0, 1, size // 3, size // 2, size - 1)
    ),
]  # fmt: skip


@pytest.mark.parametrize(("row", "chain", "possible"), SUPPORTS)
def test_only_the_possible(row: Any, chain: str, possible: list[int] | None) -> None:
    possible = [int(np.argmax(np.asarray(row, np.float64)))] if possible is None else possible
    assert Chain.parse(chain).distribution(row).ids.tolist() == possible
    drawn = set(drawn_at_extremes(row, Chain.parse(chain), seeds=5 if len(row) > 100 else 20))
    assert {possible[0], possible[-1]} <= drawn <= set(possible)


@pytest.mark.parametrize("weights", [[1, 10, 3, 0]], ids=["B227-more-than-there-are"])
def test_drawing_without_replacement(weights: list[int]) -> None:
    """PyTorch: asked for 4 of 3 possible ones, it gives the impossible.  Right: the fourth is an error.  Nalar bans what was drawn."""
    drawn: list[int] = []
    for _ in range(3):
        drawn.append(sample(log(weights), Chain.from_params(SamplingParams(banned_tokens=drawn)), Key(len(drawn))).token)
    assert sorted(drawn) == [0, 1, 2]
    with pytest.raises(BrokenRow, match="ban left no token to draw"):
        sample(log(weights), Chain.from_params(SamplingParams(banned_tokens=drawn)), Key(3))


@pytest.mark.parametrize("shape", [(1, 1, 4), (1, 4), ()], ids="B230-{}".format)
def test_a_shape_is_not_guessed(shape: tuple[int, ...]) -> None:
    """PyTorch: (1, 1, 4) was read along the wrong axis, always id 0.  Right: an error about the shape."""
    row = np.full(shape, 0.25)
    for call in (lambda: sample(row, Chain(), Key(1)), lambda: Chain().distribution(row), lambda: Distribution.from_probs(row)):
        with pytest.raises(InvalidValue, match="shape"):
            call()
    with pytest.raises(InvalidValue, match="shape"):
        sample_batch(row[None] if row.ndim > 1 else row, Chain(), [Key(1)])


@pytest.mark.parametrize("rows", [16], ids=["B234-in-range"])
def test_ids_of_a_nucleus_are_in_range(rows: int) -> None:
    """TensorRT-LLM: ids outside the vocabulary after many requests with top_p.  Right: 0 ≤ id < vocabulary, at the extremes as well."""
    chain = Chain.parse("top_p(0.9)")
    for row in RANDOM.normal(0, 4, (rows, 1000)).astype(np.float32):
        row[-1] = row.max() + 1  # the last id is in the nucleus, so that one beyond it would be next
        drawn = set(drawn_at_extremes(row, chain, seeds=5))
        assert 999 in drawn
        assert all(0 <= token < 1000 for token in drawn)


def inside_nucleus(row: Any, token: int, p: float) -> bool:
    """Whether less than ``p`` of the mass, and a rounding, lies before ``token``."""
    weights = np.exp(np.asarray(row, np.float64) - float(np.max(row)))
    above = (weights > weights[token]).sum() and weights[weights > weights[token]].sum()
    return bool(above < p * weights.sum() * (1 + 1e-12))


@pytest.mark.parametrize("uniform", [None, 0.0, 1 - 2.0**-53], ids="B235-uniform-{}".format)
def test_every_token_of_a_reply_is_in_its_nucleus(uniform: float | None) -> None:
    """vllm-metal: a token of log-probability −29 in 11% of replies with top_p = 0.8.  Right: none outside the set, computed again from
    the model's row; at a uniform next to 1 each step draws the last id of its set."""
    with nalar.load("toy") as model:
        asked = {"top_p": 0.8, "seed": 8, "max_tokens": 40, "ignore_eos": True}
        if uniform is None:
            reply = model.generate("The ", **asked)
        else:
            with uniforms(uniform):
                reply = model.generate("The ", **asked)
        ids, before = model.encode("The "), 0
        for drawn in reply.samples:
            row = model.logits([*ids, *(sample.token for sample in reply.samples[:before])])
            assert inside_nucleus(row, drawn.token, 0.8)
            before += 1
    assert before == 40
    assert not inside_nucleus([3.0, 0.0], 1, 0.8)  # the check can fail: 0.95 lies before it


PADDED, KNOWN = 248_320, 248_077


@pytest.mark.parametrize("chain", ["identity", "allow([5, 248076])", "top_k(3)", "temperature(0)"], ids="B238-{}".format)
def test_padded_ids_are_never_drawn(chain: str) -> None:
    """mlx-vlm: a padded id was sampled in an unguided region, and crashed the guided one.  Right: masked at every step, guided or not."""
    row = np.zeros(PADDED, np.float32)
    row[KNOWN - 1], row[KNOWN:] = 1.0, 90.0  # the padding would win every draw
    law = Chain.parse(chain)
    drawn = [*drawn_at_extremes(row, law, seeds=1, vocabulary=KNOWN)]
    drawn.append(Sampler(law, seed=1, vocabulary=KNOWN).sample(row).token)
    drawn += sample_batch([row, row], law, [Key(1), Key(2)], vocabulary=KNOWN).tokens.tolist()
    assert max(drawn) == KNOWN - 1
    assert law.distribution(row, vocabulary=KNOWN).ids.max() < KNOWN


@pytest.mark.parametrize("allowed", [[], [7]], ids=["B239-nothing-allowed", "B239-one-allowed"])
def test_a_mask_reaches_the_end_of_the_row(allowed: list[int]) -> None:
    """xgrammar: a mask of 151,669 bits on 151,936 logits left the tail open.  Right: the tail is masked (all zero: an error)."""
    row, chain = np.zeros(151_936, np.float32), Chain.from_params(SamplingParams(allowed_tokens=allowed))
    row[151_757] = 90.0
    if allowed:
        assert set(drawn_at_extremes(row, chain, seeds=1)) == {7}
        assert chain.distribution(row).prob(151_757) == 0
    else:
        with pytest.raises(BrokenRow, match="allow left no token to draw"):
            sample(row, chain, Key(1))


@given(cases(own=True), st.sampled_from(UNIFORMS), st.sampled_from(DRAWS))
def test_rule(case: Case, uniform: float, draw: Any) -> None:
    """The post-condition, on any chain, at the extremes: in range, possible in the row, of positive probability in the law."""
    options: dict[str, Any] = {"history": case.history, "draw": draw, "keep_law": True}
    try:
        drawn = [sample(case.row, case.chain, case.key, **options)]
        with uniforms(uniform if draw == "inverse" else min(max(uniform, 2.0**-54), 1 - 2.0**-53)):
            drawn.append(sample(case.row, case.chain, case.key, **options))
    except BrokenRow:
        return  # a chain that leaves nothing has no draws
    for one in drawn:
        assert one.law is not None
        assert 0 <= one.token < case.row.size
        assert case.row[one.token] > -np.inf
        assert one.law.prob(one.token) > 0
        assert one.logprob == one.law.logprob(one.token) <= 1e-15
