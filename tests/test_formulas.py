"""Every built-in stage, and random chains of them, against the plain-Python restatement in ``reference``."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import reference
from nalar import Chain
from nalar.errors import BrokenRow
from nalar.stages import MinP, Stage, TopK, TopP
from strategies import BUILT_IN_KINDS, Case, big_cases, cases, one_kind


def assert_formulas(case: Case) -> None:
    """The case's law, or its error, is what the reference says."""
    try:
        expected = reference.law(case.stages, case.row.astype(np.float64).tolist(), case.prompt, case.output)
    except reference.Ambiguous:
        assume(False)
    except reference.Emptied as emptied:
        name = next(stage.name for stage in case.stages if type(stage).__name__ == str(emptied))
        with pytest.raises(BrokenRow, match=f"^{name} left no token to draw"):
            case.chain.distribution(case.row, case.history)
        return
    reference.assert_law(case.chain.distribution(case.row, case.history), expected)


@settings(max_examples=150)
@given(cases())
def test_the_law_is_the_formulas_of_its_stages(case: Case) -> None:
    assert_formulas(case)


@pytest.mark.parametrize("kind", BUILT_IN_KINDS)
@settings(max_examples=60)
@given(case=cases(high=8), data=st.data())
def test_the_law_of_one_stage_is_its_formula(kind: type[Stage], case: Case, data: st.DataObject) -> None:
    size = case.row.size
    said = st.lists(st.integers(-1, size), max_size=8).map(tuple)
    assert_formulas(replace(case, stages=(data.draw(one_kind(kind, size)),), prompt=data.draw(said), output=data.draw(said)))


@settings(max_examples=4)
@given(big_cases())
def test_the_law_of_a_big_vocabulary_is_the_formulas_of_its_stages(case: Case) -> None:
    try:
        expected = reference.law(case.stages, case.row.tolist(), case.prompt, case.output)
    except reference.Ambiguous:
        assume(False)
    law = case.chain.distribution(case.row, case.history)
    assert law.ids.tolist() == sorted(expected)
    np.testing.assert_allclose(law.probs, [expected[token] for token in law.ids.tolist()], rtol=1e-11)


def test_original_mass_counts_exactly_on_equal_rows() -> None:
    """Weights 1 and whole sums: the weight before a token is exactly p · total, and the same with or without a cut before."""
    for size, kept in ((9, 3), (10, 5), (16, 4), (24, 6), (30, 15)):
        row, cut = np.zeros(size), TopP(kept / size, mass="original")
        for before in ([TopK(size - 1)], [TopK((size + kept) // 2), TopK(kept + 1)]):
            expected = reference.law([*before, cut], row.tolist())
            assert Chain([*before, cut]).distribution(row).ids.tolist() == list(expected) == list(range(kept))


@pytest.mark.parametrize(("strict", "kept"), [(False, [0, 1, 2]), (True, [0, 1])])
def test_min_p_at_equality(strict: bool, kept: list[int]) -> None:
    assert Chain([MinP(0.25, strict)]).distribution(np.log([1, 0.5, 0.25, 0.125])).ids.tolist() == kept
    assert Chain([MinP(1, strict)]).distribution([0.0, 3.0, 3.0]).ids.tolist() == ([1] if strict else [1, 2])


@pytest.mark.parametrize("at_equality", ["stop", "continue"])
@pytest.mark.parametrize("crossing", [True, False])
def test_equality_at_the_last_survivor_is_decided_like_any_other(crossing: bool, at_equality: Any) -> None:
    row, cut = np.log([1, 0.5, 0.25, 0.25]), TopP(0.75, crossing, at_equality, mass="original")
    expected = reference.law([TopK(2), cut], row.tolist())
    assert Chain([TopK(2), cut]).distribution(row).ids.tolist() == list(expected)
