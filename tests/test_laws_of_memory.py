"""The laws about what is kept and what is left alone: inputs, histories, samplers, and the rows beside a broken one."""

from __future__ import annotations

import pickle
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import nalar
from nalar import Chain, Distribution, History, Key, Sampler
from nalar.candidates import Candidates
from nalar.errors import BrokenRow, InvalidType, InvalidValue
from nalar.stages import Context, Stage, Temperature, TopK
from strategies import Case, Remembers, cases, keys, rows, stage_lists

MANY_TOKENS = st.lists(st.integers(0, 39), max_size=8)


@dataclass(frozen=True)
class Raises(Stage):
    """A user's stage with a mistake in it."""

    def apply(self, candidates: Candidates, context: Context) -> Candidates:
        raise ZeroDivisionError("a user's mistake")


def sampler_of(case: Case, draw: Any = "inverse") -> Sampler:
    return Sampler(case.chain, case.key.seed, case.key.sequence, case.prompt, case.output, draw=draw)


def usable(case: Case) -> None:
    """Throws an example away where a constraint leaves nothing, now or a few tokens later."""
    try:
        for extra in range(4):
            case.chain.distribution(case.row, History(case.prompt, [*case.output, *[0] * extra]), case.key)
    except BrokenRow:
        assume(False)


def same(law: Distribution, other: Distribution) -> bool:
    return bool(np.array_equal(law.ids, other.ids) and np.array_equal(law.logprobs, other.logprobs))


def everything(sampler: Sampler) -> Any:
    """All that a sampler knows, as a value: its snapshot, and what its history tells."""
    history = sampler.history
    return sampler.snapshot(), told_by(history), history.position, len(history), history.log(), sampler.key


def told_by(history: History) -> list[list[int]]:
    counts = history.counts
    columns = (history.prompt, history.output, history.tokens, counts.ids, counts.prompt, counts.output)
    return [column.tolist() for column in columns]


@given(cases(own=True), st.sampled_from(["inverse", "race"]), st.sampled_from(["contiguous", "strided", "reversed", "frozen"]))
def test_inputs_are_not_modified(case: Case, draw: Any, layout: str) -> None:
    usable(case)
    base = np.zeros(2 * case.row.size, case.row.dtype)
    row = base[::2] if layout == "strided" else base[: case.row.size][:: -1 if layout == "reversed" else 1]
    row[:] = case.row
    row.flags.writeable = layout != "frozen"
    history, before = case.history, base.tobytes()
    told = told_by(case.history)
    drawn = nalar.sample(row, case.chain, case.key, history, draw=draw, logprobs=min(3, row.size), keep_law=True)
    nalar.sample_batch([row, row], case.chain, [case.key] * 2, [history] * 2, threads=2, draw=draw)
    left = case.chain.candidates(row, history, case.key).logits
    assert not left.flags.writeable or not np.shares_memory(left, base)
    assert base.tobytes() == before
    assert told_by(history) == told
    base[:] = 1  # a law that is kept does not look at the row again
    assert drawn.law is not None
    assert same(drawn.law.hold(), case.chain.distribution(case.row, case.history, case.key))


@settings(max_examples=40)
@given(rows(1, 12), stage_lists(1), st.data())
def test_a_stage_does_not_modify_its_candidates(row: Any, stages: tuple[Stage, ...], data: st.DataObject) -> None:
    history = History([0, 0, -1], data.draw(st.lists(st.integers(0, 3), max_size=4)))
    for stage in stages:
        given_ids, given_logits = np.arange(row.size, dtype=np.int32), row.astype(np.float64)
        candidates = Candidates(given_ids.copy(), given_logits.copy())
        candidates.ids.flags.writeable = candidates.logits.flags.writeable = False
        after = stage.apply(candidates, Context(history, row.size))
        assert np.array_equal(candidates.logits, given_logits)
        assert np.array_equal(candidates.ids, given_ids)
        assert after.log_total is None or after.log_total == pytest.approx(candidates.total(), rel=1e-12)


