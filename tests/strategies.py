"""Random rows, stages, chains, histories and keys, shared by every law test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from nalar import Chain, History, Key
from nalar.candidates import Candidates
from nalar.stages import (
    Allow,
    Ban,
    Bias,
    Context,
    Frequency,
    MinP,
    MinTokens,
    Presence,
    Repetition,
    Stage,
    Temperature,
    TopK,
    TopP,
)  # fmt: skip

Row = npt.NDArray[Any]

BIG = 300_000
DTYPES = (np.float64, np.float32, np.float16, ml_dtypes.bfloat16)
BUILT_IN_KINDS: list[type[Any]] = [Temperature, TopK, TopP, MinP, Repetition, Frequency, Presence, Bias, Allow, Ban, MinTokens]
INT32 = st.sampled_from([-(2**31), -2, -1, 2**31 - 1])


@dataclass(frozen=True)
class Case:
    """One row with everything that a chain may look at.  ``prompt`` and ``output`` make a fresh history each time."""

    row: Row
    stages: tuple[Stage, ...]
    prompt: tuple[int, ...]
    output: tuple[int, ...]
    key: Key

    @property
    def chain(self) -> Chain:
        return Chain(self.stages)

    @property
    def history(self) -> History:
        return History(self.prompt, self.output)


@dataclass(frozen=True)
class CoinDropsTop(Stage):
    """A user's stage that flips a coin: below ``chance`` it removes the most likely token, unless it is the only one."""

    chance: float = 0.5

    def apply(self, candidates: Candidates, context: Context) -> Candidates:
        if context.coin() >= self.chance or np.isfinite(candidates.logits).sum() < 2:
            return candidates
        return candidates.keep(np.arange(candidates.ids.size) != np.argmax(candidates.logits))


@dataclass(frozen=True)
class Remembers(Stage):
    """A user's stage with memory: its state folds in each token and the number and sum of candidates it was given for that draw."""

    strength: float = 0.1

    def initial(self, context: Context) -> tuple[float, int]:
        return float(len(context.history) % 5), context.history.position

    def observe(self, state: tuple[float, int], token: int, candidates: Candidates | None) -> tuple[float, int]:
        seen = -1.0 if candidates is None else float(candidates.logits[np.isfinite(candidates.logits)].sum())
        return (state[0] * 0.5 + seen + token) % 7.0, state[1] + 1

    def apply(self, candidates: Candidates, context: Context) -> Candidates:
        return candidates.replace(candidates.logits + self.strength * context.state[0] * (candidates.ids % 3))


def numbers(low: float = -50, high: float = 50) -> SearchStrategy[float]:
    return st.floats(low, high, allow_nan=False, width=32)


@st.composite
def rows(draw: DrawFn, low: int = 1, high: int = 40, dtypes: tuple[Any, ...] = DTYPES) -> Row:
    """Plain, tied, equal, steep, whole-numbered and power-of-two rows, some with −inf, at least one entry finite."""
    size = draw(st.integers(low, high))
    entries: SearchStrategy[float] = draw(
        st.sampled_from([
            numbers(-8, 8),
            numbers(),
            st.sampled_from([-1.0, 0.0, 0.5, 2.0]),
            st.just(draw(numbers())),
            st.sampled_from([-50.0, -49.5, 49.0, 50.0]),
            st.integers(-6, 6).map(float),
            st.integers(0, 8).map(lambda power: float(np.log(0.5**power))),
        ])
    )  # fmt: skip
    values = np.array(draw(st.lists(entries, min_size=size, max_size=size)))
    if draw(st.booleans()):
        hidden = draw(st.lists(st.integers(0, size - 1), max_size=size - 1, unique=True))
        values[hidden] = -np.inf
    return values.astype(draw(st.sampled_from(dtypes)))


def big_row(seed: int) -> Row:
    """A row of 300,000 logits: bell-shaped, whole-numbered (many ties), equal but for a few, or half masked, by ``seed``."""
    random = np.random.default_rng(seed)
    row = random.normal(0, 3, BIG).astype(np.float32)
    match seed % 4:
        case 1:
            row = np.round(row)
        case 2:
            row[:] = 1.5
            row[random.integers(0, BIG, 5)] = 9
        case 3:
            row[random.random(BIG) < 0.5] = -np.inf
    return row


@st.composite
def penalties(draw: DrawFn, kind: type[Any]) -> Stage:
    value = draw(st.sampled_from([0.5, 1.0, 1.3, 2.0]) if kind is Repetition else st.sampled_from([-1.5, 0.0, 0.25, 3.0]))
    window = draw(st.none() | st.integers(0, 12))
    return kind(  # type: ignore[no-any-return]
        value, scope=draw(st.sampled_from(["all", "output", "prompt"])), window=window, ignore_prefix=draw(st.integers(0, 4)),
        decay=None if window is None else draw(st.sampled_from([None, 1, 2, 4, 8])),  # powers of two: fades are exact
    )  # fmt: skip


