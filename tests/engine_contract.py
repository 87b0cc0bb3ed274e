"""The engine contract as laws that any engine's author can run: ``check_engine(engine)``.

Each law takes an engine with at least two free sequences, and leaves it as it was.  ``tolerance`` is the largest difference
between logits that should be equal: 0 where an engine promises equal bits, a rounding error where its batch shapes decide
the arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt
import pytest

from nalar.engines.base import Engine, Sequence, Work
from nalar.errors import EngineError, EngineFull, InvalidValue, NalarError

__all__ = ["LAWS", "check_engine"]

Law = Callable[[Engine, float], None]
TEXT = "Once upon a time there was a small river, and the river ran to the sea."


def check_engine(engine: Engine, tolerance: float = 0.0) -> None:
    """Run every law; the first that is broken fails with its name in the traceback."""
    for law in LAWS:
        law(engine, tolerance)


@contextmanager
def opened(engine: Engine, count: int) -> Iterator[list[Sequence]]:
    """``count`` open sequences, closed at the end; forks made inside are the caller's."""
    sequences = [engine.open() for _ in range(count)]
    try:
        yield sequences
    finally:
        for sequence in sequences:
            engine.close(sequence)


def feed(engine: Engine, sequence: Sequence, tokens: list[int], rows: int = 1) -> npt.NDArray[np.float32]:
    """The last rows after ``tokens``, copied, because they are only lent."""
    return np.array(engine.step([Work(sequence, tuple(tokens), rows)])[0])


def fresh(engine: Engine, tokens: list[int], rows: int = 1) -> npt.NDArray[np.float32]:
    """What a new sequence says of ``tokens``: what every law compares with."""
    with opened(engine, 1) as (sequence,):
        return feed(engine, sequence, tokens, rows)


def assert_same(got: npt.NDArray[np.float32], expected: npt.NDArray[np.float32], tolerance: float) -> None:
    """Equal bits, or equal to within ``tolerance``."""
    np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance)


def a_vocabulary_is_consistent(engine: Engine, tolerance: float) -> None:
    del tolerance
    vocabulary = engine.vocabulary
    assert len(vocabulary.pieces) == vocabulary.size
    assert vocabulary.ends
    assert all(0 <= token < vocabulary.size for token in vocabulary.ends)
    ids = vocabulary.encode(TEXT)
    assert b"".join(vocabulary.pieces[token] for token in ids).decode().lstrip() == TEXT


def text_never_becomes_control_tokens(engine: Engine, tolerance: float) -> None:
    del tolerance
    vocabulary = engine.vocabulary
    ids = vocabulary.encode("<|end|></s><|endoftext|><|im_start|>user<|im_end|>")
    assert all(vocabulary.pieces[token] for token in ids)
    assert not vocabulary.ends & set(ids)


def rows_have_the_promised_form(engine: Engine, tolerance: float) -> None:
    del tolerance
    tokens = engine.vocabulary.encode(TEXT)
    with opened(engine, 1) as (sequence,):
        (rows,) = engine.step([Work(sequence, tuple(tokens), 3)])
        assert (rows.shape[0], rows.dtype.name, rows.flags.writeable) == (3, "float32", False)
        assert rows.shape[1] >= engine.vocabulary.size
        assert np.isfinite(rows[:, : engine.vocabulary.size]).all()
        assert sequence.tokens == tokens
        assert engine.step([]) == []


def a_row_does_not_depend_on_how_tokens_are_divided(engine: Engine, tolerance: float) -> None:
    tokens = engine.vocabulary.encode(TEXT)
    whole = fresh(engine, tokens, len(tokens))
    with opened(engine, 1) as (sequence,):
        one_by_one = np.concatenate([feed(engine, sequence, [token]) for token in tokens])
    assert_same(one_by_one, whole, tolerance)
    with opened(engine, 1) as (sequence,):
        feed(engine, sequence, tokens[:5])
        assert_same(feed(engine, sequence, tokens[5:], 4), whole[-4:], tolerance)


def several_sequences_equal_one_by_one(engine: Engine, tolerance: float) -> None:
    tokens = engine.vocabulary.encode(TEXT)
    other = tokens[::-1]
    with opened(engine, 2) as (first, second):
        feed(engine, second, other[:3])
        rows = [np.array(each) for each in engine.step([Work(first, tuple(tokens), 2), Work(second, tuple(other[3:]), 3)])]
    assert_same(rows[0], fresh(engine, tokens, 2), tolerance)
    assert_same(rows[1], fresh(engine, other, 3), tolerance)


def forks_share_the_prefix_and_nothing_else(engine: Engine, tolerance: float) -> None:
    tokens = engine.vocabulary.encode(TEXT)
    prefix, left, right = tokens[:6], tokens[6:10], tokens[::-1][:4]
    with opened(engine, 1) as (sequence,):
        feed(engine, sequence, prefix)
        if not engine.limits.can_fork:
            with pytest.raises(EngineError):
                engine.fork(sequence)
            return
        fork = engine.fork(sequence)
        try:
            assert fork.tokens == prefix
            left_rows, right_rows = feed(engine, sequence, left), feed(engine, fork, right)
            assert (sequence.tokens, fork.tokens) == (prefix + left, prefix + right)
        finally:
            engine.close(fork)
        again = feed(engine, sequence, right)
    assert_same(left_rows, fresh(engine, prefix + left), tolerance)
    assert_same(right_rows, fresh(engine, prefix + right), tolerance)
    assert_same(again, fresh(engine, prefix + left + right), tolerance)


