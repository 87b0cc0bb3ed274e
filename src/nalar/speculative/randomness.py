"""Where a rule's decisions come from.  A rule never sees a uniform: it asks whether, and it asks which."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from nalar.distribution import Draw
from nalar.errors import InvalidValue
from nalar.keys import Key, Purpose
from nalar.speculative.laws import Law, Number

__all__ = ["Keyed", "Randomness", "address"]


class Randomness(Protocol):
    """One step's decisions.  ``purpose`` and ``row`` say which uniform decides; no two questions of a step share one."""

    def below(self, part: Number, whole: Number, purpose: Purpose, row: int) -> bool: ...  # true with probability min(1, part / whole)
    def choose(self, law: Law, purpose: Purpose, row: int) -> int: ...  # a token, with probability weight / total


@dataclass(frozen=True, slots=True)
class Keyed:
    """The decisions that belong to the step at ``key.position``: strict u · whole < part, and draws by key.

    >>> from nalar.speculative.laws import Table
    >>> Keyed(Key(seed=7, position=0)).choose(Table({3: 1, 4: 1}), "draw", 0)
    4
    """

    key: Key
    draw: Draw = "inverse"

    def below(self, part: Number, whole: Number, purpose: Purpose, row: int) -> bool:
        """u · whole < part.  Of nothing, everything is accepted: exact arithmetic never asks, and rounding must not hang on it."""
        return bool(address(self.key, purpose, row).uniform() * whole < part or whole <= 0)

    def choose(self, law: Law, purpose: Purpose, row: int) -> int:
        """A token; draws at a position are made as ``sample`` would make them."""
        return law.draw(address(self.key, purpose, row), self.draw if purpose == "draw" else "inverse")


def address(key: Key, purpose: Purpose, row: int) -> Key:
    """The key of one decision of the step that starts at ``key.position``.

    A "draw" belongs to its own position, so that ``follow`` makes the draws that ``sample`` would make.  Everything else belongs to the
    *step* and its row: ``block`` and ``tree`` look past the place where they stop, so the next step, which starts there,
    would meet the same uniforms again and be biased.
    """
    if key.position is None:
        raise InvalidValue("key must have a position, the step's start, got None")
    return key.at(key.position + row) if purpose == "draw" else key.place(row, purpose)
