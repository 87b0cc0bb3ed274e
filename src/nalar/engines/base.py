"""What a model must offer: token ids in, rows of logits out.  The whole contract is on this screen.

An engine knows nothing of sampling.  Rows are *borrowed*: they are valid until the next call on the same engine, which
ends their lease.  Whoever keeps one longer copies it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

__all__ = ["Engine", "Lease", "Limits", "LoadOptions", "Loaded", "Message", "Rows", "Sequence", "Vocabulary", "Work", "lend"]

Message = Mapping[str, str]  # {"role": "user", "content": "…"}


class Vocabulary(Protocol):
    """The tokens of a model, and the two ways from text to ids."""

    @property
    def size(self) -> int: ...  # without padding: ids are 0 … size − 1
    @property
    def ends(self) -> frozenset[int]: ...  # every id that ends a reply
    @property
    def pieces(self) -> tuple[bytes, ...]: ...  # the bytes each id adds to the text; b"" for control tokens
    @property
    def controls(self) -> Mapping[str, int]: ...  # control tokens by their spelling, ends among them
    @property
    def begin(self) -> tuple[int, ...]: ...  # what the model wants before a plain prompt; () for most
    @property
    def chat_template(self) -> str | None: ...  # Jinja source from the model file
    def encode(self, text: str) -> list[int]: ...  # text anywhere: no control token, whatever it says, and no `begin`
    def encode_chat(self, messages: list[Message]) -> list[int]: ...  # control tokens from the template alone


@dataclass(frozen=True, slots=True)
class Limits:
    """What an engine can hold and do."""

    context: int  # tokens a sequence can hold
    step_tokens: int  # tokens one step can take, all sequences together
    sequences: int  # sequences open at the same time
    can_truncate: bool
    can_fork: bool


@dataclass(slots=True, eq=False)
class Sequence:
    """One open sequence: ``tokens`` are the ids whose state the engine holds, in order.  Only the engine changes it."""

    slot: int
    tokens: list[int] = field(default_factory=list)
    closed: bool = False


@dataclass(frozen=True, slots=True)
class Work:
    """Append ``tokens`` to ``sequence`` and return the rows that follow its last ``rows`` tokens."""

    sequence: Sequence
    tokens: tuple[int, ...]
    rows: int = 1


class Lease:
    """How long borrowed rows stay valid: ``ended`` turns true at the engine's next call."""

    __slots__ = ("ended",)

    def __init__(self) -> None:
        self.ended = False


class Rows(np.ndarray[Any, np.dtype[np.float32]]):
    """``[n, vocabulary]`` float32, read-only, with the lease it is lent under; a view carries the same lease, a copy none."""

    lease: Lease | None

    def __array_finalize__(self, source: object) -> None:
        lease = getattr(source, "lease", None)
        self.lease = lease if lease is not None and np.may_share_memory(self, source) else None  # a copy is its owner's


def lend(array: npt.NDArray[np.float32], lease: Lease) -> Rows:
    """``array`` as borrowed rows, without a copy.

    >>> rows = lend(np.zeros((1, 4), np.float32), Lease())
    >>> rows[0].lease is rows.lease, rows.flags.writeable
    (True, False)
    """
    rows = array.view(Rows)
    rows.lease = lease
    rows.flags.writeable = False
    return rows


class Engine(Protocol):
    """A model.  A draft model is just another engine."""

    @property
    def vocabulary(self) -> Vocabulary: ...
    @property
    def limits(self) -> Limits: ...
    def open(self) -> Sequence: ...  # raises EngineFull
    def fork(self, sequence: Sequence) -> Sequence: ...  # shares the prefix
    def truncate(self, sequence: Sequence, length: int) -> None: ...  # keep the first `length` tokens
    def close(self, sequence: Sequence) -> None: ...  # idempotent; the slot is clean afterwards
    def step(self, work: list[Work]) -> list[Rows]: ...  # one Rows a Work; an error leaves every sequence as it was


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """What a person may ask of any engine family when a model is loaded; None lets the engine choose."""

    context: int | None = None  # tokens a sequence can hold
    threads: int | None = None
    sequences: int = 8  # open at the same time
    reproducible: bool = False  # rows do not depend on how many are computed at once, at some cost in speed


@dataclass(frozen=True, slots=True)
class Loaded:
    """What an engine family's ``load`` returns: the engine, what it is called, and how to free it."""

    engine: Engine
    name: str
    release: Callable[[], None]
