"""The kernels at work on one row: a token at once, or a lazy law.  None means: leave this row to the stages' own ``apply``.

That happens where a row defines no distribution (``apply`` then raises the error), and where a decision lies so close to its
boundary that only ``apply``'s own rounding can settle it.
"""

from __future__ import annotations

import math
from copy import copy
from functools import cached_property
from typing import Any

import numpy as np

from nalar import kernels
from nalar.candidates import Candidates, Logits, Mask, TokenIds, weights
from nalar.distribution import Distribution, Draw
from nalar.encoding import TOP_K, Encoded
from nalar.errors import InvalidValue
from nalar.history import History
from nalar.kernels.address import address_of
from nalar.kernels.thread import Frame, borrow, give_back
from nalar.keys import PURPOSES, Key
from nalar.rows import FloatRow, as_float64

__all__ = ["fast_draw", "fast_head", "fast_law"]

KINDS = {np.dtype(np.float32): 0, np.dtype(np.float64): 1, np.dtype(np.uint16): 2, np.dtype(np.float16): 3}
MODES = {"inverse": 1, "race": 2}
NO_KEY = (0, 0, 0, 0, 0)
DENSE, KEPT = 0, 2  # as kernels/frame.py has them


def fast_draw(encoded: Encoded, row: FloatRow, history: History, key: Key, draw: Draw) -> tuple[int, float] | None:
    """The token that ``key`` draws, and its log-probability."""
    job = job_of(encoded, row, history, key, MODES[draw])
    if job is None:
        return None
    frame = borrow(row.size)
    try:
        return None if frame.solve(job) else frame.drawn()
    finally:
        give_back(frame)


def fast_law(encoded: Encoded, row: FloatRow, history: History) -> Distribution | None:
    """The law of the row."""
    job = job_of(encoded, row, history, None, 0)
    if job is None:
        return None
    frame = borrow(row.size)
    try:
        return Distribution.lazy(_source(frame, encoded, row)) if frame.solve(job) == 0 else None
    finally:
        give_back(frame)


def fast_head(encoded: Encoded, row: FloatRow, history: History) -> Candidates | None:
    """The candidates after the head of a chain, just as ``apply`` leaves them: with the total that later cuts may measure against."""
    job = job_of(encoded, row, history, None, 0)
    if job is None:
        return None
    frame = borrow(row.size)
    names, words = frame.kernels.names, frame.words
    try:
        if frame.solve(job) != 0 or words[names.STATE] == DENSE:
            return None
        left = _source(frame, encoded, row).candidates()
        operation, argument = encoded.table[-1, :2]
        if operation == TOP_K and left.ids.size < argument:
            return None  # ``apply`` also keeps masked tokens
        if left.ids.size == row.size:
            return left
        whole = Scanned(frame, encoded, row)
        whole._kept = None
        return Cut(left.ids, left.logits, whole)
    finally:
        give_back(frame)


def job_of(encoded: Encoded, row: FloatRow, history: History, key: Key | None, mode: int) -> tuple[int, ...] | None:
    """What the frame's head must say; the arrays behind its addresses belong to the arguments."""
    kind, size = KINDS.get(row.dtype), row.size
    if kind is None or encoded.greatest >= size or not row.flags.aligned:
        return None
    position = history.position
    words = NO_KEY if key is None else key_words(key, position)
    if not encoded.counted:
        return (address_of(row), size, kind, row.strides[0], encoded.address, encoded.length, *words, mode, 0, 0, 0, position)
    table, used = history.counts.table()
    seen = (address_of(table), table.shape[1], used)
    return (address_of(row), size, kind, row.strides[0], encoded.address, encoded.length, *words, mode, *seen, position)


def key_words(key: Key, position: int) -> tuple[int, int, int, int, int]:
    """Seed, then the counter's four words for this key's own purpose, index 0."""
    place = position if key.position is None else key.position
    return key.seed, place, key.sequence, key.attempt << 16 | key.row, PURPOSES[key.purpose] << 28


class Listed:
    """A law whose candidates are known and few: nothing is borrowed."""

    def __init__(self, candidates: Candidates) -> None:
        self._candidates = candidates

    def candidates(self) -> Candidates:
        return self._candidates

    def logprob(self, token: int) -> float | None:
        return None

    def draw(self, key: Key, draw: Draw) -> int | None:
        return None

    def check(self) -> None: ...

    def held(self) -> Listed:
        return self


