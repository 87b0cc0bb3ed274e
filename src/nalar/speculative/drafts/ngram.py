"""Prompt lookup: find where the last few tokens occurred before, and propose what followed them.

Saxena, "Prompt lookup decoding" (2023).  The longest n-gram that occurred earlier decides, n from ``longest`` down to ``shortest``,
and of its occurrences the most recent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nalar.checks import check_integer
from nalar.engines.base import Engine
from nalar.errors import InvalidValue
from nalar.history import History
from nalar.keys import Key
from nalar.speculative.proposal import Proposal

__all__ = ["Ngram", "NgramDraft", "copied"]


@dataclass(frozen=True)
class Ngram:
    """``draft=Ngram(longest=3, shortest=1, length=8)``: a table of every n-gram so far.

    >>> draft = Ngram(shortest=2).begin(target=None)
    >>> draft.observe([7, 8, 9, 1, 7, 8])
    >>> draft.propose(History(), Key(0, position=0), 3)
    Proposal([9, 1, 7])
    """

    longest: int = 3
    shortest: int = 1
    length: int = 8

    def __post_init__(self) -> None:
        check_integer("shortest", self.shortest, 1)
        check_integer("length", self.length, 0)
        if check_integer("longest", self.longest, 1) < self.shortest:
            raise InvalidValue(f"longest must be an integer >= shortest ({self.shortest}), got {self.longest}")

    def begin(self, target: Engine | None) -> NgramDraft:
        """A draft for one reply."""
        del target
        return NgramDraft(self.longest, self.shortest)


class NgramDraft:
    """[n] → n-gram → the places after its last two occurrences; the newer of them is the end of the text itself."""

    def __init__(self, longest: int, shortest: int) -> None:
        self._sizes = range(longest, shortest - 1, -1)
        self._text: list[int] = []
        self._after: dict[tuple[int, ...], list[int]] = {}  # ends of occurrences, ascending

    def propose(self, history: History, key: Key, length: int) -> Proposal:
        """What followed the longest n-gram that was seen before."""
        del history, key
        for size in self._sizes:
            ends = self._after.get(tuple(self._text[-size:]), []) if size <= len(self._text) else []
            if len(ends) > 1:
                return Proposal.point(copied(self._text, ends[-2], length))
        return Proposal.point(())

    def observe(self, tokens: Sequence[int]) -> None:
        """Append tokens, and note the n-grams that end with each."""
        for token in tokens:
            self._text.append(token)
            for gram in self._grams():
                self._after.setdefault(gram, []).append(len(self._text))

    def rollback(self, n: int) -> None:
        """Take the last ``n`` tokens back, and what ended with them."""
        for _ in range(check_integer("n", n, 0, len(self._text))):
            for gram in self._grams():
                self._after[gram].pop()
            self._text.pop()

    def close(self) -> None:
        """Nothing is held."""

    def _grams(self) -> list[tuple[int, ...]]:
        return [tuple(self._text[-size:]) for size in self._sizes if size <= len(self._text)]


def copied(text: list[int], place: int, length: int) -> list[int]:
    """``length`` tokens of ``text`` from ``place`` on; where it ends, the copy goes on from itself, so that repetition repeats.

    >>> copied([5, 6, 7], 1, 5)
    [6, 7, 6, 7, 6]
    """
    period = len(text) - place
    return [text[place + i % period] for i in range(length)]
