"""Penalties: what was said before becomes less likely, or more.

All three look at the same occurrences, chosen by the same fields, and differ in what they do to a logit:

    window          only the last n tokens of prompt and output together; None for all
    scope           then "all" of those, only the "output", or only the "prompt"
    ignore_prefix   the first n prompt tokens do not count
    decay           behind the window, an occurrence at distance d counts 1 − (d − window) / decay, down to 0
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from nalar.candidates import Candidates, TokenIds
from nalar.checks import check_choice, check_integer, check_number
from nalar.errors import InvalidValue
from nalar.history import History
from nalar.stages.base import Context, Stage

__all__ = ["Frequency", "Penalty", "Presence", "Repetition"]

Scope = Literal["all", "output", "prompt"]


@dataclass(frozen=True)
class Penalty(Stage):
    """What the three have in common: the amount, and the fields that choose the occurrences."""

    value: float
    scope: Scope = "output"
    window: int | None = None
    ignore_prefix: int = 0
    decay: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", check_number(self.name, self.value))
        object.__setattr__(self, "scope", check_choice("scope", self.scope, ("all", "output", "prompt")))
        object.__setattr__(self, "ignore_prefix", check_integer("ignore_prefix", self.ignore_prefix, 0))
        if self.window is not None:
            object.__setattr__(self, "window", check_integer("window", self.window, 0))
        if self.decay is not None:
            object.__setattr__(self, "decay", check_integer("decay", self.decay, 1))
            if self.window is None:
                raise InvalidValue(f"decay must be None without a window, behind which it fades, got {self.decay}")


@dataclass(frozen=True)
class Repetition(Penalty):
    """logit ← logit / ``value`` where positive, logit · ``value`` otherwise; once for an id, however often it occurs.

    ``value``: finite, > 0; neutral 1; above 1 discourages.  Scope "all" by default.
    Source: Keskar et al., "CTRL: a conditional transformer language model", 2019.

    >>> import nalar
    >>> chain, history = nalar.Chain([Repetition(2.0)]), nalar.History(prompt=[0, 1, 1])
    >>> chain.candidates([3.0, -3.0, 1.0], history).logits.tolist()
    [1.5, -6.0, 1.0]
    """

    scope: Scope = "all"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(self.name, self.value, 0, above=True)

    def apply(self, candidates: Candidates, context: Context) -> Candidates:
        if self.value == 1:
            return candidates
        seen = occurrences(self, context)
        places = candidates.places(seen.ids)
        old = candidates.logits[places]
        with np.errstate(over="ignore"):
            penalised = np.where(old > 0, old / self.value, old * self.value)
        return _edited(candidates, places, _blend(old, penalised, seen.fade_at(candidates.ids[places])))


@dataclass(frozen=True)
class Frequency(Penalty):
    """logit ← logit − ``value`` · occurrences.

    ``value``: finite; neutral 0; above 0 discourages.  Scope "output" by default.
    Source: the OpenAI API's ``frequency_penalty``.

    >>> import nalar
    >>> chain, history = nalar.Chain([Frequency(0.5)]), nalar.History(prompt=[0], output=[1, 1])
    >>> chain.candidates([1.0, 1.0], history).logits.tolist()
    [1.0, 0.0]
    """

    def apply(self, candidates: Candidates, context: Context) -> Candidates:
        if self.value == 0:
            return candidates
        seen = occurrences(self, context)
        places = candidates.places(seen.ids)
        return _lowered(candidates, places, self.value, seen.count_at(candidates.ids[places]))


@dataclass(frozen=True)
class Presence(Penalty):
    """logit ← logit − ``value``, once for an id, however often it occurs.

    ``value``: finite; neutral 0; above 0 discourages.  Scope "output" by default.
    Source: the OpenAI API's ``presence_penalty``.

    >>> import nalar
    >>> chain, history = nalar.Chain([Presence(0.5)]), nalar.History(prompt=[0], output=[1, 1])
    >>> chain.candidates([1.0, 1.0], history).logits.tolist()
    [1.0, 0.5]
    """

    def apply(self, candidates: Candidates, context: Context) -> Candidates:
        if self.value == 0:
            return candidates
        seen = occurrences(self, context)
        places = candidates.places(seen.ids)
        return _lowered(candidates, places, self.value, seen.fade_at(candidates.ids[places]))


class Seen(NamedTuple):
    """The ids that count, ascending, with Σ of their occurrences' fades and the fade of the newest one (both 1 each without decay)."""

    ids: TokenIds
    counts: npt.NDArray[np.float64]
    fades: npt.NDArray[np.float64]

    def count_at(self, ids: TokenIds) -> npt.NDArray[np.float64]:
        return self.counts[np.searchsorted(self.ids, ids)]

    def fade_at(self, ids: TokenIds) -> npt.NDArray[np.float64]:
        return self.fades[np.searchsorted(self.ids, ids)]


