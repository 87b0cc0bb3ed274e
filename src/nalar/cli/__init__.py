"""The ``nalar`` command.  A user's mistake prints one line to stderr and exits with 2."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> None:
    """Run the command line; the packages it needs are an extra."""
    try:
        from nalar.cli.commands import run
    except ModuleNotFoundError as error:
        if error.name not in ("click", "rich"):
            raise
        print(f"nalar: the command line needs {error.name}: pip install 'nalar[cli]'", file=sys.stderr)
        sys.exit(2)
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))
