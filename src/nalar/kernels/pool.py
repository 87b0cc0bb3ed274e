"""One bounded pool of threads for the process, made when first needed and forgotten in a forked child."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

__all__ = ["spread"]

WORKERS = max(1, min(64, os.cpu_count() or 1))
_pool: ThreadPoolExecutor | None = None
_lock = threading.Lock()


def spread(work: Callable[[int, int], None], size: int, threads: int) -> None:
    """``work(start, stop)`` for ``threads`` equal parts of ``size`` items, one of them in the calling thread.  ``work`` never comes
    back here, or the pool could wait for itself."""
    parts = max(1, min(threads, size, WORKERS + 1))
    bounds = [size * part // parts for part in range(parts + 1)]
    waiting: list[Future[None]] = [_workers().submit(work, bounds[part], bounds[part + 1]) for part in range(1, parts)]
    try:
        work(bounds[0], bounds[1])
    finally:
        for future in waiting:
            future.exception()  # nobody may go on while rows are being read
    for future in waiting:
        future.result()


def _workers() -> ThreadPoolExecutor:
    global _pool
    with _lock:
        if _pool is None:
            _pool = ThreadPoolExecutor(WORKERS, "nalar")
        return _pool


def _forget() -> None:
    """A child has the pool's object but none of its threads, and perhaps a lock that nobody will release."""
    global _pool, _lock
    _pool, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget)