def occurrences(stage: Penalty, context: Context) -> Seen:
    """What ``stage`` counts in the history; ids outside the row's vocabulary are not penalised."""
    history = context.history
    plain = stage.window is None and stage.ignore_prefix == 0
    seen = _from_counts(history, stage.scope) if plain else _from_window(history, stage)
    inside = (seen.ids >= 0) & (seen.ids < context.vocabulary) & (seen.counts > 0)
    return Seen(seen.ids[inside], seen.counts[inside], seen.fades[inside])


def _from_counts(history: History, scope: Scope) -> Seen:
    counts = history.counts
    number = {"all": counts.prompt + counts.output, "output": counts.output, "prompt": counts.prompt}[scope]
    order = np.argsort(counts.ids)
    return Seen(counts.ids[order], number[order].astype(np.float64), np.ones(order.size))


def _from_window(history: History, stage: Penalty) -> Seen:
    first, last = _scope_bounds(history, stage.scope, stage.ignore_prefix)
    reach = len(history) if stage.window is None else stage.window + (stage.decay or 0)
    first = max(first, len(history) - reach)
    tokens = history.tokens[first:last] if first < last else history.tokens[:0]
    distance = len(history) - np.arange(first, first + tokens.size)
    fade = np.ones(tokens.size)
    if stage.window is not None and stage.decay is not None:
        fade = np.clip(1 - (distance - min(stage.window, len(history))) / float(stage.decay), 0, 1)
    ids, newest, place = np.unique(tokens[::-1], return_index=True, return_inverse=True)
    counts = np.bincount(place, weights=fade[::-1], minlength=ids.size).astype(np.float64)
    return Seen(ids, counts, fade[::-1][newest])


def _scope_bounds(history: History, scope: Scope, ignore_prefix: int) -> tuple[int, int]:
    start = min(ignore_prefix, history.boundary)
    return {"all": (start, len(history)), "output": (history.boundary, len(history)), "prompt": (start, history.boundary)}[scope]


def _edited(candidates: Candidates, places: npt.NDArray[np.intp], values: npt.NDArray[np.float64]) -> Candidates:
    if places.size == 0:
        return candidates
    logits = candidates.logits.copy()
    logits[places] = values
    return candidates.replace(logits)


def _lowered(
    candidates: Candidates, places: npt.NDArray[np.intp], value: float, times: npt.NDArray[np.float64]
) -> Candidates:
    """logit − value · times; a masked token stays masked, whatever the value."""
    old = candidates.logits[places]
    with np.errstate(over="ignore", invalid="ignore"):
        return _edited(candidates, places, np.where(np.isneginf(old), old, old - value * times))


def _blend(old: npt.NDArray[np.float64], new: npt.NDArray[np.float64], fade: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """old · (1 − fade) + new · fade, without 0 · inf where a token is masked."""
    whole = (fade == 1) | np.isneginf(old)
    return np.where(whole, new, np.where(whole, 0, old) * (1 - fade) + np.where(whole, 0, new) * fade)
