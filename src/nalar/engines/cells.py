"""The shared cache counted: which of its cells each slot holds, so that "full" is known before anything is computed.

llama.cpp's unified cache gives every token a cell, and a forked sequence shares its prefix's cells.  When it runs out it
refuses the *whole* batch, every sequence in it, so the engine counts first.
"""

from __future__ import annotations

from itertools import count

__all__ = ["Cells"]


class Cells:
    """A ledger of ``capacity`` cells.

    >>> cells = Cells(capacity=10)
    >>> cells.take(slot=0, tokens=6)
    >>> cells.share(source=0, target=1)
    >>> cells.take(slot=1, tokens=2)
    >>> cells.used(), cells.fit(2), cells.fit(3)
    (8, True, False)
    >>> cells.keep(slot=0, tokens=0)
    >>> cells.used()
    8
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._held: dict[int, list[int]] = {}
        self._serial = count()

    def take(self, slot: int, tokens: int) -> None:
        """``slot`` grows by ``tokens`` cells of its own."""
        self._held.setdefault(slot, []).extend(next(self._serial) for _ in range(tokens))

    def share(self, source: int, target: int) -> None:
        """``target`` holds the same cells as ``source``."""
        self._held[target] = list(self._held.get(source, ()))

    def keep(self, slot: int, tokens: int) -> None:
        """``slot`` gives back all but its first ``tokens`` cells."""
        del self._held.get(slot, [])[tokens:]

    def move(self, source: int, target: int, start: int) -> None:
        """What ``source`` holds from its token ``start`` on goes to ``target``."""
        moved = self._held.get(source, [])[start:]
        self._held[target] = sorted({*self._held.get(target, ()), *moved})
        self.keep(source, start)

    def on_top(self, slot: int, keep: int, *, besides: int) -> bool:
        """Whether no slot but ``besides`` has a cell above those that ``slot`` would give back: then they leave no hole."""
        given = self._held.get(slot, [])[keep:]
        others = (cells[-1] for other, cells in self._held.items() if cells and other not in (slot, besides))
        return not given or max(others, default=-1) < given[0]

    def used(self, besides: int | None = None) -> int:
        """Cells that at least one slot holds; not counting those of ``besides`` alone."""
        return len(set().union(*(cells for slot, cells in self._held.items() if slot != besides)))

    def fit(self, tokens: int) -> bool:
        """Whether ``tokens`` more cells are free."""
        # Counting shared cells twice is an upper bound that costs nothing, and it is nearly always enough.
        bound = sum(map(len, self._held.values()))
        return bound + tokens <= self.capacity or self.used() + tokens <= self.capacity
