"""NEIGH: a result that depends on the other rows of its batch, or on who used its slot before.

Rule: per-row state only; the same code and the same tie rule for any batch size.  Each case is a report of facts/faults.md on another
engine, with the value that the report calls right.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nalar
from nalar import Chain, History, Key, Sampler, SamplingParams, sample, sample_batch
from nalar.distribution import DRAWS, Draw
from nalar.keys import fresh_seed
from nalar.sampling import Sample
from strategies import Case, cases

RANDOM = np.random.default_rng(130)
CLOSE = RANDOM.normal(0, 3, 500).astype(np.float32)
CLOSE[[3, 77, 400]] = [9.0, np.nextafter(np.float32(9), np.float32(10)), 9.0]  # the nearest of ties that is none


def same(first: Sample | None, second: Sample | None) -> bool:
    """To the bit: token, log-probability, and the law's ids and probabilities."""
    assert first is not None
    assert second is not None
    assert first.law is not None
    assert second.law is not None
    told = [(drawn.token, drawn.logprob, drawn.rank, drawn.raw_logprob, drawn.top) for drawn in (first, second)]
    return told[0] == told[1] and all(
        getattr(first.law, part).tobytes() == getattr(second.law, part).tobytes() for part in ("ids", "probs")
    )


@pytest.mark.parametrize("size", [2, 8, 33], ids="B130-batch-of-{}".format)
@pytest.mark.parametrize("chain", ["temperature(0)", "temperature(0.7) | top_k(40) | top_p(0.95)", "top_p(0.5) | min_p(0.01)"])
@pytest.mark.parametrize("draw", DRAWS)
def test_a_row_alone_and_in_a_batch(size: int, chain: str, draw: Draw) -> None:
    """vLLM: T = 0 became T = 1 for the division, and near-ties were decided by the batch's shape.  Right: bit-equal at every place."""
    law, key = Chain.parse(chain), Key(5, position=0)
    alone = sample(CLOSE, law, key, logprobs=3, draw=draw, keep_law=True)
    if chain == "temperature(0)":
        assert alone.token == 77
    for place in {0, size // 2, size - 1}:
        rows = RANDOM.normal(0, 3, (size, 500)).astype(np.float32)
        rows[place] = CLOSE
        chains = [Chain.parse("temperature(2.0)")] * size
        chains[place] = law
        batch = sample_batch(rows, chains, [key] * size, logprobs=3, draw=draw, keep_law=True, threads=2)
        assert same(batch.samples[place], alone)


@pytest.mark.parametrize("draw", DRAWS, ids="B132-unseeded-neighbour-{}".format)
def test_an_unseeded_neighbour(draw: Draw) -> None:
    """vLLM on CPU: one unseeded row broke the seeded one.  Right: row 0 is equal in all repeats, whatever row 1 draws."""
    seeded, rows = Sampler(Chain(), seed=42, draw=draw), np.zeros((2, 1000))
    right = seeded.sample(rows[0]).token
    repeats = [sample_batch(rows, Chain(), [Key(42), Key(fresh_seed())], draw=draw).tokens.tolist() for _ in range(4)]
    assert [first for first, _ in repeats] == [right] * 4
    assert len({second for _, second in repeats}) > 1  # four equal ones of 1,000: 1e-9


@pytest.mark.parametrize("order", [[0, 1], [1, 0]], ids=["B133-penalty-first", "B133-penalty-last"])
def test_the_order_of_rows(order: list[int]) -> None:
    """vLLM: the result depended on whether the row with the penalty came first.  A: T = 0, penalty 2, id 0 seen: of [3 / 2, 2, 1] id 1.
    B: seed 99, top_k = 1: of [3, 2, 1] id 0."""
    chains = [Chain.from_params(SamplingParams(temperature=0, repetition_penalty=2)), Chain.from_params(SamplingParams(top_k=1))]
    batch = sample_batch(
        np.array([[3.0, 2.0, 1.0]] * 2), [chains[i] for i in order], [Key([1, 99][i]) for i in order], [History([0]) for _ in order]
    )
    assert batch.tokens.tolist() == [[1, 0][i] for i in order]


@pytest.mark.parametrize("sequences", [1], ids=["B134-the-next-in-the-slot"])
def test_a_mask_does_not_outlive_its_request(sequences: int) -> None:
    """vLLM: the mask of a finished request stayed on its slot.  16 ids, the first request allows {13}.  Right: the next may emit any."""
    params = SamplingParams(allowed_tokens=[13])
    assert Sampler(Chain.from_params(params)).sample(np.zeros(16), keep_law=True).token == 13
    after = Sampler(Chain.from_params(SamplingParams())).sample(np.zeros(16), keep_law=True)
    assert after.law is not None
    assert after.law.probs.tolist() == [1 / 16] * 16
    with nalar.load("toy", sequences=sequences) as model, nalar.load("toy") as unused:
        assert model.generate("The ", params, max_tokens=3).tokens == (13, 13, 13)
        asked = {"seed": 6, "max_tokens": 30, "repetition_penalty": 1.1}
        assert model.generate("The ", **asked).text == unused.generate("The ", **asked).text


@pytest.mark.parametrize("size", [1, 7, 8, 9], ids="B136-ties-in-a-batch-of-{}".format)
@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float32], ids=["bfloat16", "float32"])
def test_ties_at_k(size: int, dtype: type) -> None:
    """vLLM: another tie rule from a batch of 8 on, and bfloat16 ties often.  Right: the lowest ids (TopK's ties="first"), in any batch."""
    row = np.array([1, 2, 2, 3, 2, 2, 3.001], dtype)  # in bfloat16, whose steps there are 1/64, the largest two tie as well
    batch = sample_batch(np.array([row] * size), Chain.parse("top_k(3)"), [Key(i) for i in range(size)], keep_law=True)
    assert [drawn.law.ids.tolist() for drawn in batch.samples if drawn and drawn.law] == [[1, 3, 6]] * size
    assert Sampler(Chain.parse("top_k(3)"), seed=0).step(np.array([row])).token == batch.tokens[0]


