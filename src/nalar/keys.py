"""Randomness as a value: a key names a point of a counter-based stream, and every draw is a function of its key.

The generator is Philox 4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).  Its key is the
64-bit seed, low word first; its counter is four 32-bit words:

    word 0   position                    output tokens before this one
    word 1   sequence                    0 … n − 1 of one request
    word 2   attempt · 2¹⁶ + row         attempt: grows with each rewind; row: place in a speculative step
    word 3   purpose · 2²⁸ + index       purpose: the table below; index: its meaning depends on the purpose

A uniform takes the first two output words, ``((w0 >> 5)·2²⁶ + (w1 >> 6)) / 2⁵³``: 53 bits, 0 included, 1 not.  Changing any of
this changes every user's tokens, so it bumps ``STREAM_VERSION``; golden tokens in the tests pin it.
"""

from __future__ import annotations

import secrets
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from nalar.checks import check_choice, check_integer
from nalar.errors import InvalidType, InvalidValue

__all__ = ["PURPOSES", "STREAM_VERSION", "Key", "Purpose", "check_key", "fresh_seed", "philox"]

STREAM_VERSION = 1

Purpose = Literal["draw", "accept", "recover", "draft", "coin", "noise"]
PURPOSES: dict[Purpose, int] = {"draw": 0, "accept": 1, "recover": 2, "draft": 3, "coin": 4, "noise": 5}

MASK = 0xFFFFFFFF
MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
WEYL = 0x9E3779B9, 0xBB67AE85

Words = npt.NDArray[np.uint64]  # 32-bit words, kept in 64 bits so that a product does not overflow


def fresh_seed() -> int:
    """A seed from the operating system's entropy, 0 ≤ seed < 2⁶⁴."""
    return secrets.randbits(64)


@dataclass(frozen=True, slots=True)
class Key:
    """Which random numbers a draw takes: ``Key(seed, sequence=0, position=None, attempt=0)``.

    ``seed`` is in [0, 2⁶⁴), ``sequence`` and ``position`` in [0, 2³²), ``attempt`` and ``row`` in [0, 2¹⁶).  ``position`` counts output
    tokens; None stands for the length of the history's output, and for 0 where there is no history.  ``attempt`` grows with
    each rewind: the same uniform again, after its outcome was seen, would be biased.  ``row`` and ``purpose`` are set by ``place``.

    | use | key |
    | --- | --- |
    | a plain draw, and ``follow`` | ``at(position + i)`` |
    | a rule's acceptance of draft token i, keyed by the step's start | ``place(i, "accept")`` |
    | the token recovered after i accepted ones, likewise | ``place(i, "recover")`` |
    | the bonus after k accepted ones, likewise; with k = 0 the plain draw | ``place(k, "draw")`` |
    | draft token i, likewise | ``draft(i)`` |
    | a stage's coin, under every rule | at the token's own position |

    >>> Key(seed=7, position=0).uniform()
    0.9545971285563127
    >>> Key(seed=7, position=0) == Key(seed=7, sequence=0, position=0, attempt=0)
    True
    """

    seed: int
    sequence: int = 0
    position: int | None = None
    attempt: int = 0
    _: KW_ONLY
    row: int = 0
    purpose: Purpose = "draw"

    def __post_init__(self) -> None:
        for name, bits in (("seed", 64), ("sequence", 32), ("position", 32), ("attempt", 16), ("row", 16)):
            value = getattr(self, name)
            if name != "position" or value is not None:
                object.__setattr__(self, name, check_integer(name, value, 0, 2**bits - 1))
        check_choice("purpose", self.purpose, tuple(PURPOSES))

    def at(self, position: int) -> Key:
        """This key at ``position``."""
        return replace(self, position=position)

    def draft(self, index: int) -> Key:
        """The key of draft token ``index`` of the speculative step that starts at ``position``.

        Keyed by the step's start, not by the token's own position: rules that look past a rejection would be biased.
        """
        return self.place(index, "draft")

    def place(self, row: int, purpose: Purpose) -> Key:
        """The key of ``purpose`` at place ``row`` of the speculative step that starts at ``position``: draft token, or tree node."""
        if self.position is None:
            raise InvalidValue(f"position must be the step's start when a key for {purpose!r} is made, got None")
        return replace(self, row=row, purpose=purpose)

    def uniform(self, purpose: Purpose | None = None, index: int = 0) -> float:
        """One uniform in [0, 1) of this key for ``purpose`` (the key's own when None)."""
        if purpose is not None:
            check_choice("purpose", purpose, tuple(PURPOSES))
        w0, w1, _, _ = philox(self._counter(purpose or self.purpose, index), self._words())
        return ((w0 >> 5) * 2**26 + (w1 >> 6)) / 2**53

    def coin(self, index: int) -> float:
        """The uniform of the stage at place ``index`` of its chain."""
        return self.uniform("coin", index)

    def noise(self, ids: npt.NDArray[np.integer[Any]]) -> npt.NDArray[np.float64]:
        """One uniform in (0, 1) for each token id in [0, 2²⁹), the same for an id whatever else is in ``ids``.

        Id t takes words 2(t mod 2) and 2(t mod 2) + 1 of block t // 2, plus 2⁻⁵⁴ so that it is never 0; the largest is
        held below 1, where that sum would round up.  A draft key's noise has the purpose "draft", so that it is no one else's.
        """
        purpose: Purpose = "noise" if self.purpose == "draw" else self.purpose
        if np.asarray(ids).dtype.kind not in "iu":
            raise InvalidType(f"ids must be token ids (integers), got {np.asarray(ids).dtype}")
        if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < 2**29:
            raise InvalidValue(f"ids must be in [0, 2**29), got {int(ids.min())} … {int(ids.max())}")
        tokens = np.asarray(ids).astype(np.uint64)
        position, sequence, third, fourth = self._counter(purpose, 0)
        blocks = philox_blocks((position, sequence, third), np.uint64(fourth) + (tokens >> np.uint64(1)), self._words())
        odd = (tokens & np.uint64(1)).astype(bool)
        high, low = np.where(odd, blocks[2], blocks[0]), np.where(odd, blocks[3], blocks[1])
        bits = (high >> np.uint64(5)) * np.uint64(2**26) + (low >> np.uint64(6))
        return np.minimum(bits / 2**53 + 2.0**-54, 1 - 2.0**-53)

    def _words(self) -> tuple[int, int]:
        return self.seed & MASK, self.seed >> 32

    def _counter(self, purpose: Purpose, index: int) -> tuple[int, int, int, int]:
        word = PURPOSES[purpose] << 28 | check_integer("index", index, 0, 2**28 - 1)
        return self.position or 0, self.sequence, self.attempt << 16 | self.row, word


