"""ORDER: the same settings in another order are another law.

Rule: publish the order, let it be set, the same on all paths, inputs not modified, keyword-only parameters.  Each case is a report of
facts/faults.md on another engine, with the value that the report calls right.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from faults.laws import LawCase, check_law, every_path, log
from nalar import Chain, Key, Sampler, SamplingParams, sample, sample_batch
from nalar.candidates import Candidates
from nalar.distribution import Distribution
from nalar.errors import BrokenRow
from nalar.rows import as_row
from strategies import Case, cases

UNSORTED = log([0.35, 0.05, 0.5, 0.1])
SGLANG = log([0.35, 0.25, 0.20, 0.05, 0.03, 0.03, 0.03, 0.03, 0.03])
CASES = [
    LawCase(
        "B240-temperature-last", "llama.cpp: temperature after the truncation, elsewhere before it",
        [3.0, 2.0, 1.0], "top_p(0.8) | temperature(0.5)", {0: math.exp(2), 1: 1}, "0.665 < 0.8 keeps {0, 1}; then e^(1 / 0.5)",
    ),
    LawCase(
        "B240-temperature-first", "llama.cpp: the other order", [3.0, 2.0, 1.0], "temperature(0.5) | top_p(0.8)", {0: 1},
        "softmax [6, 4, 2] gives id 0 0.867 > 0.8",
    ),
    LawCase(
        "B242-top-p-unsorted", "llama.cpp's server: a filter that needs sorted input ran before the one that sorts",
        UNSORTED, "top_p(0.8) | top_k(3)", {2: 50, 0: 35}, "0.5 < 0.8 ≤ 0.85; then two are at most three",
    ),
    LawCase(
        "B242-top-k-second", "llama.cpp's server: the same",
        UNSORTED, "top_p(0.9) | top_k(2)", {2: 50, 0: 35}, "{2, 0, 3}, then the first two",
    ),
    LawCase(
        "B242-min-p-unsorted", "llama.cpp's server: the same",
        UNSORTED, "min_p(0.15) | top_k(3)", {2: 50, 0: 35, 3: 10}, "0.1 / 0.5 = 0.2 ≥ 0.15 > 0.05 / 0.5",
    ),
    LawCase(
        "B243-sequential", "sglang: only some paths renormalise between top-k and top-p; Nalar's TopP does, and says so",
        SGLANG, "top_k(4) | top_p(0.82)", {0: 35, 1: 25, 2: 20}, "0.80 ≥ 0.82 · 0.85 = 0.697 > 0.60",
    ),
    LawCase(
        "B243-joint", "sglang: the joint rule, by name", SGLANG, 'top_k(4) | top_p(0.82, mass="original")',
        {0: 35, 1: 25, 2: 20, 3: 5}, "0.80 < 0.82",
    ),
    *(
        LawCase(
            f"B244-{name}", "sglang: probabilities that top-k had renormalised were used for min-p",
            log([0.5, 0.2, 0.16, 0.14]), chain, {0: 5, 1: 2}, "0.2 / 0.5 = 0.4 ≥ 0.35 > 0.16 / 0.5 = 0.32, whatever the scale",
        )
        for name, chain in (("top-k-first", "top_k(3) | min_p(0.35)"), ("min-p-first", "min_p(0.35) | top_k(3)"))
    ),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_law(case: LawCase) -> None:
    check_law(case)


@pytest.mark.parametrize("asked", [{"temperature": 0.5, "top_p": 0.8}], ids=["B240-B248-the-order-has-a-name"])
def test_the_order_of_parameters_is_published(asked: dict[str, Any]) -> None:
    """llama.cpp: nobody could tell; llama-cpp-python had another order and other defaults than it.  Right (design.md): Chain.ORDER,
    temperature before the truncations, the chain prints it, and nothing that was not asked for is in it."""
    chain = Chain.from_params(SamplingParams(**asked))
    assert str(chain) == "temperature(0.5) | top_p(0.8)"
    assert chain.distribution([3.0, 2.0, 1.0]).ids.tolist() == [0]
    assert Chain.ORDER.index("temperature") < Chain.ORDER.index("top_k") < Chain.ORDER.index("top_p") < Chain.ORDER.index("min_p")
    assert str(Chain.from_params(SamplingParams())) == "identity"


@pytest.mark.parametrize("dtype", [np.float32, np.float64], ids=["B246-float32", "B246-float64"])
def test_a_row_is_read_and_never_written(dtype: type) -> None:
    """CodonTransformer: the row was divided in place, so each repeated call divides again.  T = 2 on [2, 0], three times: e^1 to 1."""
    row = np.array([2.0, 0.0], dtype)
    chain, sampler = Chain.parse("temperature(2.0)"), Sampler(Chain.parse("temperature(2.0)"), seed=1)
    for _ in range(3):
        law = sampler.sample(row, keep_law=True).law
        assert law is not None
        assert law.prob(0) / law.prob(1) == pytest.approx(math.e, rel=1e-15)
        assert sample(row, chain, Key(1), keep_law=True).law.probs.tolist() == law.probs.tolist()  # type: ignore[union-attr]
        assert row.tolist() == [2.0, 0.0]


@pytest.mark.parametrize("first", [0, 1], ids=["B247-greedy-first", "B247-top-k-first"])
def test_temperature_0_and_top_k_1_are_one(first: int) -> None:
    """vLLM: T = 0 and top_k = 1 gave different tokens in a batch.  Right: the same id, the argmax, where there are no ties."""
    chains = [Chain.from_params(SamplingParams(temperature=0)), Chain.from_params(SamplingParams(temperature=0.7, top_k=1))]
    for row in np.random.default_rng(247).normal(0, 3, (20, 300)).astype(np.float32):
        batch = sample_batch([row, row], [chains[first], chains[1 - first]], [Key(1), Key(2)])
        assert batch.tokens.tolist() == [row.argmax()] * 2


@given(cases())
def test_rule(case: Case) -> None:
    """A chain is its stages by hand, one after the other in the order it prints; every path gives that law; the row is as it was; and
    from_params follows ORDER.  Parameters have names only, so that their own order cannot matter."""
    before = case.row.tobytes()
    candidates = None
    try:
        for step in case.chain.steps(Candidates.from_row(as_row(case.row)), case.history):
            assert candidates is None or step.before is candidates
            candidates = step.after
        laws = every_path(case.row, case.chain, case.prompt, case.output)
    except BrokenRow:
        assert case.row.tobytes() == before
        return
    right = laws["distribution"] if candidates is None else Distribution.from_candidates(candidates)
    for law in laws.values():
        assert law.ids.tolist() == right.ids.tolist()
        assert law.probs.tolist() == right.probs.tolist()
    assert case.row.tobytes() == before
    assert Chain.parse(str(case.chain)) == case.chain
    names = [stage.name for stage in Chain.from_params(SamplingParams(
        min_p=0.1, top_p=0.9, top_k=3, temperature=0.5, presence_penalty=1, frequency_penalty=1, repetition_penalty=2, logit_bias={0: 1},
        banned_tokens=[0], allowed_tokens=[0, 1],
    ))]  # fmt: skip
    assert names == [name for name in Chain.ORDER if name in names]
    assert len(names) == 10
    with pytest.raises(TypeError):
        SamplingParams(0.5)  # type: ignore[misc]
