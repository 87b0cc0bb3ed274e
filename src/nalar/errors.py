"""The error tree.  Every message names the argument, the range and the value given.

    NalarError
    ├── InvalidValue      (ValueError)    a value outside its range
    │   ├── ParseError                    a chain's text that does not parse; shows the column
    │   ├── BrokenRow                     logits that define no distribution: NaN, +inf, all -inf, emptied by a stage
    │   └── PromptTooLong                 a prompt that does not fit the model's context
    ├── InvalidType       (TypeError)     a value of the wrong type
    ├── KeyRequired       (ValueError)    a stage flips a coin and no key was given
    ├── MemoryRequired    (ValueError)    a stage needs what earlier draws saw, and the history holds ids alone
    ├── EngineError       (RuntimeError)  the model engine refused or failed
    │   └── EngineFull                    no free sequence, or no room left in the engine's memory
    ├── ModelNotFound     (ValueError)    no such model, or a file that is not one
    └── MissingPackage    (ImportError)   an optional package is absent; says which ``pip install`` brings it
"""

from __future__ import annotations

from typing import Any

__all__ = [
    "BrokenRow", "EngineError", "EngineFull", "InvalidType", "InvalidValue", "KeyRequired", "MemoryRequired",
    "MissingPackage", "ModelNotFound", "NalarError", "ParseError", "PromptTooLong",
]


class NalarError(Exception):
    """Root of every error Nalar raises on purpose.

    >>> import nalar
    >>> try:
    ...     nalar.SamplingParams(top_p=1.3)
    ... except nalar.NalarError as error:
    ...     print(error)
    top_p must be a number in [0, 1], got 1.3
    """


class InvalidValue(NalarError, ValueError):
    """A value outside its range."""


class InvalidType(NalarError, TypeError):
    """A value of the wrong type."""


class ParseError(InvalidValue):
    """A chain's text that does not parse; ``column`` counts from 1."""

    def __init__(self, message: str, text: str, column: int) -> None:
        super().__init__(f"{message} (column {column})\n  {text}\n  {' ' * (column - 1)}^")
        self.text, self.column = text, column

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


class BrokenRow(InvalidValue):
    """Logits that define no distribution.  ``row`` is its place in a batch, ``stage`` the stage that emptied it, if one did."""

    def __init__(self, problem: str, *, row: int | None = None, stage: str | None = None) -> None:
        super().__init__(problem if row is None else f"row {row}: {problem}")
        self.problem, self.row, self.stage = problem, row, stage

    def at(self, row: int) -> BrokenRow:
        """The same error, saying which row of a batch it is."""
        return BrokenRow(self.problem, row=row, stage=self.stage)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


class PromptTooLong(InvalidValue):
    """A prompt that does not fit the model's context; the message states both lengths."""


class KeyRequired(NalarError, ValueError):
    """A stage of this chain flips a coin, so its law is defined only given a key."""


class MemoryRequired(NalarError, ValueError):
    """A stage needs what its earlier draws saw, and the history was given as ids alone."""


class EngineError(NalarError, RuntimeError):
    """The model engine refused or failed."""


class EngineFull(EngineError):
    """No free sequence, or no room left in the engine's memory."""


class ModelNotFound(NalarError, ValueError):
    """No such model, or a file that is not one."""


class MissingPackage(NalarError, ImportError):
    """An optional package is absent; the message says which ``pip install`` brings it."""


def _rebuild(kind: type[Exception], args: tuple[Any, ...], fields: dict[str, Any]) -> Exception:
    """Unpickle an error whose constructor takes more than its message (workers send errors across processes)."""
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(fields)
    return error
