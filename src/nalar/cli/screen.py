"""How tokens, shares and entropies look in a terminal."""

from __future__ import annotations

import sys
import unicodedata

from rich.console import Console

__all__ = ["bar", "console", "percent", "show_token"]

EIGHTHS = " ▏▎▍▌▋▊▉"
MARKS = {"\n": "↵", "\t": "⇥", "\r": "␍", " ": "·"}


def console(*, stderr: bool = False) -> Console:
    """A console on stdout or stderr: colour only on a terminal, and the full width of a page when piped."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(file=stream, highlight=False, soft_wrap=False, width=None if stream.isatty() else 120)


def show_token(piece: bytes, token: int) -> str:
    """A token as one visible word: spaces and control characters by a sign, half characters by their bytes.

    >>> show_token(b" Jakarta\\n", 7), show_token(b"\\xe6\\xbc", 7), show_token(b"", 7)
    ('·Jakarta↵', '\\\\xe6\\\\xbc', '<7>')
    """
    if not piece:
        return f"<{token}>"
    text = piece.decode("utf-8", "backslashreplace")
    shown = "".join(MARKS.get(letter) or _visible(letter) for letter in text)
    return f"◌{shown}" if unicodedata.category(text[0])[0] == "M" else shown


def bar(share: float, width: int) -> str:
    """A bar of ``share`` of ``width`` cells, to an eighth of a cell.

    >>> bar(0.5, 4), bar(0.0, 4), bar(0.3, 4)
    ('██', '', '█▎')
    """
    eighths = min(round(max(share, 0.0) * width * 8), width * 8)
    return "█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()


def percent(share: float) -> str:
    """A share with as many digits as it needs to be told from nothing and from all.

    >>> percent(0.623), percent(0.0004), percent(1.0), percent(1e-9)
    ('62.3%', '0.04%', '100%', '1e-07%')
    """
    if share == 1 or share == 0:
        return f"{share * 100:.0f}%"
    if share >= 0.9995:
        return ">99.9%"
    return f"{share * 100:.1f}%" if share >= 0.001 else f"{share * 100:.2g}%" if share >= 1e-5 else f"{share * 100:.0e}%"


def _visible(letter: str) -> str:
    """The letter, or its escape where it would move the cursor, hide, or turn the line around."""
    return letter if unicodedata.category(letter)[0] not in "CZ" else letter.encode("unicode_escape").decode()
