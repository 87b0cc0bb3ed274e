"""The kernels at work on many rows: one call for each thread's part of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from nalar.chain import Chain
from nalar.distribution import Draw
from nalar.fast import KINDS, MODES, job_of, key_words
from nalar.history import History
from nalar.kernels import pool
from nalar.kernels.address import address_of
from nalar.kernels.thread import JOB_BYTES, borrow, give_back, pack, unpack
from nalar.keys import Key
from nalar.rows import FloatRow

__all__ = ["fast_batch"]

Drawn = tuple[int, float]


def fast_batch(
    rows: Sequence[FloatRow | None], chains: Sequence[Chain], keys: Sequence[Key], histories: Sequence[History], draw: Draw, threads: int
) -> list[Drawn | None]:
    """(token, log-probability) for each row, and None for those that ``sample`` must see to: broken, or off the kernels."""
    packed, room = bytearray(JOB_BYTES * len(rows)), 0
    places: list[int] = []
    kept: list[Any] = []  # the arrays whose addresses the jobs hold
    for index, (row, chain, key, history) in enumerate(zip(rows, chains, keys, histories, strict=True)):
        encoded = None if row is None else chain.table(history, row.size)
        job = None if row is None or encoded is None else job_of(encoded, row, history, key, MODES[draw])
        if row is not None and job is not None:
            pack(packed, JOB_BYTES * len(places), *job)
            places.append(index)
            kept.append(encoded)
            room = max(room, row.size)
    drawn: list[Drawn | None] = [None] * len(rows)
    for place, one in zip(places, _solve(packed, len(places), room, threads), strict=True):
        drawn[place] = one
    return drawn


def fast_block(rows: FloatRow, chain: Chain, keys: Sequence[Key], draw: Draw, threads: int) -> list[Drawn | None]:
    """The same for a 2-D array under one chain, without histories."""
    encoded, kind, (size, mode) = chain.table(History(), rows.shape[1]), KINDS.get(rows.dtype), (rows.shape[1], MODES[draw])
    if encoded is None or kind is None or encoded.greatest >= size or not rows.flags.aligned:
        return [None] * len(rows)
    packed, address, (stride, step) = bytearray(JOB_BYTES * len(rows)), address_of(rows), rows.strides
    table, length = encoded.address, encoded.length
    for index, key in enumerate(keys):
        words = key_words(key, 0)
        pack(packed, JOB_BYTES * index, address + stride * index, size, kind, step, table, length, *words, mode, 0, 0, 0, 0)
    return _solve(packed, len(rows), size, threads)


def _solve(packed: bytearray, n: int, room: int, threads: int) -> list[Drawn | None]:
    if n == 0:
        return []
    table, out = np.frombuffer(packed, np.int64), np.zeros((n, 3))
    jobs, results = address_of(table), address_of(out)

    def work(start: int, stop: int) -> None:
        frame = borrow(room)
        try:
            frame.batch(jobs + JOB_BYTES * start, stop - start, results + 24 * start)
            for number in (np.flatnonzero(out[start:stop, 0]) + start).tolist():  # again, one by one, with what they need
                if frame.solve(unpack(packed, JOB_BYTES * number)) == 0:
                    out[number] = 0, *frame.drawn()
        finally:
            give_back(frame)

    pool.spread(work, n, threads)
    return [(int(token), logprob) if status == 0 else None for status, token, logprob in out.tolist()]
