"""Open sequences of one engine, kept after a reply so that the next prompt reuses what it shares with them."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Ids
from typing import TypeVar

from nalar.engines.base import Engine, Sequence
from nalar.errors import EngineFull

__all__ = ["Prefixes", "shared_prefix"]

Answer = TypeVar("Answer")

DECODED_AGAIN = 2  # tokens at the end of a prompt: the last needs its row, and is never decoded alone


class Prefixes:
    """The idle sequences of an engine.  A busy one belongs to its reply; an error or a cancellation closes it for good."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._idle: list[Sequence] = []

    def acquire(self, prompt: Ids[int]) -> tuple[Sequence, int]:
        """A sequence that holds the first tokens of ``prompt``, and how many; the most an idle one offers, else an empty one."""
        best = max(self._idle, key=lambda sequence: self._reusable(sequence, prompt), default=None)
        reused = 0 if best is None else self._reusable(best, prompt)
        if best is None or reused == 0:
            return self.open(), 0
        self._idle.remove(best)
        if len(best.tokens) > reused:
            self._engine.truncate(best, reused)
        return best, reused

    def keep(self, sequence: Sequence) -> None:
        """Give back a sequence whose reply ended well."""
        self._idle.append(sequence)

    def drop(self, sequence: Sequence) -> None:
        """Free a sequence and what the engine holds for it."""
        self._engine.close(sequence)

    def free_one(self) -> bool:
        """Free the sequence that has been idle longest; False when there is none."""
        if self._idle:
            self.drop(self._idle.pop(0))
            return True
        return False

    def open(self) -> Sequence:
        """An empty sequence; idle ones make room when the engine has no other."""
        return self.make_room(self._engine.open)

    def make_room(self, ask: Callable[[], Answer]) -> Answer:
        """What ``ask`` returns; as long as the engine is full, the idle sequences go one by one, and it is asked again."""
        while True:
            try:
                return ask()
            except EngineFull:
                if not self.free_one():
                    raise

    def _reusable(self, sequence: Sequence, prompt: Ids[int]) -> int:
        common = min(shared_prefix(sequence.tokens, prompt), max(0, len(prompt) - DECODED_AGAIN))
        whole = self._engine.limits.can_truncate or common == len(sequence.tokens)
        return common if whole else 0


def shared_prefix(first: Ids[int], second: Ids[int]) -> int:
    """How many leading tokens two sequences have in common.

    >>> shared_prefix([1, 2, 3], [1, 2, 4, 5])
    2
    """
    limit = min(len(first), len(second))
    return next((place for place in range(limit) if first[place] != second[place]), limit)
