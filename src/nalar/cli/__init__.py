"""The ``nalar`` command.  A user's mistake prints one line to stderr and exits with 2."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

__all__ = ["INTERRUPTED", "MISTAKE", "main"]

MISTAKE, INTERRUPTED = 2, 130  # exit statuses: a user's mistake, told in one line, and Ctrl-C


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; the packages it needs are an extra."""
    _prepare_streams()
    try:
        from nalar.cli.commands import run
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except ModuleNotFoundError as error:
        if error.name not in ("click", "rich"):
            raise
        print(f"nalar: the command line needs {error.name}: pip install 'nalar[cli]'", file=sys.stderr)
        sys.exit(MISTAKE)
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def _prepare_streams() -> None:
    """A stream that was closed is as good as empty, and one of another encoding shows "?" while the reply goes on."""
    nowhere = Path(os.devnull)
    sys.stdin = sys.stdin or nowhere.open()
    sys.stdout = sys.stdout or nowhere.open("w")
    sys.stderr = sys.stderr or nowhere.open("w")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
