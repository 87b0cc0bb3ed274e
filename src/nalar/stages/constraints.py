"""Constraints: ids that are favoured, forbidden, or alone allowed.  Masks are −inf, and come before anything that measures mass."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from nalar.candidates import Candidates
from nalar.checks import check_bias, check_ids, check_integer
from nalar.errors import InvalidValue
from nalar.stages.base import Context, Stage

__all__ = ["Allow", "Ban", "Bias", "MinTokens"]


@dataclass(frozen=True)
class Bias(Stage):
    """logit ← logit + ``values[id]``.

    ``values``: {id: finite number or −inf}, −inf forbids; neutral {}.  An id outside the row's vocabulary is an error.
    Source: the OpenAI API's ``logit_bias``, without its range.

    >>> import nalar
    >>> nalar.Chain([Bias({1: 2.0})]).candidates([0.0, 0.0]).logits.tolist()
    [0.0, 2.0]
    """

    values: Mapping[int, float] | tuple[tuple[int, float], ...]  # kept as pairs sorted by id

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", check_bias("bias", self.values))

    def apply(self, candidates: Candidates, context: Context) -> Candidates:
        amounts = dict(self.values)
        if not amounts:
            return candidates
        _check_inside(self.name, amounts, context.vocabulary)
        places = candidates.places(np.array(list(amounts), np.int32))
        logits = candidates.logits.copy()
        with np.errstate(over="ignore"):
            logits[places] += [amounts[token] for token in candidates.ids[places].tolist()]
        return candidates.replace(logits)


@dataclass(frozen=True)
class Allow(Stage):
    """Masks every token but ``ids``.

    ``ids``: token ids; the same set as a packed bit mask serves each row.  There is no neutral value; leave the stage out.

    >>> import nalar
    >>> nalar.Chain([Allow([2, 0])]).distribution([0.0, 5.0, 0.0])
    Distribution(ids=[0, 2], probs=[0.5, 0.5])
    """

    ids: Iterable[int]

    def __post_init__(self) -> None:
        object.__setattr__(self, "ids", check_ids("allowed ids", self.ids))

    @cached_property
    def packed(self) -> npt.NDArray[np.uint8]:
        """The set as a bit mask: bit t is set for each id t, lowest bit first."""
        return _pack(np.array(self.ids, np.int32))

    def apply(self, candidates: Candidates, context: Context) -> Candidates:
        _check_inside(self.name, self.ids, context.vocabulary)
        return candidates.masked(~_unpack(self.packed, candidates.ids))


@dataclass(frozen=True)
class Ban(Stage):
    """Masks ``ids``.  Neutral: [].

    >>> import nalar
    >>> nalar.Chain([Ban([1])]).distribution([0.0, 5.0, 0.0])
    Distribution(ids=[0, 2], probs=[0.5, 0.5])
    """

    ids: Iterable[int]

    def __post_init__(self) -> None:
        object.__setattr__(self, "ids", check_ids("banned ids", self.ids))

    def apply(self, candidates: Candidates, context: Context) -> Candidates:
        return _without(self.name, self.ids, candidates, context)


@dataclass(frozen=True)
class MinTokens(Stage):
    """Masks ``ends`` while the output is shorter than ``n`` tokens.

    ``n``: integer ≥ 0; neutral 0.  ``ends``: every id that could end the reply, end ids and stop ids alike.

    >>> import nalar
    >>> chain = nalar.Chain([MinTokens(1, ends=[1])])
    >>> chain.distribution([0.0, 5.0]).ids.tolist(), chain.distribution([0.0, 5.0], nalar.History(output=[0])).ids.tolist()
    ([0], [0, 1])
    """

    n: int
    ends: Iterable[int]

    def __post_init__(self) -> None:
        object.__setattr__(self, "n", check_integer("n", self.n, 0))
        object.__setattr__(self, "ends", check_ids("ends", self.ends))

    def apply(self, candidates: Candidates, context: Context) -> Candidates:
        return candidates if context.history.position >= self.n else _without(self.name, self.ends, candidates, context)


def _without(stage: str, ids: Iterable[int], candidates: Candidates, context: Context) -> Candidates:
    _check_inside(stage, ids, context.vocabulary)
    if not ids:
        return candidates
    mask = np.zeros(candidates.ids.size, np.bool_)
    mask[candidates.places(np.array(list(ids), np.int32))] = True
    return candidates.masked(mask)


def _check_inside(stage: str, ids: Iterable[int], vocabulary: int) -> None:
    greatest = max(ids, default=-1)
    if greatest >= vocabulary:
        raise InvalidValue(f"{stage}: token ids must be in [0, {vocabulary - 1}], the row's vocabulary, got {greatest}")


def _pack(ids: npt.NDArray[np.int32]) -> npt.NDArray[np.uint8]:
    bits = np.zeros(ids.max(initial=-1) + 1, np.bool_)
    bits[ids] = True
    return np.packbits(bits, bitorder="little")


def _unpack(packed: npt.NDArray[np.uint8], ids: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
    """Whether each of ``ids`` is in the set."""
    inside = np.zeros(ids.size, np.bool_)
    known = ids >> 3 < packed.size
    inside[known] = (packed[ids[known] >> 3] >> (ids[known] & 7) & 1).astype(np.bool_)
    return inside