class Scanned:
    """A law over a whole row: it borrows the row, and holds what was done to it and the sum of its weights."""

    def __init__(self, frame: Frame, encoded: Encoded, row: FloatRow) -> None:
        names, words, floats = frame.kernels.names, frame.words, frame.floats
        self._encoded, self._row = encoded, row
        self._lease: Any = getattr(row, "lease", None)
        self._divisors: list[float] = floats[names.DIVISOR : names.DIVISOR + words[names.DIVISORS]].tolist()
        mass = float(floats[names.SUM])  # of the whole row only where the frame is not a list
        self._log_total = (math.log(mass) if mass > 0 else math.nan) + int(words[names.SCALE]) * math.log(2)
        entries = int(words[names.TABLE]) if words[names.EDITED] else 0
        self._edited = frame.array(names.TABLE_IDS, np.int32, entries), frame.array(names.TABLE_VALUES, np.float64, entries)
        bits = frame.array(names.HIDE, np.uint8, -(-row.size // 8)) if words[names.EDITED] and words[names.HIDDEN] else None
        self._hidden = None if bits is None else np.unpackbits(bits, count=row.size, bitorder="little").astype(np.bool_)
        self._kept = (float(floats[names.BOUND]), int(words[names.LAST])) if words[names.STATE] == KEPT else None

    def check(self) -> None:
        if self._lease is not None and self._lease.ended:
            raise InvalidValue("law must be used before its engine's next call, or be held (law.hold()), got one whose rows are gone")

    def candidates(self) -> Candidates:
        """As ``apply`` leaves them: divided one temperature after the other, then the edits in their places."""
        self.check()
        logits = as_float64(self._row)
        with np.errstate(over="ignore"):
            for divisor in self._divisors:
                divided = logits / divisor
                overflows = not np.isfinite(divided.max())  # then the limit, as Temperature has it
                logits = np.where(logits == logits.max(), 0.0, -np.inf) if overflows else divided
        ids, values = self._edited
        if self._hidden is not None:
            logits[self._hidden] = -np.inf
        logits[ids] = values
        every = np.arange(logits.size, dtype=np.int32)
        if self._kept is None:
            return Candidates(every, logits)
        bound, last = self._kept
        mask = (logits > bound) | ((logits == bound) & (every <= last))
        return Candidates(every[mask], logits[mask])

    def logprob(self, token: int) -> float | None:
        """From the element itself, where nothing was edited or cut."""
        self.check()
        if self._kept is not None or self._hidden is not None or self._edited[0].size:
            return None
        if token >= self._row.size:
            return -math.inf
        value = float(as_float64(self._row[token : token + 1])[0])
        for divisor in self._divisors:
            value /= divisor
        return min(value - self._log_total, 0.0)

    def draw(self, key: Key, draw: Draw) -> int | None:
        """By the kernels once more, unless the history went on since."""
        self.check()
        if self._encoded.historic or not kernels.enabled():
            return None
        drawn = fast_draw(self._encoded, self._row, History(), key, draw)
        return None if drawn is None else drawn[0]

    def held(self) -> Scanned:
        self.check()
        twin = copy(self)
        twin._row, twin._lease = np.array(self._row, subok=False), None
        return twin


class Cut(Candidates):
    """Candidates whose ``log_total`` is worked out when a stage asks for it: few do, and it takes a pass over the row in NumPy."""

    _whole: Scanned

    def __init__(self, ids: TokenIds, logits: Logits, whole: Scanned) -> None:
        object.__setattr__(self, "ids", ids)
        object.__setattr__(self, "logits", logits)
        object.__setattr__(self, "_whole", whole)

    @cached_property
    def log_total(self) -> float:
        return self._whole.candidates().total()

    @cached_property
    def mass(self) -> tuple[float, float]:
        """The maximum and Σ exp(logit − maximum) behind ``log_total``."""
        logits = self._whole.candidates().logits
        return float(logits.max()), float(weights(logits).sum())

    def keep(self, mask: Mask) -> Candidates:
        return self if mask.all() else Cut(self.ids[mask], self.logits[mask], self._whole)


def _source(frame: Frame, encoded: Encoded, row: FloatRow) -> Listed | Scanned:
    names = frame.kernels.names
    if frame.words[names.STATE] != names.LIST:
        return Scanned(frame, encoded, row)
    n = int(frame.words[names.COUNT])
    return Listed(Candidates(frame.array(names.IDS, np.int32, n), frame.array(names.VALUES, np.float64, n)))
