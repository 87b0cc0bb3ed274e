"""The fast row: arrays in, arrays out; knows no request.  Nothing here imports Numba until the first row is sampled.

``use(False)`` leaves every row to the stages' own ``apply``, as do the environment variable ``NALAR_KERNELS=off`` and an installation
without Numba: for debugging, and for tests of both paths.  ``counts()`` says how often a row was repeated in double
precision or left to ``apply``.

Read ``frame``, ``lanes``, ``exponential``, ``blocks``, ``scan``, ``edits``, ``select``, ``cut``, ``draw`` and ``program``, then ``widen``
and ``kept`` for rows with many survivors; ``compiled``, ``cache``, ``thread`` and ``pool`` are the way in from Python.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

__all__ = ["counts", "enabled", "force", "forced", "use", "warmup"]



def _installed() -> bool:
    try:
        return find_spec("numba") is not None
    except ImportError:
        return False


_enabled = os.environ.get("NALAR_KERNELS", "on") != "off" and _installed()
_forced = 0.0


def enabled() -> bool:
    """Whether rows go through the kernels."""
    return _enabled


@contextmanager
def use(on: bool) -> Iterator[None]:
    """Turn the kernels on or off inside the block, for this process: internal, for debugging and tests."""
    global _enabled
    before, _enabled = _enabled, on
    try:
        yield
    finally:
        _enabled = before


def forced() -> float:
    return _forced


@contextmanager
def force(level: int) -> Iterator[None]:
    """Call decisions unsure: 1 those in single precision, 2 those in double too.  For tests."""
    global _forced
    before, _forced = _forced, float(level)
    try:
        yield
    finally:
        _forced = before


def counts() -> dict[str, int]:
    """Rows so far in this process, and of those: repeated in double, left to ``apply``, taken as a large list."""
    from nalar.kernels import thread

    return thread.counts()


def warmup() -> list[tuple[str, float]]:
    """Compile every kernel that is not in the cache, and say what each took, in seconds."""
    from nalar.kernels import thread

    return thread.warmup()
