"""Rows, chains and histories for the kernels' tests, built to sit on boundaries and ties; and the comparison with ``apply``."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

import nalar
from nalar import kernels, stages
from nalar.rows import as_row

SIZES = (1, 2, 3, 5, 16, 17, 40, 100, 255, 256, 257, 300, 511, 513, 1000, 1024, 1025, 2000, 3001, 5000, 12_800, 20_001, 33_000, 70_000)
SMALL = tuple(size for size in SIZES if size <= 5000)
Row = npt.NDArray[Any]


@dataclass
class Case:
    """One row with its chain, history and key."""

    row: Row
    chain: nalar.Chain
    history: nalar.History
    key: nalar.Key
    draw: Any

    def __repr__(self) -> str:
        return f"{self.chain} on {self.row.dtype}{self.row.shape}, {self.key}, {self.draw}"


def make_row(random: np.random.Generator, size: int) -> Row:
    """Logits of every kind that a model, a grammar or an adversary can hand over."""
    kind = random.integers(0, 16)
    normal = random.normal(0, random.choice([0.05, 0.5, 2.2, 5.0]), size)
    if kind == 0:
        row = np.full(size, random.choice([0.0, 1.5, -3.0]))
    elif kind == 1:
        row = random.choice([-1.0, 0.0, 2.0], size)
    elif kind == 2:
        row = random.choice([-50.0, 50.0], size)
    elif kind == 3:
        row = np.where(random.random(size) < 0.5, -np.inf, normal)
    elif kind == 4:
        row = np.round(normal * 4) / 4
    elif kind == 5:
        row = np.sort(normal)
    elif kind == 6:
        row = np.sort(normal)[::-1]
    elif kind == 7:
        row = normal + random.choice([1e4, -1e4, 300.0])
    elif kind == 8:
        row = np.log(2.0 ** -random.integers(0, 12, size).astype(float))
    elif kind == 9:
        row = random.standard_cauchy(size)
    elif kind == 10:
        row = np.where(random.random(size) < 0.9, random.choice([-np.inf, -1e9, -3.4e38]), normal)
    elif kind == 11:
        row = np.where(random.random(size) < 0.02, random.choice([0.0, -0.0, 5.0], size), random.choice([-0.0, 0.0, -1.0], size))
    elif kind == 12:
        row = -np.arange(size) * random.choice([1e-3, 0.1, 1.0])
    else:
        row = normal.copy()
        row[random.integers(0, size, max(1, size // 3000))] += random.uniform(4, 12)
    with np.errstate(over="ignore"):
        return row.astype(random.choice([np.float32] * 5 + [np.float64, np.float16]))


def dress(random: np.random.Generator, row: Row) -> Any:
    """The same row strided, reversed, read-only, or as bfloat16."""
    kind = random.integers(0, 8)
    if kind == 0:
        wide = np.zeros((row.size, 3), row.dtype)
        wide[:, 1] = row
        return wide[:, 1]
    if kind == 1:
        return row[::-1].copy()[::-1]
    if kind == 2:
        row.flags.writeable = False
    if kind == 3 and row.dtype == np.float32:
        import ml_dtypes

        return row.astype(ml_dtypes.bfloat16)
    return row


@dataclass(frozen=True)
class Odd(stages.Stage):
    """A stage of a user's own: halves the logits of odd ids and looks at the original mass."""

    def apply(self, candidates: Any, context: Any) -> Any:
        if candidates.total() != candidates.total():
            raise AssertionError
        return candidates.replace(np.where(candidates.ids % 2 == 1, candidates.logits / 2, candidates.logits))


