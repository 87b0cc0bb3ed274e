"""The stages once more, slow and in plain Python, written from the formulas of the docs and from nothing in the package.

Candidates are a list of (id, logit).  Sums are compensated or by ``math.fsum``.  Where a comparison decides membership and its two
sides lie within 1e-12 of each other, either answer is right (an ``exp`` rounds): then ``Ambiguous`` is raised, unless every weight
is a binary fraction, for those sums are exact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest

Items = list[tuple[int, float]]

CLOSE = 1e-12


class Ambiguous(Exception):
    """Two sides of a comparison are too close for anyone to say."""


class Emptied(Exception):
    """No token is left."""


def softmax(items: Items) -> dict[int, float]:
    """exp(logit − max) / Σ exp(logit − max); a token whose quotient underflows is absent."""
    top = max(logit for _, logit in items)
    weights = {token: math.exp(logit - top) for token, logit in items}
    total = math.fsum(weights.values())
    return {token: weight / total for token, weight in weights.items() if weight / total > 0}


def law(stages: Sequence[Any], row: Sequence[float], prompt: Sequence[int] = (), output: Sequence[int] = ()) -> dict[int, float]:
    """The law of a chain of built-in stages, read from their fields."""
    items = [(token, float(logit)) for token, logit in enumerate(row)]
    whole: Items | None = items  # as they were when a logit last changed: the original mass
    for stage in stages:
        name = type(stage).__name__
        if name in TRUNCATIONS:
            items = TRUNCATIONS[name](items, whole, stage)
        else:
            changed = EDITS[name](items, stage, list(prompt), list(output))
            if not _neutral(stage, len(output)):
                # A stage that asks for a change and makes none, by luck: whether it renews the original mass is open.
                whole = changed if changed != items or whole == items else None
            items = changed
        if all(logit == -math.inf for _, logit in items):
            raise Emptied(name)
    return softmax(items)


def top_k(items: Items, whole: Items | None, stage: Any) -> Items:
    del whole
    if stage.k == 0 or stage.k >= len(items):
        return items
    kept = _ranked(items)[: stage.k]
    return _with_ties(items, kept, stage.ties)


def top_p(items: Items, whole: Items | None, stage: Any) -> Items:
    if stage.p >= 1:
        return items
    ranked = _ranked(items)
    top = ranked[0][1]
    measured = whole if stage.mass == "original" else items
    if measured is None:
        raise Ambiguous
    exact = all(_is_binary(math.exp(logit - top)) for _, logit in measured)
    target = stage.p * math.fsum(math.exp(logit - top) for _, logit in measured)

    def reaches(mass: float) -> bool:
        if mass > 0 and not exact and abs(mass - target) <= CLOSE * target:
            raise Ambiguous
        return mass >= target if stage.at_equality == "stop" else mass > target

    kept: Items = []
    sums = Compensated()
    for token, logit in ranked:
        if reaches(sums.value):
            break
        sums.add(math.exp(logit - top))
        if not stage.crossing and reaches(sums.value):
            break
        kept.append((token, logit))
    return _with_ties(items, kept or ranked[:1], stage.ties)


def min_p(items: Items, whole: Items | None, stage: Any) -> Items:
    del whole
    if stage.p == 0:
        return items
    first, top = _ranked(items)[0]
    kept = []
    for token, logit in items:
        weight = math.exp(logit - top)
        if weight != stage.p and abs(weight - stage.p) <= CLOSE * stage.p:
            raise Ambiguous
        if weight > stage.p or (weight == stage.p and not stage.strict) or token == first:
            kept.append((token, logit))
    return kept


def temperature(items: Items, stage: Any, prompt: list[int], output: list[int]) -> Items:
    del prompt, output
    first, top = _ranked(items)[0]
    if stage.value == 0:
        return [(token, 0.0 if token == first else -math.inf) for token, _ in items]
    if math.isinf(top / stage.value):
        return [(token, 0.0 if logit == top else -math.inf) for token, logit in items]
    return [(token, logit / stage.value) for token, logit in items]


def repetition(items: Items, stage: Any, prompt: list[int], output: list[int]) -> Items:
    seen = occurrences(stage, prompt, output)
    changed = []
    for token, logit in items:
        fade = seen.get(token, [0.0])[-1]
        penalised = logit / stage.value if logit > 0 else logit * stage.value
        partly = logit * (1 - fade) + penalised * fade if math.isfinite(logit) and fade < 1 else penalised
        changed.append((token, partly if fade > 0 else logit))
    return changed


def frequency(items: Items, stage: Any, prompt: list[int], output: list[int]) -> Items:
    seen = occurrences(stage, prompt, output)
    return [(token, logit - stage.value * math.fsum(seen[token]) if token in seen else logit) for token, logit in items]


def presence(items: Items, stage: Any, prompt: list[int], output: list[int]) -> Items:
    seen = occurrences(stage, prompt, output)
    return [(token, logit - stage.value * seen[token][-1] if token in seen else logit) for token, logit in items]


def occurrences(stage: Any, prompt: list[int], output: list[int]) -> dict[int, list[float]]:
    """For each id the fades of its occurrences, oldest first; an occurrence that faded to 0 is none."""
    tokens = prompt + output
    seen: dict[int, list[float]] = {}
    for place, token in enumerate(tokens):
        in_prompt = place < len(prompt)
        if in_prompt and (stage.scope == "output" or place < stage.ignore_prefix):
            continue
        if not in_prompt and stage.scope == "prompt":
            continue
        fade = _fade(len(tokens) - place, stage.window, stage.decay)
        if fade > 0:
            seen.setdefault(token, []).append(fade)
    return seen


def bias(items: Items, stage: Any, prompt: list[int], output: list[int]) -> Items:
    del prompt, output
    values = dict(stage.values)
    return [(token, logit + values.get(token, 0.0)) for token, logit in items]


def allow(items: Items, stage: Any, prompt: list[int], output: list[int]) -> Items:
    del prompt, output
    return [(token, logit if token in set(stage.ids) else -math.inf) for token, logit in items]


def ban(items: Items, stage: Any, prompt: list[int], output: list[int]) -> Items:
    del prompt, output
    return [(token, -math.inf if token in set(stage.ids) else logit) for token, logit in items]


def min_tokens(items: Items, stage: Any, prompt: list[int], output: list[int]) -> Items:
    del prompt
    return [(token, -math.inf if token in set(stage.ends) and len(output) < stage.n else logit) for token, logit in items]


TRUNCATIONS: dict[str, Any] = {"TopK": top_k, "TopP": top_p, "MinP": min_p}
EDITS: dict[str, Any] = {
    "Temperature": temperature, "Repetition": repetition, "Frequency": frequency, "Presence": presence,
    "Bias": bias, "Allow": allow, "Ban": ban, "MinTokens": min_tokens,
}  # fmt: skip


def assert_law(law: Any, expected: dict[int, float]) -> None:
    """Same tokens and probabilities within 1e-12 relative; at the edge of underflow a token may be in or out."""
    assert {token for token, prob in expected.items() if prob > 1e-300} <= set(law.ids.tolist())
    for token, prob in zip(law.ids.tolist(), law.probs.tolist(), strict=True):
        assert prob == pytest.approx(expected.get(token, 0.0), rel=1e-11, abs=1e-300), token


class Compensated:
    """A running sum with its rounding error carried along (Neumaier 1974)."""

    def __init__(self) -> None:
        self.sum = self.error = 0.0

    def add(self, term: float) -> None:
        total = self.sum + term
        big, small = max(self.sum, term), min(self.sum, term)  # terms are ≥ 0
        self.error += (big - total) + small
        self.sum = total

    @property
    def value(self) -> float:
        return self.sum + self.error


def _ranked(items: Items) -> Items:
    """Largest first, the lower id first among equals."""
    return sorted(items, key=lambda item: (-item[1], item[0]))


def _with_ties(items: Items, kept: Items, ties: str) -> Items:
    tokens, last = {token for token, _ in kept}, kept[-1][1]
    return [(token, logit) for token, logit in items if token in tokens or (ties == "all" and logit == last)]


def _fade(distance: int, window: int | None, decay: int | None) -> float:
    if window is None or distance <= window:
        return 1.0
    return 0.0 if decay is None else max(0.0, 1 - (distance - window) / decay)


def _neutral(stage: Any, position: int) -> bool:
    match type(stage).__name__:
        case "Temperature" | "Repetition":
            return bool(stage.value == 1)
        case "Frequency" | "Presence":
            return bool(stage.value == 0)
        case "Bias":
            return not stage.values
        case "Ban":
            return not stage.ids
        case "MinTokens":
            return not stage.ends or position >= stage.n
        case _:
            return False


def _is_binary(weight: float) -> bool:
    """Whether sums of a few hundred such weights are exact."""
    return (weight * 2**30).is_integer()
