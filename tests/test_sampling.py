"""The act: one row or many, what is reported of a draw, and how a wrong argument is told."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nalar import Chain, History, Key, NalarError, sample, sample_batch
from nalar.errors import BrokenRow, InvalidType, InvalidValue
from nalar.stages import Ban, Presence, Temperature, TopK

INF = math.inf
ROWS = st.lists(st.sampled_from([-INF, -2.0, 0.0, 0.5, 0.5, 3.0]), min_size=1, max_size=9).filter(lambda row: max(row) > -INF)
CHAIN = Chain([Presence(1.0), Temperature(0.7), TopK(4)])


def log_softmax(row: list[float]) -> list[float]:
    total = math.log(math.fsum(math.exp(logit - max(row)) for logit in row))
    return [logit - max(row) - total for logit in row]


def ranking(scores: list[float]) -> list[int]:
    """The ids, largest score first, the lower id first among equals."""
    return sorted(range(len(scores)), key=lambda token: (-scores[token], token))


@given(ROWS, st.integers(0, 2**64 - 1))
def test_raw_and_final_views_equal_the_formulas(row: list[float], seed: int) -> None:
    scaled = [logit / 0.5 for logit in row]
    kept = ranking(scaled)[:3]
    final = [logit if token in kept else -INF for token, logit in enumerate(scaled)]
    drawn = sample(row, Chain([Temperature(0.5), TopK(3)]), Key(seed), logprobs=len(row))
    token = drawn.token
    assert final[token] > -INF
    assert drawn.logprob == pytest.approx(log_softmax(final)[token], rel=1e-12, abs=1e-14)
    assert drawn.raw_logprob == pytest.approx(log_softmax(row)[token], rel=1e-12, abs=1e-14)
    assert drawn.rank == ranking(final).index(token) + 1
    assert drawn.raw_rank == ranking(row).index(token) + 1
    assert [one.token for one in drawn.raw_top] == ranking(row)
    assert [one.rank for one in drawn.raw_top] == list(range(1, len(row) + 1))
    raw_logprobs = [log_softmax(row)[other] for other in ranking(row)]
    assert [one.logprob for one in drawn.raw_top] == pytest.approx(raw_logprobs, rel=1e-12, abs=1e-14)
    assert [one.token for one in drawn.top] == [other for other in ranking(final) if final[other] > -INF]
    assert [one.logprob for one in drawn.top] == pytest.approx([log_softmax(final)[one.token] for one in drawn.top], rel=1e-12, abs=1e-14)


def test_ties_are_ranked_by_the_lower_id() -> None:
    best = sample([0.0, 1.0, 0.0, 1.0, -INF], Chain(), Key(1), logprobs=5)
    assert [(one.token, one.rank) for one in best.top] == [(1, 1), (3, 2), (0, 3), (2, 4)]
    assert [(one.token, one.rank) for one in best.raw_top] == [(1, 1), (3, 2), (0, 3), (2, 4), (4, 5)]
    assert best.raw_top[4].logprob == -INF
    for seed in range(20):
        one = sample([0.0, 1.0, 0.0, 1.0], Chain(), Key(seed), logprobs=0)
        assert one.rank == one.raw_rank == {1: 1, 3: 2, 0: 3, 2: 4}[one.token]


def test_what_is_reported_grows_with_what_is_asked() -> None:
    plain, ranks, best = (sample([0.0, 1.0, 2.0], CHAIN, Key(1), logprobs=n) for n in (None, 0, 2))
    assert (plain.rank, plain.raw_logprob, plain.raw_rank, plain.top, plain.raw_top, plain.law) == (None, None, None, (), (), None)
    assert (ranks.top, ranks.raw_top) == ((), ())
    assert None not in (ranks.rank, ranks.raw_logprob, ranks.raw_rank)
    assert (len(best.top), len(best.raw_top)) == (2, 2)
    assert plain.token == ranks.token == best.token
    assert plain.logprob == ranks.logprob == best.logprob


def test_the_raw_view_is_of_the_logits_as_given_and_the_final_one_of_the_law() -> None:
    drawn = sample([0.0, 0.0, 5.0, 9.0], Chain([Ban([2])]), Key(3), vocabulary=3, logprobs=3)
    assert drawn.token in (0, 1)
    assert drawn.logprob == pytest.approx(math.log(0.5))
    assert drawn.raw_logprob == pytest.approx(log_softmax([0.0, 0.0, 5.0])[drawn.token])  # padding is not of the row
    assert (drawn.top[0].token, drawn.raw_top[0].token) == (0, 2)
    assert (drawn.rank, drawn.raw_rank) == (drawn.token + 1, drawn.token + 2)


def test_a_deterministic_draw_has_logprob_zero() -> None:
    drawn = sample([0.0, 3.0], Chain([Temperature(0)]), Key(1), logprobs=0)
    assert (drawn.token, drawn.logprob, drawn.rank) == (1, 0.0, 1)
    assert math.copysign(1, drawn.logprob) == 1


def test_keep_law_keeps_the_law_the_token_came_from() -> None:
    history = History(output=[1])
    drawn = sample([0.0, 1.0, 2.0], CHAIN, Key(1), history, keep_law=True)
    law = CHAIN.distribution([0.0, 1.0, 2.0], history)
    assert drawn.law is not None
    assert (drawn.law.ids.tolist(), drawn.law.probs.tolist()) == (law.ids.tolist(), law.probs.tolist())
    assert drawn.logprob == law.logprob(drawn.token)


@pytest.mark.parametrize("draw", ["inverse", "race"])
def test_a_draw_is_that_of_the_law_with_the_same_key(draw: Any) -> None:
    row = [0.0, 1.0, 0.5, 0.2]
    for seed in range(30):
        key = Key(seed, position=4)
        assert sample(row, CHAIN, key, draw=draw).token == CHAIN.distribution(row).draw(key, draw)


def test_the_position_is_the_output_s_length_unless_it_is_given() -> None:
    history = History(prompt=[3, 3], output=[0, 1, 2])
    tokens = {position: sample([0.0] * 50, Chain(), Key(5, position=position)).token for position in range(6)}
    assert len(set(tokens.values())) > 3
    drawn = sample([0.0] * 50, Chain(), Key(5), history)
    assert (drawn.token, drawn.key) == (tokens[3], Key(5, position=3))
    given = sample([0.0] * 50, Chain(), Key(5, position=1), history)
    assert (given.token, given.key) == (tokens[1], Key(5, position=1))
    assert sample([0.0] * 50, Chain(), Key(5)).token == tokens[0]


@given(st.integers(0, 2**32), st.integers(1, 5))
def test_a_batch_equals_its_rows_one_by_one(seed: int, size: int) -> None:
    rows = np.random.default_rng(seed).normal(size=(size, 7))
    keys = [Key(seed, sequence=n) for n in range(size)]
    histories = [History([1], [n % 7] * n) for n in range(size)]
    batch = sample_batch(rows, CHAIN, keys, histories, logprobs=2)
    alone = [sample(row, CHAIN, key, history, logprobs=2) for row, key, history in zip(rows, keys, histories, strict=True)]
    assert list(batch.samples) == alone
    assert batch.tokens.tolist() == [one.token for one in alone]
    assert batch.logprobs.tolist() == [one.logprob for one in alone]
    assert (batch.tokens.dtype, batch.logprobs.dtype, batch.errors) == (np.int32, np.float64, (None,) * size)
    assert sample_batch(rows, [CHAIN] * size, keys, histories, logprobs=2, threads=2).samples == batch.samples


def test_rows_may_differ_in_size_type_chain_and_history() -> None:
    rows = [np.zeros(3, np.float16), [0.0, 9.0], np.zeros(5)]
    chains = [Chain(), Chain([Temperature(0)]), Chain([Ban([0, 1, 2, 3])])]
    batch = sample_batch(rows, chains, [Key(1), Key(2), Key(3)], [None, History([1]), None])
    assert batch.tokens[1:].tolist() == [1, 4]
    assert batch.tokens[0] < 3


def test_a_broken_row_fails_alone_or_the_first_is_raised() -> None:
    rows = [[0.0, 1.0], [math.nan, 1.0], [0.0, 1.0], [-INF, -INF], "no row", [5.0, 0.0]]
    keys = [Key(7, sequence=n) for n in range(6)]
    batch = sample_batch(rows, Chain(), keys, errors="return", threads=2)
    assert [n for n, error in enumerate(batch.errors) if error is not None] == [1, 3, 4]
    assert batch.tokens[[1, 3, 4]].tolist() == [-1, -1, -1]
    assert np.isnan(batch.logprobs[[1, 3, 4]]).all()
    assert [one is None for one in batch.samples] == [False, True, False, True, True, False]
    assert [getattr(batch.errors[n], "row", None) for n in (1, 3)] == [1, 3]
    assert isinstance(batch.errors[4], InvalidType)
    for n in (0, 2, 5):
        assert batch.tokens[n] == sample(rows[n], Chain(), keys[n]).token
    with pytest.raises(BrokenRow, match="row 1: logits must be finite") as caught:
        sample_batch(rows, Chain(), keys)
    assert caught.value.row == 1


def test_an_empty_batch_is_empty() -> None:
    batch = sample_batch(np.zeros((0, 4)), Chain(), [])
    assert (batch.tokens.shape, batch.logprobs.shape, batch.samples) == ((0,), (0,), ())


BATCH: dict[str, Any] = {"rows": np.zeros((2, 3)), "chains": Chain(), "keys": [Key(1), Key(2)]}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rows": np.zeros(3)}, r"rows must be .* got shape \[3\]"), ({"rows": np.zeros((1, 2, 3))}, "rows must be"),
        ({"keys": Key(1)}, "keys must be a list with one entry for each of the 2 rows, got Key"),
        ({"keys": [Key(1)]}, "keys must .* got 1"),
        ({"chains": [Chain()]}, "chains must be .* 2 rows, got 1"), ({"histories": [None]}, "histories must be .* got 1"),
        ({"threads": 0}, "threads must be an integer >= 1, got 0"),
        ({"errors": "ignore"}, "errors must be one of 'raise', 'return', got 'ignore'"),
        ({"keys": [Key(1), 2]}, "key must be a nalar.Key, got 2"), ({"chains": ["identity", Chain()]}, "chain must be a nalar.Chain"),
        ({"histories": [None, [1]]}, r"history must be a nalar.History, got \[1\]"),
    ],
)
def test_a_wrong_batch_is_told_by_name(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(NalarError, match=words):
        sample_batch(**(BATCH | changes))


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        ({"key": 7}, InvalidType, "key must be a nalar.Key, got 7"), ({"key": None}, InvalidType, "key must be a nalar.Key, got None"),
        ({"chain": "top_k(4)"}, InvalidType, "chain must be a nalar.Chain .* got 'top_k"),
        ({"chain": [TopK(1)]}, InvalidType, "chain must"),
        ({"history": [1, 2]}, InvalidType, "history must be a nalar.History"),
        ({"draw": "gumbel"}, InvalidValue, "draw must be one of 'inverse', 'race'"),
        ({"logprobs": -1}, InvalidValue, r"logprobs must be an integer in \[0, 3\], got -1"),
        ({"logprobs": 4}, InvalidValue, "logprobs must"),
        ({"logprobs": True}, InvalidType, "logprobs must"),
        ({"logprobs": 3, "vocabulary": 2}, InvalidValue, r"logprobs must be .* \[0, 2\]"),
        ({"vocabulary": 4}, InvalidValue, r"vocabulary must be an integer in \[1, 3\].* got 4"),
        ({"vocabulary": "3"}, InvalidType, "vocabulary must"),
    ],
)
def test_a_wrong_argument_is_told_by_name_range_and_value(changes: dict[str, Any], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        sample(**({"logits": [0.0, 1.0, 2.0], "chain": Chain(), "key": Key(1)} | changes))