def temperatures() -> SearchStrategy[Stage]:
    return st.builds(Temperature, st.sampled_from([0.0, 0.5, 1.0, 2.0, 1e-3, 1e-310, 1e30]) | st.floats(0.01, 100))


def probabilities() -> SearchStrategy[float]:
    return st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0]) | st.floats(0, 1)


def top_ps() -> SearchStrategy[Stage]:
    equality, ties, masses = (st.sampled_from(pair) for pair in (("stop", "continue"), ("first", "all"), ("renormalised", "original")))
    return st.builds(TopP, probabilities(), st.booleans(), equality, ties, masses)


def one_kind(kind: type[Stage], size: int) -> SearchStrategy[Stage]:
    """Stages of one built-in kind with random fields, for a vocabulary of ``size``."""
    ids = st.integers(0, size - 1)
    few = st.lists(ids, max_size=max(1, size // 4))
    many = st.lists(ids, min_size=(size + 1) // 2, max_size=size, unique=True)
    strategies: dict[type[Any], Callable[[], SearchStrategy[Any]]] = {
        Temperature: temperatures,
        TopK: lambda: st.builds(TopK, st.integers(0, size + 2), st.sampled_from(["first", "all"])),
        TopP: top_ps,
        MinP: lambda: st.builds(MinP, probabilities(), st.booleans()),
        Repetition: lambda: penalties(Repetition),
        Frequency: lambda: penalties(Frequency),
        Presence: lambda: penalties(Presence),
        Bias: lambda: st.builds(Bias, st.dictionaries(ids, numbers(-20, 20) | st.just(-np.inf), max_size=5)),
        Allow: lambda: st.builds(Allow, many),
        Ban: lambda: st.builds(Ban, few),
        MinTokens: lambda: st.builds(MinTokens, st.integers(0, 6), few),
    }
    return strategies[kind]()


def truncations(size: int) -> SearchStrategy[Stage]:
    return st.sampled_from([TopK, TopP, MinP]).flatmap(lambda kind: one_kind(kind, size))


def built_in_stages(size: int) -> SearchStrategy[Stage]:
    return st.sampled_from(BUILT_IN_KINDS).flatmap(lambda kind: one_kind(kind, size))


def stage_lists(size: int, most: int = 4) -> SearchStrategy[tuple[Stage, ...]]:
    """Sampled orders of up to four stages out of all built-in ones."""
    return st.lists(built_in_stages(size), max_size=most).map(tuple)


def token_lists(size: int, most: int = 12) -> SearchStrategy[tuple[int, ...]]:
    """Ids of the vocabulary, with some outside it: −1, image placeholders, the ends of int32."""
    return st.lists(st.integers(0, size - 1) | st.integers(-2, size + 3) | INT32, max_size=most).map(tuple)


def keys() -> SearchStrategy[Key]:
    seeds = st.integers(0, 2**64 - 1) | st.integers(0, 10)
    return st.builds(Key, seeds, st.integers(0, 2**32 - 1), st.none() | st.integers(0, 2**32 - 1), st.integers(0, 2**16 - 1))


@st.composite
def cases(draw: DrawFn, low: int = 1, high: int = 40, dtypes: tuple[Any, ...] = DTYPES, own: bool = False) -> Case:
    """A row, up to four stages that fit it, a history and a key; with ``own`` a user's two stages may be among them."""
    row = draw(rows(low, high, dtypes))
    stages = draw(stage_lists(row.size))
    if own:
        place = draw(st.integers(0, len(stages)))
        stages = stages[:place] + draw(st.sampled_from([(CoinDropsTop(),), (Remembers(),), (CoinDropsTop(), Remembers())])) + stages[place:]
    return Case(row, stages, draw(token_lists(row.size)), draw(token_lists(row.size)), draw(keys()))


@st.composite
def big_cases(draw: DrawFn) -> Case:
    """A vocabulary of 300,000, built by NumPy from a drawn seed, with stages that touch a few ids of it."""
    row = big_row(draw(st.integers(0, 2**16)))
    some = st.one_of(truncations(50), temperatures(), st.sampled_from([Repetition, Frequency]).flatmap(penalties))
    stages = draw(st.lists(some, max_size=3))
    ids = draw(st.lists(st.integers(0, BIG - 1), max_size=8))
    return Case(row, tuple(stages), tuple(ids), tuple(ids[:3]), draw(keys()))
