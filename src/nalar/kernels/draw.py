"""The draw: the key's uniform against the cumulative weights, or noise for each candidate.

Philox 4x32-10 as in ``keys.py``, word for word.  A token is certain when the uniform lies farther from both ends of its interval
than all sums can err; otherwise the draw is left to a more exact path.
"""

from __future__ import annotations

import math

import numpy as np

from nalar.kernels.blocks import element, is_hidden
from nalar.kernels.compiled import inner
from nalar.kernels.cut import list_top, weigh
from nalar.kernels.edits import place_of
from nalar.kernels.exponential import exp64
from nalar.kernels.frame import (
    BLOCK,
    BLOCKS,
    BOUND,
    COUNT,
    DRAW,
    IDS,
    KEPT,
    LAST,
    LOGPROB,
    OK,
    POSITION,
    PURPOSE,
    RACE,
    SCALE,
    SEED,
    SEQUENCE,
    SIZE,
    STATE,
    SUM,
    SUMS,
    TABLE_VALUES,
    THIRD,
    TOKEN,
    UNSURE,
    VALUES,
    WEIGHTS,
    get,
    get_float,
    put,
    put_float,
)
from nalar.kernels.lanes import get64, get_int, load64, put64, store
from nalar.kernels.scan import LN2, exactness, scaled, slack

MASK, HALF = np.uint64(0xFFFFFFFF), np.uint64(32)
LEFT, RIGHT = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
WEYL0, WEYL1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
NOISE, DRAFT = np.uint64(5 << 28), np.uint64(3 << 28)
DRAW_PURPOSE = np.uint64(0)


@inner
def philox(c0, c1, c2, c3, seed):
    """Four 32-bit words, each in a uint64."""
    k0, k1 = seed & MASK, seed >> HALF
    for _ in range(10):
        left, right = LEFT * c0, RIGHT * c2
        c0, c1, c2, c3 = (right >> HALF) ^ c1 ^ k0, right & MASK, (left >> HALF) ^ c3 ^ k1, left & MASK
        k0, k1 = (k0 + WEYL0) & MASK, (k1 + WEYL1) & MASK
    return c0, c1, c2, c3


@inner
def join(high, low):
    """53 bits as a number in [0, 1)."""
    return (float(high >> np.uint64(5)) * 67108864.0 + float(low >> np.uint64(6))) / 9007199254740992.0


@inner
def word(f, place):
    return np.uint64(get(f, place))


@inner
def uniform(f):
    """The key's uniform for its purpose."""
    w0, w1, _, _ = philox(word(f, POSITION), word(f, SEQUENCE), word(f, THIRD), word(f, PURPOSE), word(f, SEED))
    return join(w0, w1)


@inner
def noise(f, i):
    """The key's uniform in (0, 1) for token id ``i``."""
    purpose = NOISE if word(f, PURPOSE) == DRAW_PURPOSE else word(f, PURPOSE)
    w0, w1, w2, w3 = philox(word(f, POSITION), word(f, SEQUENCE), word(f, THIRD), purpose + np.uint64(i >> 1), word(f, SEED))
    u = join(w2, w3) if i & 1 else join(w0, w1)
    return min(u + 2.0**-54, 1 - 2.0**-53)


@inner
def chosen(f, token, logprob):
    put(f, TOKEN, token)
    put_float(f, LOGPROB, min(logprob, 0.0))
    return OK


# --- from a list -------------------------------------------------------------------------------------------------------


@inner
def draw_list(f):
    n = get(f, COUNT)
    ids, values = get(f, IDS), get(f, VALUES)
    if n == 1:
        return chosen(f, np.int64(get_int(ids, 0)), 0.0)
    mass, top = weigh(f, n), list_top(f)
    place = race_list(f, n, mass) if get(f, DRAW) == RACE else inverse_list(f, n, mass)
    if place < 0:
        return UNSURE
    return chosen(f, np.int64(get_int(ids, place)), get64(values, place) - top - math.log(mass))


@inner
def inverse_list(f, n, mass):
    """The first place at which the cumulative weight exceeds u · total; −1 if that hangs on rounding."""
    weights, target, margin = get(f, WEIGHTS), uniform(f) * mass, exactness(f, n) * mass
    before = 0.0
    for j in range(n):
        after = before + get64(weights, j)
        if after > target:
            low_sure, high_sure = before == 0 or target - before > margin, after == mass or after - target > margin
            return j if low_sure and high_sure else -1
        before = after
    return -1


@inner
def race_list(f, n, mass):
    """The place with the largest log p + Gumbel noise, the lowest id among equals; −1 if two are equal up to rounding."""
    ids, values, top, best, second, place = get(f, IDS), get(f, VALUES), list_top(f), -math.inf, -math.inf, -1
    for j in range(n):
        value = get64(values, j) - top
        if value > -700.0:
            value += -math.log(-math.log(noise(f, np.int64(get_int(ids, j)))))
            if value > best:
                best, second, place = value, best, j
            elif value > second:
                second = value
    return place if best - second > exactness(f, 1) * (abs(best) + abs(math.log(mass)) + 40) else -1


# --- from the whole row ------------------------------------------------------------------------------------------------


@inner
def logit(f, i):
    """The logit of id ``i`` on the dense row: −inf if hidden, the table's if edited."""
    if is_hidden(f, i):
        place = place_of(f, i)
        return get64(get(f, TABLE_VALUES), place) if place >= 0 else -math.inf
    return scaled(f, element(f, i))


@inner
def stays(f, i, value):
    """Whether the row's candidate is still there: always, unless a threshold was set."""
    if get(f, STATE) != KEPT:
        return True
    bound = get_float(f, BOUND)
    return value > bound or (value == bound and i <= get(f, LAST))


@inner
def draw_row(f):
    """The inverse of the cumulative distribution over blocks, then within one."""
    mass = get_float(f, SUM)
    target, margin, sums, before = uniform(f) * mass, slack(f) * mass, get(f, SUMS), 0.0
    for b in range(get(f, BLOCKS)):
        after = before + get64(sums, b)
        if after > target:
            return draw_block(f, b, before, target, margin)
        before = after
    return UNSURE


@inner
def draw_block(f, b, before, target, margin):
    weights, first, shift = get(f, WEIGHTS), b * BLOCK, get(f, SCALE) * LN2
    for j in range(BLOCK):
        i = first + j
        value = logit(f, i) if i < get(f, SIZE) else -math.inf
        put64(weights, j, value - shift if stays(f, i, value) else -math.inf)
    for j in range(0, BLOCK, 16):
        store(weights, j, exp64(load64(weights, j)))
    for j in range(BLOCK):
        after = before + get64(weights, j)
        if after > target:
            i = first + j
            if (before == 0 or target - before > margin) and after - target > margin:
                return chosen(f, i, logit(f, i) - shift - math.log(get_float(f, SUM)))
            return UNSURE
        before = after
    return UNSURE
