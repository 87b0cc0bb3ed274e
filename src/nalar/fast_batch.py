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
from nalar.kernels.thread import JOB_BYTES, Frame, borrow, give_back, pack
from nalar.keys import Key
from nalar.rows import FloatRow

__all__ = ["fast_batch"]

Job = tuple[int, ...]
Drawn = tuple[int, float]


def fast_batch(
    rows: Sequence[FloatRow | None], chains: Sequence[Chain], keys: Sequence[Key], histories: Sequence[History], draw: Draw, threads: int
) -> list[Drawn | None]:
    """(token, log-probability) for each row, and None for those that ``sample`` must see to: broken, or off the kernels."""
    drawn: list[Drawn | None] = [None] * len(rows)
    jobs: list[Job] = []
    places: list[int] = []
    kept: list[Any] = []  # the arrays whose addresses the jobs hold
    for index, (row, chain, key, history) in enumerate(zip(rows, chains, keys, histories, strict=True)):
        encoded = None if row is None else chain.table(history, row.size)
        job = None if row is None or encoded is None else job_of(encoded, row, history, key, MODES[draw])
        if job is not None:
            jobs.append(job)
            places.append(index)
            kept.append(encoded)
    _solve(jobs, places, drawn, max((row.size for row in rows if row is not None), default=0), threads)
    return drawn


def fast_block(rows: FloatRow, chain: Chain, keys: Sequence[Key], draw: Draw, threads: int) -> list[Drawn | None]:
    """The same for a 2-D array under one chain that looks at no history."""
    drawn: list[Drawn | None] = [None] * len(rows)
    encoded, kind, (size, mode) = chain.table(History(), rows.shape[1]), KINDS.get(rows.dtype), (rows.shape[1], MODES[draw])
    if encoded is None or kind is None or encoded.greatest >= size or not rows.flags.aligned:
        return drawn
    first, (stride, step), tail = address_of(rows), rows.strides, (mode, 0, 0, 0)
    head = size, kind, step, encoded.address, encoded.length
    jobs = [(first + stride * i, *head, *key_words(key, 0), *tail, 0) for i, key in enumerate(keys)]
    _solve(jobs, range(len(jobs)), drawn, size, threads)
    return drawn


def _solve(jobs: Sequence[Job], places: Sequence[int], drawn: list[Drawn | None], room: int, threads: int) -> None:
    if not jobs:
        return
    packed = bytearray(JOB_BYTES * len(jobs))
    for number, job in enumerate(jobs):
        pack(packed, JOB_BYTES * number, *job)
    table, out = np.frombuffer(packed, np.int64), np.zeros((len(jobs), 3))
    addresses = address_of(table), address_of(out)

    def work(start: int, stop: int) -> None:
        frame = borrow(room)
        try:
            frame.batch(addresses[0] + JOB_BYTES * start, stop - start, addresses[1] + 24 * start)
            _mend(frame, jobs, out, start, stop)
        finally:
            give_back(frame)

    pool.spread(work, len(jobs), threads)
    for place, (status, token, logprob) in zip(places, out.tolist(), strict=True):
        if status == 0:
            drawn[place] = int(token), logprob


def _mend(frame: Frame, jobs: Sequence[Job], out: Any, start: int, stop: int) -> None:
    """Rows that could not be certain go through again, one by one, with what they need."""
    for number in (np.flatnonzero(out[start:stop, 0]) + start).tolist():
        if frame.solve(jobs[number]) == 0:
            out[number] = 0, *frame.drawn()
