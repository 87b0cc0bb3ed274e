"""The cache that the sequences share: who holds which cells, and, when asked, rows that no neighbour can move.

A row's sum over its past runs in the order of the cells.  When a neighbour leaves, its cells become holes, later tokens of
other sequences fill them out of order, and their rows move by rounding (measured: up to 1.2 in a logit, total variation
1e-3).  ``reproducible`` therefore keeps two slots of its own: one that retires such cells instead of freeing them, until
nobody stands above them or the cache is full, and one for the token that keeps a lone token company.
"""

from __future__ import annotations

from nalar.engines.cells import Cells
from nalar.engines.llama_context import Context
from nalar.engines.slices import Place

__all__ = ["OWN_SLOTS", "Cache"]

OWN_SLOTS = 2  # that `reproducible` needs beside the sequences


class Cache:
    """The cells of ``context``, counted.  Slots below ``sequences`` are the sequences'; a recurrent state has no cells to retire."""

    def __init__(self, context: Context, sequences: int, reproducible: bool, recurrent: bool = False) -> None:
        self.context = context
        self._company: int | None = sequences if reproducible else None
        self._retired: int | None = sequences + 1 if reproducible and not recurrent else None
        self._cells = Cells(context.cells - int(reproducible))  # one is the company's
        self.capacity = self._cells.capacity

    def used(self) -> int:
        """Cells that sequences hold; a shared prefix counts once."""
        return self._cells.used(besides=self._retired)

    def make_room(self, tokens: int) -> bool:
        """Whether ``tokens`` more cells are free, if need be by giving up the retired ones."""
        if self._cells.fit(tokens):
            return True
        self._free_retired()
        return self._cells.fit(tokens)

    def take(self, slot: int, tokens: int) -> None:
        """``slot`` has grown by ``tokens``."""
        self._cells.take(slot, tokens)

    def share(self, source: int, target: int) -> None:
        """``target`` becomes a copy of ``source`` that costs no cells."""
        self.context.copy(source, target)
        self._cells.share(source, target)

    def drop(self, slot: int, keep: int = 0) -> bool:
        """Cut ``slot`` to its first ``keep`` tokens; False, and nothing done, where the model cannot."""
        if self._retired is not None and not self._cells.on_top(slot, keep, besides=self._retired):
            self.context.merge(slot, self._retired, keep)
            self._cells.move(slot, self._retired, keep)
        if not self.context.remove(slot, keep):
            return False
        self._cells.keep(slot, keep)
        if self._retired is not None and self._cells.on_top(self._retired, 0, besides=self._retired):
            self._free_retired()
        return True

    def restore(self, slot: int, length: int) -> bool:
        """Take ``slot`` back to ``length`` tokens after a failure, whatever llama.cpp kept; False where that failed too."""
        return self.context.remove(slot, length) and self.context.length(slot) == length

    def compute(self, places: list[Place]) -> None:
        """One slice; a lone token gets company, because alone it would take another path to another row."""
        if len(places) > 1 or self._company is None:
            self.context.compute(places)
            return
        try:
            self.context.compute([*places, Place(self._company, 0, places[0].token, False, True)])
        finally:
            self.context.remove(self._company)

    def _free_retired(self) -> None:
        if self._retired is not None:
            self.context.remove(self._retired)
            self._cells.keep(self._retired, 0)
