"""The laws along a draft: each sees the draft before it, and nothing is committed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nalar.chain import Chain, Evaluation
from nalar.distribution import Distribution
from nalar.history import History, States
from nalar.keys import Key
from nalar.rows import FloatRow
from nalar.speculative.laws import Law, Sparse

__all__ = ["Walk", "Window"]


@dataclass(frozen=True, slots=True)
class Window:
    """The laws along a draft, each seeing the draft before it: ``laws[i]`` is the law after ``draft[:i]``.

    It holds the states along the draft, and commits nothing.  It belongs to one point of one sampler: ``key`` is the step's.
    No rule gets past a draft token that its law cannot draw: the stages with memory do not observe it.
    """

    draft: tuple[int, ...]
    evaluations: tuple[Evaluation, ...]
    states: tuple[States, ...]  # after each draft token
    history: History
    revision: int
    key: Key

    @property
    def laws(self) -> tuple[Distribution, ...]:
        """The k + 1 laws of k draft tokens."""
        return tuple(evaluation.law for evaluation in self.evaluations)

    def __len__(self) -> int:
        return len(self.evaluations)

    def __getitem__(self, index: int) -> Distribution:
        return self.evaluations[index].law


class Walk:
    """The laws along a draft, made as they are asked for.  Inside ``with`` the history goes along; after it, it is as it was."""

    def __init__(self, chain: Chain, history: History, key: Key, rows: list[FloatRow], draft: tuple[int, ...]) -> None:
        self._chain, self._history, self._key, self._rows, self._draft = chain, history, key, rows, draft
        self._start, self._revision = history.position, history.revision
        self._evaluations: list[Evaluation] = []
        self._states: list[States] = []

    def window(self) -> Window:
        """What was asked for."""
        return Window(self._draft, tuple(self._evaluations), tuple(self._states), self._history, self._revision, self._key)

    def __getitem__(self, index: int) -> Law:
        while len(self._evaluations) <= index:
            self._go_on()
        return Sparse.of(self._evaluations[index].law)

    def __iter__(self) -> Iterator[Law]:
        return (self[index] for index in range(len(self._rows)))

    def __enter__(self) -> Walk:
        return self

    def __exit__(self, *error: object) -> None:
        self._history.rollback(self._history.position - self._start)
        self._history.revision = self._revision  # the same history again, so that earlier windows of this point stay good

    def _go_on(self) -> None:
        place = len(self._evaluations)
        if place > len(self._states):
            self._states.append(_after(self._evaluations[-1], self._draft[place - 1]))
            self._history.append(self._draft[place - 1], self._states[-1])
        key = self._key.at(self._history.position)  # coins belong to positions
        self._evaluations.append(self._chain.evaluate(self._rows[place], self._history, key))


def _after(evaluation: Evaluation, token: int) -> States:
    """The states after a draft token; one that cannot be drawn is not observed."""
    return evaluation.after(token) if evaluation.law.prob(token) > 0 else evaluation.states