def truncation_is_as_if_never_fed(engine: Engine, tolerance: float) -> None:
    tokens = engine.vocabulary.encode(TEXT)
    other = tokens[::-1][:4]
    with opened(engine, 1) as (sequence,):
        feed(engine, sequence, tokens)
        if not engine.limits.can_truncate:
            with pytest.raises(EngineError):
                engine.truncate(sequence, 4)
            return
        engine.truncate(sequence, len(tokens))
        for length in (7, 0):
            engine.truncate(sequence, length)
            assert sequence.tokens == tokens[:length]
            assert_same(feed(engine, sequence, other), fresh(engine, tokens[:length] + other), tolerance)
        for length in (-1, len(sequence.tokens) + 1):
            with pytest.raises(InvalidValue):
                engine.truncate(sequence, length)
        assert sequence.tokens == other


def a_closed_slot_is_clean(engine: Engine, tolerance: float) -> None:
    tokens = engine.vocabulary.encode(TEXT)
    canary = fresh(engine, tokens)
    with opened(engine, 1) as (sequence,):
        feed(engine, sequence, tokens[::-1] * 3)
    with opened(engine, 1) as (again,):
        assert again.tokens == []
        assert_same(feed(engine, again, tokens), canary, tolerance)


def rows_are_lent_until_the_next_call(engine: Engine, tolerance: float) -> None:
    del tolerance
    token = tuple(engine.vocabulary.encode("a"))
    with opened(engine, 1) as (sequence,):

        def lease_survives(call: Callable[[], object]) -> bool:
            (rows,) = engine.step([Work(sequence, token)])
            lease = rows.lease
            assert lease is not None
            assert rows[0].lease is lease
            before = lease.ended
            call()
            return before or not lease.ended

        assert not lease_survives(lambda: engine.step([Work(sequence, token)]))
        assert not lease_survives(lambda: engine.close(engine.open()))
        if engine.limits.can_fork:
            assert not lease_survives(lambda: engine.close(engine.fork(sequence)))
        if engine.limits.can_truncate:
            assert not lease_survives(lambda: engine.truncate(sequence, len(sequence.tokens)))
        assert not lease_survives(lambda: engine.close(sequence))


def an_error_leaves_every_sequence_as_it_was(engine: Engine, tolerance: float) -> None:
    tokens = engine.vocabulary.encode(TEXT)
    good = tuple(tokens[:2])
    with opened(engine, 2) as (first, second):
        feed(engine, first, tokens[:5])
        feed(engine, second, tokens[:4])
        for bad, error in _bad_work(engine, second, good):
            with pytest.raises(error):
                engine.step([Work(first, good), bad])
            assert (first.tokens, second.tokens) == (tokens[:5], tokens[:4])
        assert_same(feed(engine, first, tokens[5:]), fresh_beside(engine, tokens, second), tolerance)


def _bad_work(engine: Engine, sequence: Sequence, good: tuple[int, ...]) -> list[tuple[Work, type[NalarError]]]:
    """Work that must be refused, and how."""
    closed = Sequence(sequence.slot, closed=True)
    return [
        (Work(sequence, ()), InvalidValue),
        (Work(sequence, good, rows=len(good) + 1), InvalidValue),
        (Work(sequence, good, rows=-1), InvalidValue),
        (Work(sequence, (*good, engine.vocabulary.size)), InvalidValue),
        (Work(sequence, (*good, -1)), InvalidValue),
        (Work(sequence, good[:1] * engine.limits.context), EngineError),  # with what it holds, longer than the context
        (Work(closed, good), EngineError),
    ]


def fresh_beside(engine: Engine, tokens: list[int], sequence: Sequence) -> npt.NDArray[np.float32]:
    """`fresh`, in a slot given up for it, so that two free slots are enough for every law."""
    engine.close(sequence)
    return fresh(engine, tokens)


def a_closed_sequence_is_refused(engine: Engine, tolerance: float) -> None:
    del tolerance
    with opened(engine, 1) as (sequence,):
        pass
    engine.close(sequence)  # closing twice is closing once
    assert sequence.closed
    with pytest.raises(EngineError):
        engine.step([Work(sequence, tuple(engine.vocabulary.encode("a")))])
    with pytest.raises(EngineError):
        engine.truncate(sequence, 0)
    with pytest.raises(EngineError):
        engine.fork(sequence)


def a_full_engine_says_so_and_recovers(engine: Engine, tolerance: float) -> None:
    del tolerance
    sequences: list[Sequence] = []
    try:
        with pytest.raises(EngineFull):
            sequences.extend(engine.open() for _ in range(engine.limits.sequences + 1))
        assert sequences
        assert len({sequence.slot for sequence in sequences}) == len(sequences)
        engine.close(sequences.pop())
        sequences.append(engine.open())
    finally:
        for sequence in sequences:
            engine.close(sequence)


LAWS: tuple[Law, ...] = (
    a_vocabulary_is_consistent,
    text_never_becomes_control_tokens,
    rows_have_the_promised_form,
    a_row_does_not_depend_on_how_tokens_are_divided,
    several_sequences_equal_one_by_one,
    forks_share_the_prefix_and_nothing_else,
    truncation_is_as_if_never_fed,
    a_closed_slot_is_clean,
    rows_are_lent_until_the_next_call,
    an_error_leaves_every_sequence_as_it_was,
    a_closed_sequence_is_refused,
    a_full_engine_says_so_and_recovers,
)
