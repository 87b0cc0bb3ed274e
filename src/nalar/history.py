"""What a sequence has said: prompt and output ids as a log, with counts that follow along.

Append and truncate take constant time.  Rollback is truncation: since ids enter the table of distinct ids in the order
in which they first occur, undoing the log from its end empties that table from its end too, and nothing is searched for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from nalar.checks import check_integer
from nalar.errors import InvalidType, InvalidValue

__all__ = ["Counts", "History", "States", "as_ids", "check_history"]

Int32 = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class States:
    """What a chain's stages with memory know at one point: one value a stage, None for those without.

    They name the stages they belong to: a draft's chain, or a new chain for the same history, must not take them for its own.
    """

    stages: tuple[Any, ...] = ()
    values: tuple[Any, ...] = ()


class Counts:
    """Distinct ids with how often each occurs in the prompt and in the output: three parallel columns."""

    __slots__ = ("_columns", "_place", "_used")

    def __init__(self) -> None:
        self._place: dict[int, int] = {}
        self._columns = np.zeros((3, 64), np.int32)  # ids, prompt counts, output counts
        self._used = 0

    @property
    def ids(self) -> Int32:
        """The distinct ids, in the order in which they first occurred."""
        return _read_only(self._columns[0, : self._used])

    @property
    def prompt(self) -> Int32:
        """How often each occurs in the prompt."""
        return _read_only(self._columns[1, : self._used])

    @property
    def output(self) -> Int32:
        """How often each occurs in the output."""
        return _read_only(self._columns[2, : self._used])

    def add(self, token: int, column: int) -> None:
        place = self._place.get(token)
        if place is None:
            place = self._place[token] = self._used
            if place == self._columns.shape[1]:
                self._columns = np.concatenate([self._columns, np.zeros_like(self._columns)], axis=1)
            self._columns[:, place] = token, 0, 0
            self._used += 1
        self._columns[column, place] += 1

    def remove(self, token: int, column: int) -> None:
        place = self._place[token]
        self._columns[column, place] -= 1
        if not self._columns[1:, place].any():
            del self._place[token]
            self._used = place  # the last in, the first out

    def copy(self) -> Counts:
        twin = Counts()
        twin._place, twin._columns, twin._used = self._place.copy(), self._columns.copy(), self._used
        return twin


class History:
    """``History(prompt=[…], output=[…])``: token ids, any int32; ids outside a row's vocabulary are kept and never penalised.

    A log of (token, states): ``states`` are what the chain's stages with memory know after that token, and None where the ids
    were given alone.  ``prompt``, ``output`` and ``tokens`` are read-only int32 views.

    >>> history = History(prompt=[1, 5, 5], output=[7])
    >>> history.append(5)
    >>> history.output.tolist(), history.counts.ids.tolist(), history.counts.prompt.tolist(), history.counts.output.tolist()
    ([7, 5], [1, 5, 7], [1, 2, 0], [0, 1, 1])
    >>> history.rollback(1)
    >>> history.output.tolist()
    [7]
    """

    __slots__ = ("_length", "_states", "_tokens", "boundary", "counts", "revision")

    def __init__(self, prompt: Iterable[int] = (), output: Iterable[int] = ()) -> None:
        before, after = as_ids("prompt", prompt), as_ids("output", output)
        self.boundary = before.size
        self.counts = Counts()
        self.revision = 0  # changes with every append and truncation, so that a window knows when it is stale
        self._tokens = np.concatenate([before, after, np.zeros(64, np.int32)])
        self._length = before.size + after.size
        self._states: list[States | None] = [None] * after.size
        for index, token in enumerate(self.tokens.tolist()):
            self.counts.add(token, 1 if index < self.boundary else 2)

    def __len__(self) -> int:
        """Prompt and output tokens together."""
        return self._length

    @property
    def tokens(self) -> Int32:
        """Prompt and output, int32 [length]."""
        return _read_only(self._tokens[: self._length])

    @property
    def prompt(self) -> Int32:
        """The ids before the first drawn token, int32."""
        return _read_only(self._tokens[: self.boundary])

    @property
    def output(self) -> Int32:
        """The drawn ids, int32."""
        return _read_only(self._tokens[self.boundary : self._length])

    @property
    def position(self) -> int:
        """Output tokens so far: the position of the next draw."""
        return self._length - self.boundary

    def latest_states(self) -> tuple[States | None, list[int]]:
        """The newest states in the log, and the output tokens after them: all of the output where none were kept."""
        known = self.position
        while known and self._states[known - 1] is None:
            known -= 1
        return (self._states[known - 1] if known else None), self.output[known:].tolist()

    def append(self, token: int, states: States | None = None) -> None:
        """Add one output token and the states after it."""
        token = check_integer("token", token, -(2**31), 2**31 - 1)
        if self._length == self._tokens.size:
            self._tokens = np.concatenate([self._tokens, np.zeros_like(self._tokens)])
        self._tokens[self._length] = token
        self._length += 1
        self._states.append(states)
        self.counts.add(token, 2)
        self.revision += 1

    def rollback(self, n: int) -> None:
        """Drop the last ``n`` output tokens, in [0, len(output)], with their states."""
        for _ in range(check_integer("n", n, 0, self.position)):
            self._length -= 1
            self._states.pop()
            self.counts.remove(int(self._tokens[self._length]), 2)
            self.revision += 1

    def log(self) -> Sequence[tuple[int, States | None]]:
        """The output as (token, states after it)."""
        return list(zip(self.output.tolist(), self._states, strict=True))

    def copy(self) -> History:
        """An independent history with the same log."""
        twin = History.__new__(History)
        twin.boundary, twin.revision, twin._length = self.boundary, self.revision, self._length
        twin._tokens, twin._states, twin.counts = self._tokens.copy(), self._states.copy(), self.counts.copy()
        return twin

    def __repr__(self) -> str:
        return f"History(prompt={self.prompt.tolist()}, output={self.output.tolist()})"


def check_history(history: Any) -> History:
    """A history; None stands for an empty one."""
    if history is None:
        return History()
    if not isinstance(history, History):
        raise InvalidType(f"history must be a nalar.History, got {history!r}")
    return history


def as_ids(name: str, tokens: Iterable[int]) -> Int32:
    """Token ids as int32; anything that is not a whole number in int32's range is an error."""
    if isinstance(tokens, str | bytes) or not isinstance(tokens, Iterable):
        raise InvalidType(f"{name} must be a sequence of token ids, got {tokens!r}")
    given = tokens if isinstance(tokens, np.ndarray) else list(tokens)
    if isinstance(given, list) and any(isinstance(token, bool | np.bool_) for token in given):
        raise InvalidType(f"{name} must be a sequence of token ids, got one with a bool")
    try:
        array = np.asarray(given)
    except (TypeError, ValueError, OverflowError):
        raise InvalidType(f"{name} must be a flat sequence of token ids, got {given!r}") from None
    if array.size == 0:
        return np.zeros(0, np.int32)
    if array.dtype.kind not in "iu" or array.ndim != 1:
        raise InvalidType(f"{name} must be a flat sequence of token ids (integers), got {array.ndim}-D {array.dtype}")
    if array.min() < -(2**31) or array.max() >= 2**31:
        outside = int(array.min() if array.min() < -(2**31) else array.max())
        raise InvalidValue(f"{name} must hold token ids in [-2**31, 2**31), got {outside}")
    return array.astype(np.int32)


def _read_only(view: Int32) -> Int32:
    view.flags.writeable = False
    return view
