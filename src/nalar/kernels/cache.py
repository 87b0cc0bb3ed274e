"""Where compiled kernels are kept: a folder named by a hash of all kernel sources, so that a change to any of them is seen.

Numba stamps only the file an entry is written in.  The folder is under ``$NUMBA_CACHE_DIR``, else ``$XDG_CACHE_HOME``, else
``~/.cache``; where none can be written, nothing is kept, and one warning says so.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).parent


def fingerprint() -> str:
    """A hash of every kernel source, names included."""
    digest = hashlib.sha256()
    for path in sorted(HERE.glob("*.py")):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def folder() -> str | None:
    """The folder for this version's kernels, made if need be; None where none can be written."""
    base = os.environ.get("NUMBA_CACHE_DIR") or os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    place = Path(base) / "nalar" / f"kernels-{fingerprint()}"
    try:
        place.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=place):
            return str(place)
    except OSError as error:
        problem = f"Nalar cannot keep its compiled kernels in {place} ({error.strerror}): each process compiles them again"
        warnings.warn(problem, stacklevel=2)
        return None


@contextmanager
def caching() -> Iterator[None]:
    """While the kernels' modules are imported, Numba caches into ``folder()``, and not at all where there is none."""
    from numba.core import config
    from numba.core.dispatcher import Dispatcher

    place, before, enable = folder(), config.CACHE_DIR, Dispatcher.enable_caching
    try:
        config.CACHE_DIR = place or before
        if place is None:
            setattr(Dispatcher, "enable_caching", lambda self: None)  # noqa: B010
        yield
    finally:
        config.CACHE_DIR = before
        setattr(Dispatcher, "enable_caching", enable)  # noqa: B010
