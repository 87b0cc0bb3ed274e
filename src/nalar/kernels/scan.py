"""One pass over a row: each block's maximum, or its maximum and its sum of weights together.

Weights are 2^(x·s − c), s = log₂(e) / (the temperatures' product): the same for all of a row up to the factor 2^c, and c, an
integer, is chosen from the first block and raised when a later block would leave single precision's range; sums made before are
then multiplied by a power of two, which is exact.

Error of a single-precision sum.  A weight errs by 2.9e-7 (``exponential``).  A block is 16 lanes of four accumulators that each take
four weights: 3 additions, 3·2⁻²⁴; everything after that is double.  Together ≤ 4.7e-7 of the sum, all terms being positive.
s held in two float32 parts adds 2⁻⁴⁸·|x·s| ≤ 3e-10 for |x·s| ≤ 2¹⁶; rows beyond that go to double at once.
``SLACK32`` = 6e-7 leaves a margin; the worst of 3,000 random rows was 2.1e-7.

Error of a double sum.  A weight errs by 1.9e-14 + 2·2⁻⁵³·|x·s|, n additions by n·2⁻⁵³, and so does the sum of ``apply`` it is
compared with: 1e-12 + 2⁻⁵²·n + 1e-15·|c|.
"""

from __future__ import annotations

import math

import numpy as np

from nalar.kernels.blocks import ahead, block, block64, fill
from nalar.kernels.compiled import entry, inner
from nalar.kernels.exponential import power32, power64
from nalar.kernels.frame import (
    BLOCK,
    BLOCKS,
    BROKEN,
    COUNTED,
    DIRECT,
    DIVISOR,
    DIVISORS,
    EDITED,
    FLOAT64,
    FORCE,
    HIDDEN_TOPS,
    KIND,
    MAXIMA,
    OK,
    ROW,
    ROW_TOP,
    SCALE,
    SCANNED,
    SIZE,
    SUM,
    SUMS,
    TABLE,
    TABLE_IDS,
    TABLE_VALUES,
    TOP,
    TOUCHED,
    UNSURE,
    get,
    get_float,
    put,
    put_float,
)
from nalar.kernels.lanes import add, get32, get64, get_byte, get_int, greatest, lanes, load, load64, maximum, put32, put64, total, widen

LOG2E = math.log2(math.e)
LN2 = math.log(2)
SLACK32 = 6e-7
RANGE = 2.0**16  # of |x·s|: the second part of s moves f by at most 2⁻⁸, within which the polynomial's bound holds
FARTHEST = 2.0**27  # of |top·s| in double, so that 2⁻⁵³ of it is below 2e-8: rows beyond are left to ``apply``
ROOM = 100  # powers of two that a block may exceed the scale by, of float32's 127


@inner
def scaled(f, x):
    """A logit as the temperatures so far leave it, rounded as ``apply`` rounds."""
    for i in range(get(f, DIVISORS)):
        x = x / get_float(f, DIVISOR + i)
    return x


@inner
def rate(f):
    """s: log₂(e) divided by the temperatures' product."""
    product = 1.0
    for i in range(get(f, DIVISORS)):
        product *= get_float(f, DIVISOR + i)
    return LOG2E / product


@inner
def slack(f):
    """Relative error bound of the dense row's sum; beyond any comparison where a test forces a fall-back."""
    forced = get_float(f, FORCE)
    if get(f, SCANNED) == 2:
        return 1e9 if forced >= 1 else SLACK32
    return 1e9 if forced >= 2 else exactness(f, get(f, SIZE)) + 1e-15 * abs(get(f, SCALE))


@inner
def exactness(f, n):
    """Relative error bound of a double-precision sum of n weights, here and in ``apply``."""
    return 1e9 if get_float(f, FORCE) >= 2 else 1e-12 + n * 2.0**-52


@inner
def block_maximum(a):
    """The largest of 256 float32; NaN if one of them is."""
    m0, m1, m2, m3 = load(a, 0), load(a, 16), load(a, 32), load(a, 48)
    for j in range(64, BLOCK, 64):
        m0, m1 = maximum(m0, load(a, j)), maximum(m1, load(a, j + 16))
        m2, m3 = maximum(m2, load(a, j + 32)), maximum(m3, load(a, j + 48))
    return greatest(maximum(maximum(m0, m1), maximum(m2, m3)))


@inner
def block_both(a, high, low, floor, c):
    """The maximum of 256 float32 and the sum of their weights."""
    x0, x1, x2, x3 = load(a, 0), load(a, 16), load(a, 32), load(a, 48)
    m0, m1, m2, m3 = x0, x1, x2, x3
    s0, s1 = power32(x0, high, low, floor, c), power32(x1, high, low, floor, c)
    s2, s3 = power32(x2, high, low, floor, c), power32(x3, high, low, floor, c)
    for j in range(64, BLOCK, 64):
        x0, x1, x2, x3 = load(a, j), load(a, j + 16), load(a, j + 32), load(a, j + 48)
        m0, m1, m2, m3 = maximum(m0, x0), maximum(m1, x1), maximum(m2, x2), maximum(m3, x3)
        s0, s1 = add(s0, power32(x0, high, low, floor, c)), add(s1, power32(x1, high, low, floor, c))
        s2, s3 = add(s2, power32(x2, high, low, floor, c)), add(s3, power32(x3, high, low, floor, c))
    most = greatest(maximum(maximum(m0, m1), maximum(m2, m3)))
    return most, total(add(add(widen(s0), widen(s1)), add(widen(s2), widen(s3))))


