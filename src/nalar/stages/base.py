"""The contract of a stage, whole on this screen.

A stage is a frozen dataclass: its parameters, and ``apply``, a pure function of the candidates at its place in the chain.
Override ``apply`` and you have a stage; it works everywhere a built-in one does.

A stage that remembers more than token ids adds ``initial`` and ``observe`` (see ``Memory``).  A stage that flips a coin takes
it from ``context.coin()``, and from nowhere else: then a draw stays a function of its key.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from inspect import get_annotations
from typing import Any, ClassVar, Protocol, runtime_checkable

from nalar.candidates import Candidates
from nalar.errors import InvalidType, KeyRequired
from nalar.history import History
from nalar.keys import Key

__all__ = ["Context", "Memory", "Stage"]


@dataclass(frozen=True, slots=True)
class Context:
    """What a stage may look at besides the candidates."""

    history: History  # prompt and output so far; in a speculative step, the drafted prefix too
    vocabulary: int  # number of token ids in the row
    key: Key | None = None  # at the position of this draw
    index: int = 0  # this stage's place in the chain
    state: Any = None  # what this stage knows, if it has a memory

    def coin(self) -> float:
        """This stage's uniform in [0, 1) for this draw: purpose "coin", index the stage's place in the chain."""
        if self.key is None:
            raise KeyRequired("key must be given to a chain in which a stage flips a coin, got None")
        key = self.key
        own = replace(key, position=(key.position or 0) + key.row, row=0) if key.row else key  # a draft key names the step's start
        return own.coin(self.index)


class Stage:
    """Base of every stage, yours included.  Subclasses are frozen dataclasses, so that chains can be compared and printed.

    The name in a chain's text is the class name in snake_case, unless ``name`` says otherwise.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class OnlyEven(Stage):
    ...     '''Removes the odd ids.'''
    ...     def apply(self, candidates, context):
    ...         return candidates.keep(candidates.ids % 2 == 0)
    >>> import nalar
    >>> nalar.Chain([OnlyEven()]).distribution([0.0, 0.0, 0.0, 0.0])
    Distribution(ids=[0, 2], probs=[0.5, 0.5])
    """

    name: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        if "name" in get_annotations(cls) and "name" not in cls.__dict__:
            raise InvalidType(f"a field of {cls.__name__} must not be called name: that is the stage's name in a chain's text")
        if "name" not in cls.__dict__:
            cls.name = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in cls.__name__).lstrip("_")
        if callable(getattr(cls, "initial", None)) != callable(getattr(cls, "observe", None)):
            raise InvalidType(f"{cls.__name__} must define both initial and observe, or neither: together they are a stage's memory")

    def apply(self, candidates: Candidates, context: Context) -> Candidates:
        """The candidates after this stage.  Pure: reads its arguments, changes nothing.

        Never hands back an empty set on purpose: if no token is left, the chain raises BrokenRow in this stage's name.
        """
        raise NotImplementedError(f"{type(self).__name__} must define apply(candidates, context)")


@runtime_checkable
class Memory(Protocol):
    """What a stage adds when its effect depends on more than token ids.  Both functions are pure; a state is an immutable value.

    The states travel in the history's log, one per output token, so rollback, forks and snapshots need nothing of the stage.
    """

    def initial(self, context: Context) -> Any:
        """The state before the first output token."""
        ...

    def observe(self, state: Any, token: int, candidates: Candidates | None) -> Any:
        """The state after ``token`` was emitted; ``candidates`` is what this stage's ``apply`` was given for that draw.

        It is None when a history was given as ids alone: raise MemoryRequired if you cannot do without.
        """
        ...
