"""PEN: penalties and what counts as history.

Rule: repetition divides a positive and multiplies another logit, once for an id; frequency subtracts per occurrence in the output,
presence once; occurrences are counted in the history, never in padding; tests look at the effect.  Each case is a report of
facts/faults.md on another engine, with the value that the report calls right.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nalar
from faults.laws import every_path
from nalar import Chain, History, Key, Sampler, SamplingParams, sample
from nalar.errors import InvalidType, ParseError


@dataclass(frozen=True)
class Case:
    """A row, a chain, a history, and the logits that are right; the law is their softmax."""

    id: str
    fault: str
    row: list[float]
    chain: str
    right: list[float]
    why: str
    prompt: Sequence[int] = ()
    output: Sequence[int] = ()


SIX = [1.0] * 6
CASES = [
    Case(
        "B113-negative-logit", "transformers: a negative logit was divided too, which raises it: dog dog dog",
        [-2.0, -3.0], "repetition(1.5)", [-3.0, -3.0], "−2 · 1.5, not −2 / 1.5 = −1.33", prompt=[0],
    ),
    Case(
        "B115-once-for-an-id", "transformers.js: applied once per occurrence",
        [0.0] * 7 + [4.0], "repetition(1.2)", [0.0] * 7 + [4 / 1.2], "4 / 1.2 = 3.333, not 4 / 1.2³ = 2.315", prompt=[7, 7], output=[7],
    ),
    Case(
        "B116-the-last-n", "llama-cpp-python: the window took the first n tokens",
        SIX, "repetition(2.0, window=2)", [1, 1, 1, 1, 0.5, 0.5], "the last 2 of [1, 2, 3, 4, 5] are 4 and 5",
        prompt=[1, 2, 3], output=[4, 5],
    ),
    Case(
        "B116-window-0", "llama-cpp-python: the same",
        SIX, "repetition(2.0, window=0)", SIX, "no token is within 0", prompt=[1, 2, 3, 4, 5],
    ),
    Case(
        "B116-window-beyond", "llama-cpp-python: it could read past the buffer",
        SIX, "repetition(2.0, window=64)", [1, 0.5, 0.5, 0.5, 0.5, 0.5], "all 5 are within 64", prompt=[1, 2], output=[3, 4, 5],
    ),
    Case(
        "B117-prompt-counts", "vLLM: prompt tokens counted in one library and not in another under one name",
        SIX, "repetition(2.0)", [1, 1, 1, 1, 1, 0.5], "the rule by default is prompt and output, scope=\"all\": 1 / 2", prompt=[5],
    ),
    Case(
        "B117-output-only", "vLLM: and it can be chosen", SIX, "repetition(2.0, scope=\"output\")", SIX, "the output is empty", prompt=[5],
    ),
    Case(
        "B119-frequency-of-a-negative-logit", "text-generation-inference: it ignored counts and depended on the sign",
        [-1.0, 0.0], "frequency(0.5)", [-2.5, 0.0], "−1 − 3 · 0.5, whatever the sign", output=[0, 0, 0],
    ),
    Case(
        "B120-presence-and-frequency", "mlc-llm: the presence value was passed for both arguments",
        [0.0, 0.0], "frequency(1.0) | presence(0.5)", [-2.5, 0.0], "0 − 2 · 1.0 − 0.5, not −2 · 0.5 − 0.5 = −1.5", output=[0, 0],
    ),
    Case(
        "B124-all-three", "mistral.rs: penalties are broken, says a title without a case; the formulas, on one logit after another",
        [2.0, 2.0, -2.0], "repetition(2.0) | frequency(0.5) | presence(0.25)", [1.0, 2 / 2 - 2 * 0.5 - 0.25, -2 * 2 - 0.5 - 0.25],
        "id 0 is in the prompt only: 2 / 2; ids 1 and 2 are in the output, twice and once", prompt=[0], output=[1, 2, 1],
    ),
    Case(
        "B125-below-1-before-the-argmax", "lattice: its greedy shortcut assumed that penalties only lower logits",
        [5.0, 4.0], "repetition(0.5) | temperature(0)", [-np.inf, 0.0], "4 / 0.5 = 8 > 5, so id 1", prompt=[1],
    ),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_law(case: Case) -> None:
    chain = Chain.parse(case.chain)
    logits = chain.candidates(case.row, History(case.prompt, case.output)).logits
    np.testing.assert_allclose(logits, case.right, rtol=1e-15, atol=0)
    right = np.exp(case.right) / np.exp(case.right).sum()
    for path, law in every_path(case.row, chain, case.prompt, case.output).items():
        np.testing.assert_allclose(law.dense(len(case.row)), right, rtol=1e-14, atol=0, err_msg=path)


@pytest.mark.parametrize(
    ("name", "value", "gap"),
    [
        pytest.param("repetition_penalty", 2.0, 1.0, id="B121-repetition"),
        pytest.param("frequency_penalty", 0.75, 1.5, id="B121-frequency"),
        pytest.param("presence_penalty", 0.75, 0.75, id="B121-presence"),
    ],
)
def test_a_penalty_has_its_effect_under_every_name(name: str, value: float, gap: float) -> None:
    """sglang-jax: after a refactor all penalties were 0, and its tests only checked that a reply came.  Right: id 0 (logit 2, seen
    twice in the output) loses 2 − 2 / 2, 2 · 0.75 or 0.75; and a whole reply has another law from the second "e" on."""
    row, history = [2.0, 2.0], History(output=[0, 0])
    law = Chain.from_params(SamplingParams(**{name: value})).distribution(row, history)
    assert law.logprob(1) - law.logprob(0) == pytest.approx(gap, rel=1e-14)
    with nalar.load("toy") as model:
        asked = {"seed": 4, "max_tokens": 40, "ignore_eos": True}
        without, with_it = (model.generate("The ", **asked, **penalty) for penalty in ({}, {name: value}))
    assert without.logprobs != with_it.logprobs
    if name != "repetition_penalty":  # which sees the prompt; the others have nothing to penalise yet
        assert without.logprobs[0] == with_it.logprobs[0]


@pytest.mark.parametrize("how", ["sample", "step", "window"], ids="B123-{}".format)
def test_each_step_sees_the_ids_before_it(how: str) -> None:
    """vLLM on Ascend: the output history was not refreshed, so the penalty did nothing.  Greedy, penalty 2, logits [4, 3, 2.5] at each
    step: 4 wins; of [2, 3, 2.5] 3 wins; of [2, 1.5, 2.5] 2.5 wins; at last [2, 1.5, 1.25]."""
    row, sampler = np.array([4.0, 3.0, 2.5]), Sampler(Chain.parse("repetition(2.0) | temperature(0)"), seed=1)
    if how == "window":
        drawn = [int(law.ids[0]) for law in sampler.distributions([row] * 4, [0, 1, 2]).laws]
    else:
        drawn = [sampler.sample(row).token if how == "sample" else sampler.step([row]).token for _ in range(4)]
    assert drawn == [0, 1, 2, 0]


@pytest.mark.parametrize("name", ["no_repeat_ngram_size", "repeat_penalty", "dry_multiplier"], ids="B128-{}".format)
def test_a_penalty_without_code_is_refused(name: str) -> None:
    """onnxruntime-genai parsed no_repeat_ngram_size and never applied it.  Right: an unknown option, or one not built yet, is refused."""
    with pytest.raises(TypeError, match=name):
        SamplingParams(**{name: 3})  # type: ignore[arg-type]
    with pytest.raises(InvalidType, match=name), nalar.load("toy") as model:
        model.generate("The ", **{name: 3})
    with pytest.raises(ParseError, match=name):
        Chain.parse(f"{name}(3)")


IDS = st.lists(st.integers(-1, 7), max_size=12)


@given(
    st.lists(st.floats(-9, 9), min_size=6, max_size=6), IDS, IDS,
    st.floats(0.25, 4), st.floats(-2, 2), st.floats(-2, 2), st.none() | st.integers(0, 30),
)  # fmt: skip
def test_rule(
    row: list[float], prompt: list[int], output: list[int], repetition: float, frequency: float, presence: float, window: int | None
) -> None:
    """The three formulas on a random history, written out token by token; ids outside the row are never penalised; padding the row
    changes no logit; and greedy takes the largest of what they leave."""
    total = [*prompt, *output]
    near = total if window is None else total[max(0, len(total) - window) :]
    counts = Counter(output)
    right = []
    for token, logit in enumerate(row):
        if token in near:
            logit = logit / repetition if logit > 0 else logit * repetition
        logit -= frequency * counts[token]
        right.append(logit - presence * (counts[token] > 0))
    shown = "" if window is None else f", window={window}"
    chain = Chain.parse(f"repetition({repetition}{shown}) | frequency({frequency}) | presence({presence})")
    history = History(prompt, output)
    np.testing.assert_allclose(chain.candidates(row, history).logits, right, rtol=1e-14, atol=1e-14)
    np.testing.assert_array_equal(chain.candidates([*row, 5.0, 5.0], history, vocabulary=6).logits, chain.candidates(row, history).logits)
    greedy = sample(row, Chain([*chain, *Chain.parse("temperature(0)")]), Key(1), history).token
    assert greedy == int(np.argmax(chain.candidates(row, history).logits))
