"""Cutting a step into slices: what llama.cpp computes in one go.

Two facts of its CPU attention shape this page (measured; see docs).  A slice of fewer than 64 tokens gives bit-equal rows
whatever else is in it, and a larger one does not.  A slice of *one* token is the exception: over about 256 cells it takes
another path, and its row moves.  So no slice is larger than ``SLICE``, and none is a lone token unless the whole step is.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nalar.engines.base import Work

__all__ = ["SLICE", "Place", "cut", "layout"]

SLICE = 63


@dataclass(frozen=True, slots=True)
class Place:
    """One token of a step: where it goes, and whether the row after it is wanted."""

    slot: int
    position: int
    token: int
    wanted: bool
    joined: bool  # must share a slice with the place before it


def layout(work: list[Work]) -> list[Place]:
    """Every token of the step in the order of computation; wanted rows come in the order of ``work``, each work's together.

    Tokens without rows go first: then the rows usually lie in one slice and need no copy.
    """
    heads, tails = [], []
    for one in work:
        places = list(_places(one))
        split = max(len(places) - max(one.rows, 2), 0)
        heads += places[:split]
        tails += places[split:]
    return heads + tails


def cut(places: list[Place], limit: int = SLICE) -> Iterator[list[Place]]:
    """Slices of at most ``limit`` places: a work's last two tokens stay together and no slice is a lone remainder."""
    start = 0
    while start < len(places):
        end = min(start + limit, len(places))
        while end < len(places) and (places[end].joined or end == len(places) - 1):
            end -= 1
        yield places[start:end]
        start = end


def _places(work: Work) -> Iterator[Place]:
    start, last = len(work.sequence.tokens), len(work.tokens) - 1
    for index, token in enumerate(work.tokens):
        yield Place(work.sequence.slot, start + index, token, index > last - work.rows, index == last > 0)
