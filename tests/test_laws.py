"""The laws of the sampling layer, each a property test named after it.  What a stage means is restated in ``reference``."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import nalar
import reference
from nalar import Chain, Distribution, History, Key
from nalar.candidates import Candidates
from nalar.errors import BrokenRow, InvalidValue
from nalar.stages import (
    Allow,
    Ban,
    Bias,
    Context,
    Frequency,
    MinP,
    MinTokens,
    Presence,
    Repetition,
    Stage,
    Temperature,
    TopK,
    TopP,
)  # fmt: skip
from strategies import (
    BIG,
    Case,
    Remembers,
    big_row,
    cases,
    keys,
    rows,
    stage_lists,
    temperatures,
    truncations,
)

FEW = settings(max_examples=5)
NEUTRAL = [
    Temperature(1), TopK(0), TopP(1), TopP(1, crossing=False, at_equality="continue", ties="all", mass="original"), MinP(0),
    MinP(0, strict=True), Repetition(1), Frequency(0), Presence(0), Bias({}), Ban([]), MinTokens(0, [0]), MinTokens(3, []),
]  # fmt: skip
# The fields by which a stage puts the lower id first: under them the law follows a permutation only where no logits are equal.
PREFERS_LOW_IDS = {TopK: "ties", TopP: "ties", Temperature: "value", MinP: "strict"}


def law_of(case: Case, stages: tuple[Stage, ...] | None = None) -> Distribution:
    """The law of a case, or the example is thrown away where a constraint left nothing."""
    try:
        return Chain(case.stages if stages is None else stages).distribution(case.row, case.history, case.key)
    except BrokenRow as error:
        assume(error.stage is None)
        raise


def same(law: Distribution, other: Distribution) -> bool:
    return all(np.array_equal(getattr(law, name), getattr(other, name)) for name in ("ids", "probs", "logprobs"))


@pytest.mark.parametrize("neutral", NEUTRAL, ids=str)
@settings(max_examples=20)
@given(case=cases(), place=st.integers(0, 4))
def test_neutral_parameters_are_the_identity(neutral: Stage, case: Case, place: int) -> None:
    with_it = (*case.stages[:place], neutral, *case.stages[place:])
    assert same(law_of(case, with_it), law_of(case))


@pytest.mark.parametrize("neutral", NEUTRAL, ids=str)
def test_neutral_parameters_leave_the_original_mass_alone(neutral: Stage) -> None:
    history = History(prompt=[0, 1], output=[2, 0, 1])
    row, cut = np.log([0.5, 0.25, 0.125, 0.125]), TopP(0.85, mass="original")  # 0.85 of what top-k leaves would be two tokens
    law = Chain([TopK(3), neutral, cut]).distribution(row, history)
    assert law.ids.tolist() == Chain([TopK(3), cut]).distribution(row, history).ids.tolist() == [0, 1, 2]


def test_neutral_parameters_build_the_identity() -> None:
    assert Chain.from_params(nalar.SamplingParams(), ends=[2]) == Chain([])


@pytest.mark.parametrize("threads", [1, 2])
@settings(max_examples=30)
@given(batch=st.lists(cases(own=True), min_size=1, max_size=5), draw=st.sampled_from(["inverse", "race"]), data=st.data())
def test_rows_are_independent_and_a_batch_equals_its_rows_one_by_one(
    threads: int, batch: list[Case], draw: Any, data: st.DataObject
) -> None:
    def run(order: list[int]) -> tuple[list[Any], list[str]]:
        listed = [batch[index] for index in order]
        done = nalar.sample_batch(
            [case.row for case in listed], [case.chain for case in listed], [case.key for case in listed],
            [case.history for case in listed], threads=threads, errors="return", draw=draw, logprobs=0,
        )  # fmt: skip
        return list(done.samples), [getattr(error, "problem", str(error)) for error in done.errors]

    samples, errors = run(list(range(len(batch))))
    for case, drawn, problem in zip(batch, samples, errors, strict=True):
        try:
            alone, wrong = nalar.sample(case.row, case.chain, case.key, case.history, draw=draw, logprobs=0), "None"
        except BrokenRow as error:
            alone, wrong = None, error.problem
        assert (drawn, problem) == (alone, wrong)
    order = data.draw(st.permutations(range(len(batch))))
    assert run(order) == ([samples[index] for index in order], [errors[index] for index in order])


@given(rows(1, 12, (np.float64, np.float32)), stage_lists(1), keys(), st.integers(1, 5), st.sampled_from([1, 2]))
def test_rows_are_independent_in_a_2_d_array(row: Any, stages: tuple[Stage, ...], key: Key, size: int, threads: int) -> None:
    table = np.stack([np.roll(row, shift) for shift in range(size)])
    chain, every = Chain(stages), [replace(key, sequence=index) for index in range(size)]
    done = nalar.sample_batch(table, chain, every, threads=threads, errors="return")
    for index in range(size):
        one = nalar.sample_batch(table[index : index + 1].copy(), chain, every[index : index + 1], errors="return")
        assert one.samples[0] == done.samples[index]


def permuted(stage: Stage, place: list[int]) -> Stage:
    """The same stage where token t is called place[t]."""
    match stage:
        case Bias(values):
            return Bias({place[token]: value for token, value in dict(values).items()})
        case Allow(ids) | Ban(ids):
            return type(stage)([place[token] for token in ids])
        case MinTokens(n, ends):
            return MinTokens(n, [place[token] for token in ends])
        case _:
            return stage


def has_documented_ties(case: Case) -> bool:
    """Whether some stage that puts lower ids first meets equal logits."""
    for step in case.chain.steps(Candidates.from_row(case.row.astype(np.float64)), case.history):
        field = PREFERS_LOW_IDS.get(type(step.stage))
        low_first = field is not None and getattr(step.stage, field) in ("first", 0.0, True)
        finite = step.before.logits[np.isfinite(step.before.logits)]
        if low_first and np.unique(finite).size < finite.size:
            return True
    return False


@settings(max_examples=80)
@given(cases(), st.randoms(use_true_random=False))
def test_permuting_the_vocabulary_permutes_the_law(case: Case, random: Any) -> None:
    law = law_of(case)
    assume(not has_documented_ties(case))
    size = case.row.size
    place = random.sample(range(size), size)
    row = np.empty_like(case.row)
    row[place] = case.row
    prompt, output = ([place[token] if 0 <= token < size else token for token in ids] for ids in (case.prompt, case.output))
    moved = Chain([permuted(stage, place) for stage in case.stages]).distribution(row, History(prompt, output))
    assert sorted(place[token] for token in law.ids.tolist()) == moved.ids.tolist()
    for token in law.ids.tolist():
        assert moved.logprob(place[token]) == pytest.approx(law.logprob(token), rel=1e-11, abs=1e-11)


@given(cases(), st.data())
def test_a_truncation_never_changes_a_probability_ratio_between_survivors(case: Case, data: st.DataObject) -> None:
    before = law_of(case)
    after = law_of(case, (*case.stages, data.draw(truncations(case.row.size))))
    assert set(after.ids.tolist()) <= set(before.ids.tolist())
    kept = math.fsum(before.prob(token) for token in after.ids.tolist())
    for token in after.ids.tolist():
        assert after.prob(token) * kept == pytest.approx(before.prob(token), rel=1e-11, abs=1e-300)
        assert after.logprob(token) - after.logprob(int(after.ids[0])) == pytest.approx(
            before.logprob(token) - before.logprob(int(after.ids[0])), rel=1e-11, abs=1e-11
        )


@given(cases(), st.data())
def test_a_truncation_always_keeps_at_least_the_most_likely_token(case: Case, data: st.DataObject) -> None:
    before = law_of(case)
    after = law_of(case, (*case.stages, data.draw(truncations(case.row.size))))
    assert int(before.top(1)[0]) in after.ids.tolist()
    assert int(after.top(1)[0]) == int(before.top(1)[0])


@given(cases(), st.sampled_from([1e-3, 1e-6, 1e-300, 5e-324]))
def test_greedy_is_the_limit_of_temperature_to_zero(case: Case, cold: float) -> None:
    law_of(case)
    greatest, *others = sorted(case.chain.candidates(case.row, case.history).logits.tolist(), reverse=True)
    assume(not others or greatest - others[0] > 1e3 * cold)  # ties apart
    limit, greedy = law_of(case, (*case.stages, Temperature(cold))), law_of(case, (*case.stages, Temperature(0)))
    assert limit.ids.tolist() == greedy.ids.tolist() == law_of(case).top(1).tolist()
    assert greedy.probs.tolist() == [1.0]


@given(rows(), temperatures())
def test_temperature_never_reorders(row: Any, stage: Temperature) -> None:
    order = np.lexsort((np.arange(row.size), -row.astype(np.float64)))
    logits = Chain([stage]).candidates(row).logits[order]
    assert (logits[1:] <= logits[:-1]).all()
    assert logits[0] > -np.inf
    equal = row[order][1:] == row[order][:-1]
    assert stage.value == 0 or (logits[1:][equal] == logits[:-1][equal]).all()


@given(cases(own=True), st.sampled_from(["inverse", "race"]))
def test_same_key_same_token(case: Case, draw: Any) -> None:
    law = law_of(case)
    key = case.key if case.key.position is not None else case.key.at(len(case.output))
    drawn = nalar.sample(case.row, case.chain, case.key, case.history, draw=draw)
    assert drawn == nalar.sample(case.row.copy(), Chain(case.stages), replace(case.key), case.history, draw=draw)
    assert (drawn.token, drawn.key, drawn.logprob) == (law.draw(key, draw), key, law.logprob(drawn.token))


@given(cases(own=True))
def test_a_chain_equals_its_stages_applied_by_hand(case: Case) -> None:
    law = law_of(case)
    key = case.key if case.key.position is not None else case.key.at(len(case.output))
    history = case.history
    candidates = Candidates(np.arange(case.row.size, dtype=np.int32), case.row.astype(np.float64))
    for index, stage in enumerate(case.stages):
        state = None
        if isinstance(stage, Remembers):
            state = stage.initial(Context(History(case.prompt), case.row.size))
            for token in case.output:
                state = stage.observe(state, token, None)
        candidates = stage.apply(candidates, Context(history, case.row.size, key, index, state))
    items = list(zip(candidates.ids.tolist(), candidates.logits.tolist(), strict=True))
    reference.assert_law(law, reference.softmax(items))


@settings(max_examples=40)
@given(cases())
def test_a_chain_is_its_text(case: Case) -> None:
    assert Chain.parse(str(case.chain)) == case.chain
    assert hash(Chain.parse(str(case.chain))) == hash(case.chain)


@FEW
@given(st.integers(0, 99), keys())
def test_laws_hold_for_a_big_vocabulary(seed: int, key: Key) -> None:
    row, stages = big_row(seed), (TopK(50), Temperature(0.7), TopP(0.9))
    before, law = Chain(stages[:1]).distribution(row), Chain(stages).distribution(row)
    assert law.top(1).tolist() == before.top(1).tolist() == [int(np.argmax(row))]
    drawn = nalar.sample(row, Chain(stages), key, vocabulary=BIG - 7)
    assert drawn.token < BIG - 7
    batch = nalar.sample_batch([row, row[::-1]], Chain(stages), [key, key], threads=2)
    assert batch.samples[0] == nalar.sample(row, Chain(stages), key)
    assert abs(math.fsum(Chain([]).distribution(row).probs.tolist()) - 1) < 1e-12


def test_a_constraint_outside_the_vocabulary_is_an_error() -> None:
    for stage in (Bias({4: 1.0}), Allow([0, 4]), Ban([4]), MinTokens(1, [4])):
        with pytest.raises(InvalidValue, match=r"\[0, 3\].*4"):
            Chain([stage]).distribution(np.zeros(4))
