"""The history equals a plain list, whatever is appended, rolled back and copied, and never does more work than the tokens it changes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from nalar import History, NalarError
from nalar.errors import InvalidType, InvalidValue

EDGES = [-(2**31), -1, 0, 1, 2**31 - 1]
IDS = st.sampled_from([*EDGES, 5, 7]) | st.integers(-(2**31), 2**31 - 1)
STATES = st.none() | st.tuples(st.integers(0, 9))


def naive_counts(prompt: list[int], output: list[int]) -> list[tuple[int, int, int]]:
    """(id, in the prompt, in the output), ids in the order in which they first occur."""
    before, after = Counter(prompt), Counter(output)
    return [(token, before[token], after[token]) for token in dict.fromkeys(prompt + output)]


def counts(history: History) -> list[tuple[int, int, int]]:
    columns = history.counts.ids, history.counts.prompt, history.counts.output
    return list(zip(*(column.tolist() for column in columns), strict=True))


class AgainstAList(RuleBasedStateMachine):
    """Every public reading of a history and of a copy that is left behind, against two lists."""

    @initialize(prompt=st.lists(IDS, max_size=8), output=st.lists(IDS, max_size=8))
    def start(self, prompt: list[int], output: list[int]) -> None:
        self.history, self.prompt = History(prompt, output), prompt
        self.log: list[tuple[int, Any]] = [(token, None) for token in output]
        self.kept: tuple[History, list[tuple[int, Any]]] = self.history.copy(), list(self.log)

    @rule(token=IDS, states=STATES)
    def append(self, token: int, states: Any) -> None:
        self.history.append(token, states)
        self.log.append((token, states))

    @rule(token=st.sampled_from(EDGES), times=st.integers(1, 80))
    def append_many(self, token: int, times: int) -> None:
        for n in range(times):
            self.history.append(token + n if token < 2**30 else token)
            self.log.append((token + n if token < 2**30 else token, None))

    @rule(share=st.floats(0, 1))
    def rollback(self, share: float) -> None:
        n = round(share * len(self.log))
        self.history.rollback(n)
        del self.log[len(self.log) - n :]

    @rule(extra=st.integers(1, 5))
    def rollback_too_far(self, extra: int) -> None:
        with pytest.raises(InvalidValue, match="n must be an integer in"):
            self.history.rollback(len(self.log) + extra)

    @rule()
    def keep_a_copy(self) -> None:
        self.kept = self.history.copy(), list(self.log)

    @rule()
    def go_on_with_the_copy(self) -> None:
        (self.history, self.log), self.kept = self.kept, (self.history, self.log)

    @invariant()
    def equals_the_list(self) -> None:
        for history, log in ((self.history, self.log), self.kept):
            output = [token for token, _ in log]
            assert history.prompt.tolist() == self.prompt
            assert history.output.tolist() == output
            assert history.tokens.tolist() == self.prompt + output
            assert (len(history), history.position) == (len(self.prompt) + len(output), len(output))
            assert list(history.log()) == log
            assert counts(history) == naive_counts(self.prompt, output)
            known = [states for _, states in log if states is not None]
            last = max((n for n, (_, states) in enumerate(log) if states is not None), default=-1)
            assert history.latest_states() == (known[-1] if known else None, output[last + 1 :])


AgainstAList.TestCase.settings = settings(max_examples=40, stateful_step_count=25)
TestAgainstAList = AgainstAList.TestCase


def test_the_counts_keep_prompt_and_output_apart() -> None:
    history = History(prompt=[1, 5, 5], output=[7, 5])
    assert counts(history) == [(1, 1, 0), (5, 2, 1), (7, 0, 1)]
    history.rollback(2)
    assert counts(history) == [(1, 1, 0), (5, 2, 0)]
    history.append(9)
    assert counts(history) == [(1, 1, 0), (5, 2, 0), (9, 0, 1)]


def test_any_int32_is_a_token() -> None:
    history = History(prompt=EDGES, output=np.array(EDGES))
    for token in EDGES:
        history.append(token)
        history.append(np.int64(token))
    assert history.output.tolist() == EDGES + [token for token in EDGES for _ in range(2)]
    assert history.tokens.dtype == history.prompt.dtype == history.output.dtype == np.int32


COLLECTIONS = [np.array([3, 1], ">i8"), np.array([3, 1], np.uint8), (3, 1), range(3, 0, -2), iter([3, 1]), {3: 0, 1: 0}]


@pytest.mark.parametrize("tokens", COLLECTIONS, ids=lambda tokens: type(tokens).__name__)
def test_every_collection_of_whole_numbers_is_taken(tokens: Any) -> None:
    assert History(prompt=tokens).prompt.tolist() == [3, 1]


BAD = [
    5, None, "12", b"12", [1.0], [0.5], [True], [1, True], ["1"], [None], [[1, 2]], [1, [2]],
    np.zeros((2, 2), int), np.array(5), np.array([True]), np.array([1.0]),
]


@pytest.mark.parametrize("tokens", BAD, ids=repr)
def test_what_is_no_list_of_ids_is_refused(tokens: Any) -> None:
    for name in ("prompt", "output"):
        with pytest.raises(InvalidType, match=f"{name} must"):
            History(**{name: tokens})


@pytest.mark.parametrize("token", [2**31, -(2**31) - 1, 2**63 - 1, -(2**63)])
def test_ids_beyond_int32_are_refused(token: int) -> None:
    with pytest.raises(InvalidValue, match=f"prompt must hold token ids in .* got {token}"):
        History(prompt=[0, token])
    with pytest.raises(InvalidValue, match=f"token must be an integer in .*got {token}"):
        History().append(token)
    with pytest.raises(NalarError):
        History(output=[2**80])


@pytest.mark.parametrize("token", [1.0, "1", None, True, np.True_, [1]])
def test_a_token_that_is_no_integer_is_refused_and_nothing_is_appended(token: Any) -> None:
    history = History(prompt=[1])
    with pytest.raises(InvalidType, match="token must be an integer"):
        history.append(token)
    assert (len(history), counts(history)) == (1, [(1, 1, 0)])


@pytest.mark.parametrize("n", [-1, 3, 1.0, "1", True, None])
def test_a_rollback_reaches_the_output_only(n: Any) -> None:
    history = History(prompt=[4, 4], output=[1, 2])
    with pytest.raises(NalarError, match=r"n must be an integer in \[0, 2\]"):
        history.rollback(n)
    assert history.output.tolist() == [1, 2]


@pytest.mark.parametrize("view", ["tokens", "prompt", "output"])
def test_views_are_read_only(view: str) -> None:
    with pytest.raises(ValueError, match="read-only"):
        getattr(History([1], [2]), view)[0] = 9


@pytest.mark.parametrize("column", ["ids", "prompt", "output"])
def test_counts_are_read_only(column: str) -> None:
    history = History([1], [2])
    with pytest.raises(ValueError, match="read-only"):
        getattr(history.counts, column)[0] = 9
    history.append(1)
    assert counts(history) == [(1, 1, 1), (2, 0, 1)]


def test_the_prompt_is_copied_and_not_borrowed() -> None:
    prompt = np.array([1, 2], np.int32)
    history = History(prompt)
    prompt[0] = 9
    assert history.prompt.tolist() == [1, 2]


def test_a_copy_is_independent_both_ways() -> None:
    one = History([1], [2, 3])
    two = one.copy()
    one.append(4)
    two.rollback(2)
    two.append(1, ("state",))
    assert (one.output.tolist(), two.output.tolist()) == ([2, 3, 4], [1])
    assert (counts(one), counts(two)) == ([(1, 1, 0), (2, 0, 1), (3, 0, 1), (4, 0, 1)], [(1, 1, 1)])
    assert list(one.log()) == [(2, None), (3, None), (4, None)]
    assert list(two.log()) == [(1, ("state",))]


def test_repr_tells_prompt_and_output() -> None:
    assert repr(History([1], [2])) == "History(prompt=[1], output=[2])"


def test_appending_reallocates_a_logarithmic_number_of_times() -> None:
    history, buffers, tables = History(), set(), set()
    for n in range(20_000):
        history.append(n)
        buffers.add(history.tokens.__array_interface__["data"][0] if n % 64 == 0 else 0)
        tables.add(history.counts._columns.shape[1])
    assert history.output.tolist() == list(range(20_000))
    assert history._tokens.size < 4 * 20_000  # grows by a factor, so few times, and wastes a constant factor
    assert len(tables) <= 12
    assert len(buffers) <= 24


def test_rolling_back_touches_only_what_is_dropped() -> None:
    history = History(prompt=range(1000))
    for n in range(1000):
        history.append(n % 7)
    buffer = history._tokens
    history.rollback(500)
    assert history._tokens is buffer  # truncation, not a copy
    assert history.counts.ids.size == 1000
    assert history.counts.output[:7].tolist() == [Counter(n % 7 for n in range(500))[token] for token in range(7)]