@given(cases(own=True), MANY_TOKENS, MANY_TOKENS, st.booleans())
def test_commit_then_rollback_is_as_if_never_committed(case: Case, first: list[int], second: list[int], drawn: bool) -> None:
    usable(case)
    sampler, never = sampler_of(case), sampler_of(case)
    tokens = [token % case.row.size for token in first]
    sampler.commit(tokens)
    never.commit(tokens)
    before = everything(sampler)
    if drawn:
        for _ in range(min(2, len(second))):
            sampler.sample(case.row)
    else:
        sampler.commit(second)
    sampler.rollback(sampler.history.position - never.history.position)
    assert everything(sampler) == everything(never) == before
    assert sampler.sample(case.row) == never.sample(case.row)
    assert everything(sampler) == everything(never)


@settings(max_examples=40)
@given(cases(own=True), st.lists(st.integers(0, 39), min_size=1, max_size=3))
def test_a_rolled_back_sampler_equals_one_built_from_what_is_left(case: Case, tokens: list[int]) -> None:
    usable(case)
    sampler = sampler_of(case)
    sampler.commit(tokens)
    sampler.rollback(1)
    rebuilt = Sampler(case.chain, case.key.seed, case.key.sequence, case.prompt, [*case.output, *tokens[:-1]])
    assert sampler.sample(case.row) == rebuilt.sample(case.row)


def test_history_behaves_as_a_list_does() -> None:
    random = np.random.default_rng(5)
    prompt = random.integers(-1, 9, 20).tolist()
    history, output = History(prompt), list[int]()
    for _ in range(600):
        if output and random.random() < 0.4:
            n = int(random.integers(0, min(len(output), 70) + 1))
            history.rollback(n)
            output = output[: len(output) - n]
        else:
            for token in random.integers(-1, 90, int(random.integers(1, 9))).tolist():
                history.append(token)
                output.append(token)
        distinct = list(dict.fromkeys(prompt + output))
        assert history.tokens.tolist() == prompt + output
        assert history.counts.ids.tolist() == distinct
        assert history.counts.prompt.tolist() == [prompt.count(token) for token in distinct]
        assert history.counts.output.tolist() == [output.count(token) for token in distinct]


@given(cases(own=True), st.lists(st.integers(0, 39), max_size=3))
def test_distributions_commits_nothing(case: Case, draft: list[int]) -> None:
    usable(case)
    draft = [token % case.row.size for token in draft]
    table = [np.roll(case.row, shift) for shift in range(len(draft) + 1)]
    sampler = sampler_of(case)
    before = everything(sampler)
    try:
        window = sampler.distributions(table, draft)
    except BrokenRow:
        assert everything(sampler) == before
        return
    assert everything(sampler) == before
    assert len(window) == len(draft) + 1
    for index in range(len(draft) + 1):
        if Remembers() in case.stages:  # what it saw along the draft is not in ids alone: the window test below compares it
            break
        history = History(case.prompt, [*case.output, *draft[:index]])
        assert same(window[index], case.chain.distribution(table[index], history, Key(case.key.seed, case.key.sequence)))


@settings(max_examples=40)
@given(cases(own=True, low=2), st.integers(1, 3))
def test_a_committed_window_equals_sampling_one_by_one(case: Case, count: int) -> None:
    usable(case)
    slow, fast = sampler_of(case), sampler_of(case)
    table = [np.roll(case.row, shift) for shift in range(count)]
    try:
        tokens = [slow.sample(row).token for row in table]
    except BrokenRow:
        assume(False)
    window = fast.distributions(table, tokens[:-1])
    assert [law.draw(fast.key.at(len(case.output) + index)) for index, law in enumerate(window.laws)] == tokens
    fast.commit(tokens, window)
    assert everything(fast) == everything(slow)


def test_two_windows_at_one_point_are_both_good() -> None:
    """``distributions`` commits nothing, so a second look does not spoil the first window."""
    sampler = Sampler(Chain([Remembers()]), seed=1)
    first = sampler.distributions([[0.0, 1.0]] * 2, [1])
    sampler.distributions([[0.0, 1.0]] * 2, [0])
    sampler.commit([1, 0], first)
    assert sampler.history.output.tolist() == [1, 0]


@settings(max_examples=40)
@given(cases(own=True), st.integers(0, 3))
def test_a_snapshot_and_a_fork_go_on_as_if_nothing_had_happened(case: Case, steps: int) -> None:
    usable(case)
    sampler = sampler_of(case)
    for _ in range(min(steps, 3)):
        sampler.sample(case.row)
    restored = Sampler.restore(pickle.loads(pickle.dumps(sampler.snapshot())))
    assert everything(restored) == everything(sampler)
    sequence = (case.key.sequence + 1) % 2**32
    fork, before = sampler.fork(sequence), everything(sampler)
    assert fork.key == replace(sampler.key, sequence=sequence)
    fork.sample(case.row)
    assert everything(sampler) == before
    assert restored.sample(case.row) == sampler.sample(case.row)


