"""A suffix automaton over prompt and output: the longest repeat ending here, of any length, in amortised constant time a token.

Blumer et al., "The smallest automaton recognizing the subwords of a text" (1985); as a draft: SAM-Decoding (arXiv 2411.10666).
A state stands for the strings that end at the same places; its link leads to the longest suffix that ends at more of them.  So the
link of the state of the whole text *is* the longest suffix that occurred before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from nalar.checks import check_integer
from nalar.engines.base import Engine
from nalar.history import History
from nalar.keys import Key
from nalar.speculative.drafts.ngram import copied
from nalar.speculative.proposal import Proposal

__all__ = ["Suffix", "SuffixDraft"]


@dataclass(frozen=True)
class Suffix:
    """``draft=Suffix(least=2, length=8)``, or ``draft="suffix"``: propose what followed the longest repeat of at least ``least`` tokens.

    ``length``: at most so many tokens a step, and at most ``least`` more than the repeat is long: a short match earns a short draft.

    >>> draft = Suffix().begin(target=None)
    >>> draft.observe([1, 2, 3, 4, 1, 2, 3])
    >>> draft.propose(History(), Key(0, position=0), 3), draft.matched
    (Proposal([4, 1, 2]), 3)
    """

    least: int = 2
    length: int = 8

    def __post_init__(self) -> None:
        check_integer("least", self.least, 1)
        check_integer("length", self.length, 0)

    def begin(self, target: Engine | None) -> SuffixDraft:
        """A draft for one reply."""
        del target
        return SuffixDraft(self.least)


@dataclass(slots=True)
class _State:
    longest: int  # length of its longest string
    link: int  # the state of the longest suffix that ends at more places; −1 at the start
    end: int  # a place where its strings end: the newest at which it was the longest repeat
    following: dict[int, int] = field(default_factory=dict)


class SuffixDraft:
    """The automaton of one reply's text."""

    def __init__(self, least: int) -> None:
        self._least = least
        self._begin()

    @property
    def matched(self) -> int:
        """Length of the longest suffix of the text that occurred before."""
        link = self._states[self._last].link
        return self._states[link].longest if link > 0 else 0

    def propose(self, history: History, key: Key, length: int) -> Proposal:
        """What followed the longest repeat."""
        del history, key
        if self.matched < self._least:
            return Proposal.point(())
        return Proposal.point(copied(self._text, self._earlier, min(length, self.matched + self._least)))

    def observe(self, tokens: Sequence[int]) -> None:
        """Append tokens."""
        for token in tokens:
            self._text.append(token)
            self._last = self._extend(token)
            repeat = self._states[self._states[self._last].link]
            self._earlier, repeat.end = repeat.end, len(self._text)

    def rollback(self, n: int) -> None:
        """Take the last ``n`` tokens back: the automaton is built anew, for it only grows."""
        kept = self._text[: len(self._text) - check_integer("n", n, 0, len(self._text))]
        self._begin()
        self.observe(kept)

    def close(self) -> None:
        """Nothing is held."""

    def _begin(self) -> None:
        self._text: list[int] = []
        self._states = [_State(0, -1, 0)]
        self._last = 0
        self._earlier = 0  # where the longest repeat ended before

    def _extend(self, token: int) -> int:
        """The state of the text with ``token``: every suffix that could not go on with it now can."""
        states = self._states
        added, place = len(states), self._last
        states.append(_State(states[place].longest + 1, 0, len(self._text)))
        while place >= 0 and token not in states[place].following:
            states[place].following[token] = added
            place = states[place].link
        if place >= 0:
            states[added].link = self._ending(place, token)
        return added

    def _ending(self, place: int, token: int) -> int:
        """The state of exactly ``place``'s longest string and ``token``, split off where it shares one with longer strings."""
        states = self._states
        found = states[place].following[token]
        if states[found].longest == states[place].longest + 1:
            return found
        clone = len(states)
        states.append(_State(states[place].longest + 1, states[found].link, states[found].end, dict(states[found].following)))
        states[found].link = clone
        while place >= 0 and states[place].following.get(token) == found:
            states[place].following[token] = clone
            place = states[place].link
        return clone