@pytest.mark.parametrize("name", ["repetition(2.0)", "frequency(0.5)"], ids="B137-{}".format)
def test_the_padding_of_a_shorter_neighbour(name: str) -> None:
    """text-generation-inference: histories [5] and [5, 6, 7] were padded with 0, and id 0 penalised.  Logits 1 all over.  Right: both rows
    penalise what they saw, to ½, and nothing else."""
    batch = sample_batch(
        np.ones((2, 8)), Chain.parse(name), [Key(1), Key(2)], [History(output=[5]), History(output=[5, 6, 7])], keep_law=True
    )
    for drawn, seen in zip(batch.samples, ([5], [5, 6, 7]), strict=True):
        weights = np.where(np.isin(np.arange(8), seen), np.exp(0.5), np.exp(1.0))
        assert drawn is not None
        assert drawn.law is not None
        np.testing.assert_allclose(drawn.law.probs, weights / weights.sum(), rtol=1e-15)


@pytest.mark.parametrize("temperature", [0.0, 1.0, 2.0], ids="B138-temperature-{}".format)
def test_every_row_is_sampled(temperature: float) -> None:
    """Fast-dLLM: only row 0 was sampled.  Right: one-hot rows at 3 and 4 give [3, 4]."""
    with np.errstate(divide="ignore"):
        rows = np.log(np.eye(6)[[3, 4]])
    assert sample_batch(rows, Chain.parse(f"temperature({temperature})"), [Key(1), Key(2)]).tokens.tolist() == [3, 4]


@pytest.mark.parametrize("n", [3], ids=["B140-params-reused"])
def test_parameters_used_twice(n: int) -> None:
    """textgen: the seed was changed in the shared parameters for n > 1 and never restored.  Right: the next prompt has the first seed."""
    params = SamplingParams(seed=11, n=n, max_tokens=12)
    before = repr(params)
    with nalar.load("toy") as model:
        assert len(model.generate_n("Once ", params)) == n
        assert repr(params) == before
        second, alone = model.generate_n("The ", params), model.generate("The ", seed=11, max_tokens=12)
    assert (second[0].seed, second[0].text) == (11, alone.text)


@settings(max_examples=25)
@given(st.lists(cases(own=True), min_size=2, max_size=4).flatmap(st.permutations), st.sampled_from(DRAWS))
def test_rule(mixed: list[Case], draw: Draw) -> None:
    """A batch in any order is its rows one by one, to the bit, errors included."""
    batch = sample_batch(
        [case.row for case in mixed], [case.chain for case in mixed], [case.key for case in mixed], [case.history for case in mixed],
        draw=draw, keep_law=True, errors="return", threads=2,
    )  # fmt: skip
    for place, case in enumerate(mixed):
        alone: Any
        try:
            alone = sample(case.row, case.chain, case.key, case.history, draw=draw, keep_law=True)
        except nalar.NalarError as error:
            alone = error
        found = batch.errors[place]
        if isinstance(alone, Exception):
            assert type(found) is type(alone)
            assert str(alone) in str(found)
        else:
            assert found is None
            assert same(batch.samples[place], alone)