@given(rows(), st.integers(0, 3), keys(), st.sampled_from(["inverse", "race"]))
def test_every_drawn_token_has_positive_probability_and_is_in_range(row: Any, padding: int, key: Key, draw: Any) -> None:
    padded = np.concatenate([row, np.full(padding, np.inf if key.seed % 2 else 60.0, row.dtype)])
    drawn = nalar.sample(padded, Chain([]), key, draw=draw, vocabulary=row.size, logprobs=0, keep_law=True)
    assert 0 <= drawn.token < row.size
    assert row[drawn.token] > -np.inf
    assert drawn.law is not None
    assert drawn.law.prob(drawn.token) > 0
    assert drawn == replace(nalar.sample(row, Chain([]), key, draw=draw, logprobs=0, keep_law=True), law=drawn.law)
    assert Sampler(Chain([]), seed=key.seed, vocabulary=row.size, draw=draw).sample(padded).token < row.size


@pytest.mark.parametrize("vocabulary", [0, 4, -1, 1.5, True, "2"])
def test_a_vocabulary_that_does_not_fit_the_row_is_an_error(vocabulary: Any) -> None:
    with pytest.raises((InvalidValue, InvalidType), match=r"vocabulary must be an integer in \[1, 3\].*, got"):
        nalar.sample(np.zeros(3), Chain([]), Key(1), vocabulary=vocabulary)


@given(cases(own=True), st.sampled_from(["inverse", "race"]))
def test_every_token_drawn_by_a_chain_is_one_of_its_law(case: Case, draw: Any) -> None:
    usable(case)
    law = case.chain.distribution(case.row, case.history, case.key)
    drawn = nalar.sample(case.row, case.chain, case.key, case.history, draw=draw)
    assert law.prob(drawn.token) > 0
    assert case.row[drawn.token] > -np.inf


@pytest.mark.parametrize("threads", [1, 2])
@settings(max_examples=30)
@given(batch=st.lists(cases(own=True), min_size=1, max_size=4), place=st.integers(0, 3))
def test_a_users_exception_on_one_row_fails_that_row_only(threads: int, batch: list[Case], place: int) -> None:
    place %= len(batch)
    broken = replace(batch[place], stages=(Raises(),))
    listed = [*batch[:place], broken, *batch[place + 1 :]]
    columns = [[getattr(case, name) for case in listed] for name in ("row", "chain", "key", "history")]
    done = nalar.sample_batch(*columns, threads=threads, errors="return")
    assert isinstance(done.errors[place], ZeroDivisionError)
    assert (done.samples[place], done.tokens[place]) == (None, -1)
    assert np.isnan(done.logprobs[place])
    for index, case in enumerate(listed):
        if index != place and done.errors[index] is None:
            assert done.samples[index] == nalar.sample(case.row, case.chain, case.key, case.history)
        elif index != place:
            assert isinstance(done.errors[index], BrokenRow)
    if all(isinstance(error, ZeroDivisionError | None) for error in done.errors):
        with pytest.raises(ZeroDivisionError, match="a user's mistake"):
            nalar.sample_batch(*columns, threads=threads)


def test_after_an_error_a_sampler_has_committed_nothing() -> None:
    sampler = Sampler(Chain([TopK(2), Raises()]), seed=3, prompt=[1], output=[0])
    before = everything(sampler)
    for broken in ([0.0, 1.0], [np.nan, 1.0], [-np.inf, -np.inf]):
        with pytest.raises((ZeroDivisionError, BrokenRow)):
            sampler.sample(broken)
        with pytest.raises((ZeroDivisionError, BrokenRow)):
            sampler.distributions([broken, broken], [1])
    assert everything(sampler) == before


def test_after_a_broken_draft_row_a_sampler_has_committed_nothing() -> None:
    sampler = Sampler(Chain([Temperature(0.5), Remembers()]), seed=3, prompt=[1], output=[0])
    before = everything(sampler)
    with pytest.raises(BrokenRow):
        sampler.distributions([[0.0, 1.0], [0.0, 1.0], [np.nan, 1.0]], [1, 0])
    assert everything(sampler) == before