def make_stage(random: np.random.Generator, size: int) -> stages.Stage:
    kind = random.integers(0, 15)
    ids = random.integers(0, size, random.integers(1, 6)).tolist()
    number = float(random.choice([0.1, 0.7, 1.0, 1.3, 2.0, random.uniform(0.01, 3)]))
    if kind <= 1:
        return stages.Temperature(float(random.choice([0.5, 0.8, 1.0, 2.0, 0.1, 1e-6, 50.0, 0.0] if kind else [0.7, 0.8, 1.5])))
    if kind <= 3:
        return stages.TopK(int(random.choice([0, 1, 2, 5, 40, 64, 200, 1000, size // 2, size - 1, size, size + 3])))
    if kind <= 6:
        return stages.TopP(float(random.choice([0.0, 1e-6, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.999, 1.0, random.uniform(0, 1)])))
    if kind == 7:
        return stages.MinP(float(random.choice([0.0, 1e-9, 0.05, 0.25, 0.5, 1.0, random.uniform(0, 1)])))
    if kind == 8:
        return stages.Bias({token: float(random.choice([-np.inf, 100.0, 5.0, -2.0, 0.1])) for token in ids})
    if kind == 9:
        return stages.Ban(ids)
    if kind == 10:
        allowed = random.integers(0, size, random.integers(1, 60)).tolist()
        return stages.Allow(allowed) if random.random() < 0.5 else stages.MinTokens(3, ids)
    if kind == 14:
        p = float(random.choice([0.3, 0.9]))
        return [Odd(), stages.TopK(5, ties="all"), stages.TopP(p, mass="original"), stages.MinP(p, strict=True)][random.integers(0, 4)]
    window = {} if random.random() < 0.6 else {"window": int(random.integers(0, 20)), "decay": random.choice([None, 3]), "ignore_prefix": 1}
    if window and window["decay"] is not None:
        window["decay"] = 3
    scope = random.choice(["all", "output", "prompt"])
    return [stages.Repetition, stages.Frequency, stages.Presence][kind - 11](number, scope=str(scope), **window)


def make_case(random: np.random.Generator, sizes: tuple[int, ...] = SMALL) -> Case:
    size = int(random.choice(sizes))
    row = dress(random, make_row(random, size))
    chain = nalar.Chain([make_stage(random, size) for _ in range(random.integers(0, 5))])
    long = 1000 if random.random() < 0.1 else 12
    prompt, output = random.integers(-1, size + 2, random.integers(0, long)), random.integers(0, size, random.integers(0, long))
    history = nalar.History(prompt, output)
    key = nalar.Key(int(random.integers(0, 2**63)), int(random.integers(0, 5)), None, int(random.integers(0, 3)))
    return Case(row, chain, history, key, "race" if random.random() < 0.3 else "inverse")


def outcome(case: Case, on: bool) -> tuple[Any, ...]:
    """(token, law, log-probability), or (error's type, message, stage): by the kernels, or by ``apply``."""
    with kernels.use(on):
        try:
            key = case.key.at(case.history.position)
            law = case.chain.distribution(case.row, case.history)
            drawn = nalar.sample(case.row, case.chain, case.key, case.history, draw=case.draw)
            again = law.draw(key, case.draw)
            probability = law.prob(drawn.token)
            return drawn.token, again, law.ids, law.probs, drawn.logprob, probability
        except nalar.NalarError as error:
            return type(error), str(error), getattr(error, "stage", None)


def check(case: Case) -> None:
    """Kernels and ``apply`` agree, and neither wrote to the row."""
    before = np.array(as_row(case.row), copy=True).tobytes()
    fast, slow = outcome(case, True), outcome(case, False)
    assert np.array(as_row(case.row), copy=True).tobytes() == before, f"the row was written: {case}"
    if isinstance(slow[0], type):
        assert fast == slow, f"{case}\n{fast}\n{slow}"
        return
    assert not isinstance(fast[0], type), f"{case}\n{fast}"
    assert fast[:2] == slow[:2], f"token: {case}\n{fast[:2]} {slow[:2]}"
    assert np.array_equal(fast[2], slow[2]), f"support: {case}\n{fast[2].size} {slow[2].size}"
    np.testing.assert_allclose(fast[3], slow[3], rtol=1e-9, err_msg=repr(case))
    whole = case.chain.candidates(case.row, case.history).ids.size == len(case.row)  # nothing was removed
    near = 1e-6 * max(1.0, abs(slow[4])) if whole else 1e-9 * max(1.0, abs(slow[4]))
    assert abs(fast[4] - slow[4]) <= near, f"logprob: {case}\n{fast[4]} {slow[4]}"
    assert math.isclose(fast[5], slow[5], rel_tol=2e-6 * max(1.0, abs(slow[4]))), f"prob: {case}\n{fast[5]} {slow[5]}"
