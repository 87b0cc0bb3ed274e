"""From Python into the kernels: one frame a thread, the kernels loaded at the first row.

A frame belongs to its thread alone, so kernels run without the interpreter's lock and never share memory.
"""

from __future__ import annotations

import logging
import struct
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from nalar import kernels
from nalar.kernels.cache import caching

__all__ = ["Frame", "borrow", "counts", "give_back", "warmup"]

LOAD = threading.Lock()
LOCAL = threading.local()
FRAMES: weakref.WeakSet[Frame] = weakref.WeakSet()
BLOCK = 256
JOB = struct.Struct("=6q5Q5q")  # the first sixteen words of a frame, as frame.py names them
JOB_BYTES, pack, unpack = JOB.size, JOB.pack_into, JOB.unpack_from
RESULT = struct.Struct("=qd")  # token and log-probability
RESULT_AT = 8 * 30  # frame.TOKEN
SLOW = 1.0  # seconds of compiling after which it is said
log = logging.getLogger("nalar")


class Loaded:
    """The kernels' entries and the frame's numbers, once imported.  The first call of an entry may compile it: while that takes long,
    it is said once, and after it the entry itself stands in its place."""

    def __init__(self) -> None:
        self._said = False
        with caching():
            from nalar.kernels import frame, kept, program, scan
        self.names = frame
        self.run: Callable[[int, int], int] = self._first("run", program.run)
        self.batch: Callable[[int, int, int, int], None] = self._first("batch", program.batch)
        self.sums64: Callable[[int], int] = self._first("sums64", scan.sums64)
        self.large: Callable[[int], int] = self._first("large", kept.large)

    def _first(self, name: str, entry: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: int) -> Any:
            notice = threading.Timer(SLOW, self._say)
            notice.daemon = True
            notice.start()
            try:
                result = entry(*arguments)
            finally:
                notice.cancel()
            setattr(self, name, entry)
            return result

        return call

    def _say(self) -> None:
        if not self._said:
            self._said = True
            log.warning("Nalar compiles its kernels for this processor: about ten seconds, once; `nalar warmup` does so ahead of time")


_loaded: Loaded | None = None


def loaded() -> Loaded:
    """The kernels; imported once a process."""
    global _loaded
    if _loaded is None:
        with LOAD:  # whoever waited here finds it imported, and makes a second table of the same entries
            _loaded = Loaded()
    return _loaded


class Frame:
    """One thread's working memory for rows of up to ``room`` ids."""

    def __init__(self, room: int) -> None:
        self.kernels = loaded()
        names = self.kernels.names
        offsets, size = names.layout(room)
        self.room = room
        self.memory: npt.NDArray[np.int8] = np.zeros(size + 64, np.int8)
        self.address = -(-self.memory.ctypes.data // 64) * 64
        start = self.address - self.memory.ctypes.data
        head = self.memory[start : start + 8 * names.HEAD]
        self.job = memoryview(head)  # type: ignore[arg-type]
        self.words, self.floats = head.view(np.int64), head.view(np.float64)
        for name, offset in offsets.items():
            self.words[name] = self.address + offset
        self.words[names.ROOM] = room
        self.offsets = {name: start + offset for name, offset in offsets.items()}
        self.forced = 0.0
        FRAMES.add(self)

    def solve(self, job: tuple[int, ...]) -> int:
        """Run a job to its end: OK, BROKEN or GIVE_UP."""
        pack(self.job, 0, *job)
        if kernels.forced() != self.forced:
            self.floats[self.kernels.names.FORCE] = self.forced = kernels.forced()
        status = self.kernels.run(self.address, 1)
        return self.mend(status) if status else status

    def mend(self, status: int) -> int:
        """Go on where a run stopped: with sums in double precision, or as a large list."""
        names, address = self.kernels.names, self.address
        while status in (names.UNSURE, names.LARGE):
            mended = self.kernels.sums64(address) if status == names.UNSURE else self.kernels.large(address)
            status = names.BROKEN if mended else self.kernels.run(address, 0)
        if status != names.OK:
            self.floats[names.COUNTED + 2] += 1
        return int(status)

    def batch(self, jobs: int, n: int, out: int) -> None:
        """Run ``n`` packed jobs: status, token and log-probability of each to ``out``, [n, 3] float64."""
        self.floats[self.kernels.names.FORCE] = self.forced = kernels.forced()
        self.kernels.batch(self.address, jobs, n, out)

    def array(self, name: int, kind: npt.DTypeLike, n: int) -> npt.NDArray[Any]:
        """A copy of the first ``n`` entries of one of the frame's arrays."""
        start = self.offsets[name]
        copy: npt.NDArray[Any] = self.memory[start : start + n * np.dtype(kind).itemsize].view(kind).copy()
        return copy

    def drawn(self) -> tuple[int, float]:
        """The token and its log-probability."""
        token, logprob = RESULT.unpack_from(self.job, RESULT_AT)
        return token, logprob


def borrow(room: int) -> Frame:
    """This thread's frame, with room for ``room`` ids.  Give it back: until then, whoever interrupts this thread gets another."""
    mine: Frame | None = getattr(LOCAL, "frame", None)
    LOCAL.frame = None
    return mine if mine is not None and mine.room >= room else Frame(room)


def give_back(frame: Frame) -> None:
    LOCAL.frame = frame


def counts() -> dict[str, int]:
    total = np.zeros(4)
    for one in list(FRAMES):
        start = one.kernels.names.COUNTED
        total += one.floats[start : start + 4]
    return dict(zip(("rows", "double", "apply", "large"), total.astype(int).tolist(), strict=True))


def warmup() -> list[tuple[str, float]]:
    """Compile, or load from the cache, every entry; what each took in seconds."""
    kernel, one, took = loaded(), borrow(BLOCK), []
    row = np.zeros(BLOCK, np.float32)
    out = np.zeros(3)
    job = (row.ctypes.data, 1, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)  # one logit, no operation, no draw
    packed = bytearray(JOB_BYTES)
    pack(packed, 0, *job)
    try:
        pack(one.job, 0, *job)
        jobs = np.frombuffer(packed, np.int64).ctypes.data
        calls: dict[str, Callable[[], object]] = {
            "run": lambda: kernel.run(one.address, 1), "batch": lambda: kernel.batch(one.address, jobs, 1, out.ctypes.data),
            "sums64": lambda: kernel.sums64(one.address), "large": lambda: kernel.large(one.address),
        }
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            took.append((name, time.perf_counter() - start))
    finally:
        give_back(one)
    return took