def check_key(key: Any) -> Key:
    """A key."""
    if not isinstance(key, Key):
        raise InvalidType(f"key must be a nalar.Key, got {key!r}")
    return key


def philox(counter: tuple[int, int, int, int], key: tuple[int, int]) -> tuple[int, int, int, int]:
    """Philox 4x32-10: four 32-bit words from four counter words and two key words.

    >>> [f"{word:08x}" for word in philox((0, 0, 0, 0), (0, 0))]
    ['6627e8d5', 'e169c58d', 'bc57ac4c', '9b00dbd8']
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        left, right = MULTIPLIERS[0] * c0, MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (right >> 32) ^ c1 ^ k0, right & MASK, (left >> 32) ^ c3 ^ k1, left & MASK
        k0, k1 = (k0 + WEYL[0]) & MASK, (k1 + WEYL[1]) & MASK
    return c0, c1, c2, c3


def philox_blocks(first: tuple[int, int, int], fourth: Words, key: tuple[int, int]) -> tuple[Words, Words, Words, Words]:
    """``philox`` for many values of the fourth counter word at once."""
    c0, c1, c2 = (np.full(fourth.shape, word, np.uint64) for word in first)
    c3, mask, half = fourth, np.uint64(MASK), np.uint64(32)
    k0, k1 = key
    for _ in range(10):
        left, right = np.uint64(MULTIPLIERS[0]) * c0, np.uint64(MULTIPLIERS[1]) * c2
        c0, c1, c2, c3 = (right >> half) ^ c1 ^ np.uint64(k0), right & mask, (left >> half) ^ c3 ^ np.uint64(k1), left & mask
        k0, k1 = (k0 + WEYL[0]) & MASK, (k1 + WEYL[1]) & MASK
    return c0, c1, c2, c3
