"""A draft that says what a test wants: the first list in the first step, the second in the second, then nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from nalar import Distribution, History, Key, Proposal

__all__ = ["Saying"]


class Saying:
    """``Saying([[4, 5], [6]])``; with ``laws`` the tokens claim to be drawn from them."""

    def __init__(self, said: Iterable[Sequence[int]], laws: Sequence[Distribution] | None = None, length: int = 16) -> None:
        self.said, self.laws, self.length = [list(tokens) for tokens in said], laws, length
        self.lengths: list[int] = []

    def begin(self, target: Any) -> Saying:
        self._left = [list(tokens) for tokens in self.said]
        return self

    def propose(self, history: History, key: Key, length: int) -> Proposal:
        tokens = self._left.pop(0)[:length] if self._left else []
        self.lengths.append(len(tokens))
        return Proposal(tokens, None if self.laws is None else self.laws[: len(tokens)])

    def observe(self, tokens: Sequence[int]) -> None:
        pass

    def rollback(self, n: int) -> None:
        pass

    def close(self) -> None:
        pass
