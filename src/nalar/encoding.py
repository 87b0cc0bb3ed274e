"""A chain as the table that the kernels run: which stages have an operation, and with what arguments.

The table is made once for a chain.  It covers the chain's stages from the first on, as far as each is a built-in stage with an
operation; what comes after them runs through ``apply``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from nalar.history import History
from nalar.stages import Allow, Ban, Bias, Frequency, MinP, MinTokens, Presence, Repetition, Stage, Temperature, TopK, TopP
from nalar.stages.base import Context
from nalar.stages.penalties import Penalty, occurrences

__all__ = ["UNKNOWN", "Encoded", "encode", "encode_head"]

GREEDY, TEMPERATURE, TOP_K, TOP_P, MIN_P, BIAS, BAN, ALLOW, MIN_TOKENS = range(9)  # as kernels/program.py has them
PENALTY = {Repetition: 9, Frequency: 10, Presence: 11}
SEEN = 3  # added to a penalty's number when Python has listed its ids
SCOPE = {"prompt": 1, "output": 2, "all": 3}
ALL = 2.0**40  # more than any row has: the identity
SMALLEST_P = 1e-290  # below it exp(logit − max) is not a normal number, and does not compare as its logarithm does

Line = tuple[float, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Encoded:
    """``table`` float64 [operations, 5]; ``kept`` holds the arrays whose addresses are in it."""

    table: npt.NDArray[np.float64]
    address: int
    length: int
    kept: tuple[Any, ...]
    greatest: int  # id that an edit names; −1 for none
    counted: bool  # whether an operation reads the history's counts
    historic: bool  # whether the law depends on the history at all
    listed: tuple[tuple[int, Penalty], ...]  # lines that need the ids a penalty sees, and the penalty

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("a chain's table holds addresses of this process: send the chain")

    def at(self, history: History, vocabulary: int) -> Encoded:
        """This table with the ids that windowed penalties see now."""
        table, kept = self.table.copy(), list(self.kept)
        for line, stage in self.listed:
            seen = occurrences(stage, Context(history, vocabulary))
            ids, amounts = np.ascontiguousarray(seen.ids, np.int32), np.concatenate([seen.counts, seen.fades])
            table[line, 2:5] = ids.ctypes.data, ids.size, amounts.ctypes.data
            kept += [ids, amounts]
        return Encoded(table, table.ctypes.data, self.length, tuple(kept), self.greatest, self.counted, self.historic, ())


UNKNOWN = Encoded(np.zeros((0, 5)), 0, 0, (), -1, False, False, ())  # not looked at yet


def encode(stages: Sequence[Stage]) -> Encoded | None:
    """The table of ``stages``; None if one of them has no operation."""
    lines: list[Line] = []
    kept: list[Any] = []
    listed: list[tuple[int, Penalty]] = []
    for stage in stages:
        write = WRITERS.get(type(stage))
        line = None if write is None else write(stage, kept)
        if line is None:
            return None
        if isinstance(stage, Penalty) and line[0] >= PENALTY[Repetition] + SEEN:
            listed.append((len(lines), stage))
        lines.append(line)
    table = np.zeros((len(lines), 5))
    for number, line in enumerate(lines):
        table[number, : len(line)] = line
    greatest = max((int(ids.max(initial=-1)) for ids in kept if ids.dtype == np.int32), default=-1)
    counted = any(PENALTY[Repetition] <= line[0] <= PENALTY[Presence] for line in lines)
    historic = any(isinstance(stage, Penalty | MinTokens) for stage in stages)
    return Encoded(table, table.ctypes.data, len(lines), tuple(kept), greatest, counted, historic, tuple(listed))


def encode_head(stages: Sequence[Stage]) -> tuple[Encoded, int] | None:
    """The table of the stages up to the first truncation, and how many they are; None where something before it has no operation.

    For a chain that cannot be encoded whole: after a truncation the candidates are few, and ``apply`` may go on.
    """
    for index, stage in enumerate(stages):
        if isinstance(stage, Temperature) and stage.value == 0:
            return None  # its candidates are the whole row, masked
        if isinstance(stage, TopK | TopP | MinP):
            encoded = encode(stages[: index + 1])
            return None if encoded is None or encoded.table[index, 1] == ALL else (encoded, index + 1)
    return None


def _temperature(stage: Temperature, kept: list[Any]) -> Line | None:
    return (TEMPERATURE, stage.value) if stage.value > 0 else (GREEDY,)


def _top_k(stage: TopK, kept: list[Any]) -> Line | None:
    return (TOP_K, stage.k or ALL) if stage.ties == "first" else None


def _top_p(stage: TopP, kept: list[Any]) -> Line | None:
    if stage.p >= 1:
        return (TOP_K, ALL)
    plain = stage.crossing and stage.at_equality == "stop" and stage.ties == "first" and stage.mass == "renormalised"
    return (TOP_P, stage.p) if plain else None


def _min_p(stage: MinP, kept: list[Any]) -> Line | None:
    if stage.p == 0:
        return (TOP_K, ALL)
    return (MIN_P, stage.p, math.log(stage.p)) if stage.p > SMALLEST_P and not stage.strict else None


def _bias(stage: Bias, kept: list[Any]) -> Line | None:
    pairs = dict(stage.values)
    amounts = np.array(list(pairs.values()), np.float64)
    return (BIAS, _ids(pairs, kept), _kept(amounts, kept), len(pairs))


def _ban(stage: Ban, kept: list[Any]) -> Line | None:
    return (BAN, _ids(stage.ids, kept), len(tuple(stage.ids)))


def _allow(stage: Allow, kept: list[Any]) -> Line | None:
    return (ALLOW, _ids(stage.ids, kept), len(tuple(stage.ids)))


def _min_tokens(stage: MinTokens, kept: list[Any]) -> Line | None:
    return (MIN_TOKENS, _ids(stage.ends, kept), len(tuple(stage.ends)), stage.n)


def _penalty(stage: Penalty, kept: list[Any]) -> Line | None:
    number = PENALTY[type(stage)]
    if stage.window is None and stage.ignore_prefix == 0:
        return (number, stage.value, SCOPE[stage.scope])
    return (number + SEEN, stage.value)


def _ids(ids: Any, kept: list[Any]) -> int:
    return _kept(np.array(list(ids), np.int32), kept)


def _kept(array: npt.NDArray[Any], kept: list[Any]) -> int:
    kept.append(array)
    return array.ctypes.data


WRITERS: dict[type[Stage], Callable[[Any, list[Any]], Line | None]] = {
    Temperature: _temperature, TopK: _top_k, TopP: _top_p, MinP: _min_p, Bias: _bias, Ban: _ban, Allow: _allow, MinTokens: _min_tokens,
    Repetition: _penalty, Frequency: _penalty, Presence: _penalty,
}