@inner
def table_maximum(f):
    most, values = -math.inf, get(f, TABLE_VALUES)
    for j in range(get(f, TABLE)):
        most = max(most, get64(values, j))
    return most


@inner
def close_maxima(f):
    """The maximum of all blocks, and of row and edits together; BROKEN where they define no distribution."""
    maxima, blocks = get(f, MAXIMA), get(f, BLOCKS)
    for i in range(16):
        put32(maxima, blocks + i, -math.inf)
    most = load(maxima, 0)
    for b in range(16, blocks, 16):
        most = maximum(most, load(maxima, b))
    top = float(greatest(most))
    put_float(f, ROW_TOP, top)
    if not top < math.inf:
        return BROKEN
    top = max(scaled(f, top), table_maximum(f))
    put_float(f, TOP, top)
    return OK if -math.inf < top < math.inf else BROKEN


@inner
def shown_maximum(f, b):
    """The maximum of block ``b`` without its hidden elements: the plain maximum, unless that is one of them."""
    if b < get(f, DIRECT) and get(f, EDITED) and get_byte(get(f, TOUCHED), b):
        most = block_maximum(get(f, ROW) + b * BLOCK * 4)
        return most if most > get32(get(f, HIDDEN_TOPS), b) else block_maximum(fill(f, b))
    return block_maximum(block(f, b))


@inner
def maxima(f):
    """Each block's maximum."""
    out = get(f, MAXIMA)
    for b in range(get(f, BLOCKS)):
        ahead(f, b)
        put32(out, b, shown_maximum(f, b))
    put(f, SCANNED, 1)
    return close_maxima(f)


@inner
def rescale(f, blocks, steps):
    """Multiply the first sums by 2^−steps."""
    sums, factor = get(f, SUMS), 2.0 ** -float(min(steps, 1000))
    for b in range(blocks):
        put64(sums, b, get64(sums, b) * factor)


@inner
def first_scale(f, s):
    """An exponent to measure weights from: the edits' largest, else the first finite block's; UNSURE if out of range."""
    top = table_maximum(f) * LOG2E
    b, blocks = 0, get(f, BLOCKS)
    while top == -math.inf and b < blocks:
        top = float(block_maximum(block(f, b))) * s
        b += 1
    return math.floor(top) if -RANGE < top < RANGE else math.nan


@inner
def sums(f):
    """Each block's maximum and sum of weights in single precision; UNSURE for float64 rows and for logits out of range."""
    s = rate(f)
    first = first_scale(f, s)
    if get(f, KIND) == FLOAT64 or first != first:
        return UNSURE
    c, high = np.int32(first), np.float32(s)
    low, floor = np.float32(s - float(high)), np.float32((first - 120) / s)
    out_maxima, out_sums = get(f, MAXIMA), get(f, SUMS)
    for b in range(get(f, BLOCKS)):
        ahead(f, b)
        a = block(f, b)
        most, mass = block_both(a, high, low, floor, c)
        over = float(most) * s - float(c)
        if over > ROOM:
            if not float(most) * s < RANGE:
                return UNSURE
            rescale(f, b, math.floor(over))
            c = np.int32(float(c) + math.floor(over))
            floor = np.float32((float(c) - 120) / s)
            most, mass = block_both(a, high, low, floor, c)
        put32(out_maxima, b, most)
        put64(out_sums, b, mass)
    put(f, SCANNED, 2)
    return close_sums(f, np.int64(c))


@inner
def close_sums(f, c):
    """Add the edited ids to their blocks and all blocks up."""
    put(f, SCALE, c)
    ids, values, out = get(f, TABLE_IDS), get(f, TABLE_VALUES), get(f, SUMS)
    for j in range(get(f, TABLE)):
        b = np.int64(get_int(ids, j)) // BLOCK
        put64(out, b, get64(out, b) + math.exp(get64(values, j) - c * LN2))
    mass = 0.0
    for b in range(get(f, BLOCKS)):
        mass += get64(out, b)
    put_float(f, SUM, mass)
    return close_maxima(f)


@entry
def sums64(f):
    """The same sums in double precision."""
    put_float(f, COUNTED + 1, get_float(f, COUNTED + 1) + 1)
    status = maxima(f)
    if status != OK:
        return status
    s = rate(f)
    top = get_float(f, TOP) * LOG2E
    if not abs(top) < FARTHEST:
        return BROKEN
    c = np.int64(math.floor(top))
    floor = (float(c) - 900) / s
    out, double = get(f, SUMS), get(f, KIND) == FLOAT64
    for b in range(get(f, BLOCKS)):
        ahead(f, b)
        mass = lanes(0.0)
        if double:
            a = block64(f, b)
            for j in range(0, BLOCK, 16):
                mass = add(mass, power64(load64(a, j), s, floor, c))
        else:
            a = block(f, b)
            for j in range(0, BLOCK, 16):
                mass = add(mass, power64(widen(load(a, j)), s, floor, c))
        put64(out, b, total(mass))
    put(f, SCANNED, 3)
    return close_sums(f, c)
