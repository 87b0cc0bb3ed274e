"""Selection without sorting: the k-th largest, and the value at which a cumulative weight passes a target.

Both are quickselect.  ``nucleus`` carries the mass of what it has put aside as larger, so that it never needs an order; equal values
are one group, and how many of a group stay is a division, not a walk.
"""

from __future__ import annotations

import math

import numpy as np

from nalar.kernels.compiled import inner
from nalar.kernels.frame import BOUND, BUFFER64, LARGE, LAST, MAXIMA, OK, SPARE, UNSURE, WEIGHTS, get, put, put_float
from nalar.kernels.lanes import at_least, count_bits, get64, load, put64

SHORT = 16  # sorted by insertion
MANY = 256  # candidates from which bins pay
LOWEST = np.float32(-3.4028235e38)  # below it there is only −inf

@inner
def image(x):
    """An integer that orders as the float32 does (−0 just below 0)."""
    bits = np.int64(np.float32(x).view(np.int32))
    return bits if bits >= 0 else np.int64(-2147483648) - bits - 1


@inner
def number(i):
    """The float32 of an image."""
    bits = i if i >= 0 else np.int64(-2147483648) - i - 1
    return np.int32(bits).view(np.float32)


@inner
def count_at_least(address, n, bound):
    """How many of ``n`` float32, padded with −inf to whole vectors, are >= ``bound`` (> −inf)."""
    found = 0
    for i in range(0, n, 16):
        found += count_bits(at_least(load(address, i), bound))
    return found


@inner
def bound_for(f, blocks, k, top):
    """A float32 that at least ``k`` block maxima reach, and not many more; ``LOWEST`` if fewer than k are finite.

    Bisection of the floats' integer images: no midpoint rounds, ties end it, and −inf is never met.
    """
    address = get(f, MAXIMA)
    low, high = image(LOWEST), image(top) + 1  # at least k reach low, fewer reach high
    if count_at_least(address, blocks, LOWEST) < k:
        return LOWEST
    near = max(image(top * np.float32(0.5)) if top > 0 else image(top * np.float32(2.0)), low)
    if count_at_least(address, blocks, number(near)) >= k:
        low = near
    else:
        high = near
    while high - low > 1:
        middle = (low + high) // 2
        found = count_at_least(address, blocks, number(middle))
        if found >= k:
            low = middle
            if found <= k + k // 4 + 2:
                break
        else:
            high = middle
    return number(low)


@inner
def kth_largest(address, n, k):
    """The k-th largest of ``n`` float64, 1 ≤ k ≤ n, reordering them (Hoare's selection, median of three)."""
    low, high, place = 0, n - 1, k - 1
    while low < high:
        a, b, c = get64(address, low), get64(address, (low + high) // 2), get64(address, high)
        pivot = max(min(a, b), min(max(a, b), c))
        i, j = low, high
        while i <= j:
            while get64(address, i) > pivot:
                i += 1
            while get64(address, j) < pivot:
                j -= 1
            if i <= j:
                swapped = get64(address, i)
                put64(address, i, get64(address, j))
                put64(address, j, swapped)
                i += 1
                j -= 1
        if place <= j:
            high = j
        elif place >= i:
            low = i
        else:
            break
    return get64(address, place)


@inner
def swap(values, weights, i, j):
    v, w = get64(values, i), get64(weights, i)
    put64(values, i, get64(values, j))
    put64(weights, i, get64(weights, j))
    put64(values, j, v)
    put64(weights, j, w)


@inner
def sort_down(values, weights, low, high):
    """Insertion sort of places ``low`` … ``high − 1``, largest value first."""
    for i in range(low + 1, high):
        v, w = get64(values, i), get64(weights, i)
        j = i - 1
        while j >= low and get64(values, j) < v:
            put64(values, j + 1, get64(values, j))
            put64(weights, j + 1, get64(weights, j))
            j -= 1
        put64(values, j + 1, v)
        put64(weights, j + 1, w)


@inner
def share(f, value, above, weight, count, target, margin):
    """Of ``count`` equal candidates above which lies ``above``: how many stay while the weight before one is < ``target``."""
    kept = min(max(math.ceil((target - above) / weight), 1.0), float(count))
    if abs(above + kept * weight - target) <= margin or (kept > 1 and abs(above + (kept - 1) * weight - target) <= margin):
        return UNSURE
    put_float(f, BOUND, value)
    put(f, LAST, np.int64(kept))
    return OK


@inner
def nucleus(f, n, above, target, margin):
    """Where the cumulative weight, largest value first, passes ``target``: BOUND, and in LAST how many equal to it stay.

    ``above`` is the weight of larger candidates that are not in SPARE (values) and WEIGHTS.  UNSURE within ``margin`` of any
    comparison that decides; LARGE if the target is not reached.
    """
    values, weights = get(f, SPARE), get(f, WEIGHTS)
    low, high = 0, n
    while high - low > SHORT:
        a, b, c = get64(values, low), get64(values, (low + high) // 2), get64(values, high - 1)
        pivot = max(min(a, b), min(max(a, b), c))
        i, j, end = low, low, high
        greater = equal = 0.0
        while j < end:
            v = get64(values, j)
            if v > pivot:
                greater += get64(weights, j)
                swap(values, weights, i, j)
                i += 1
                j += 1
            elif v < pivot:
                end -= 1
                swap(values, weights, j, end)
            else:
                equal += get64(weights, j)
                j += 1
        if abs(above + greater - target) <= margin or abs(above + greater + equal - target) <= margin:
            return UNSURE
        if above + greater > target:
            high = i
        elif above + greater + equal > target:
            return share(f, pivot, above + greater, get64(weights, i), end - i, target, margin)
        else:
            above += greater + equal
            low = end
    return nucleus_short(f, low, high, above, target, margin)


@inner
def nucleus_short(f, low, high, above, target, margin):
    values, weights = get(f, SPARE), get(f, WEIGHTS)
    sort_down(values, weights, low, high)
    while low < high:
        value, weight, count = get64(values, low), get64(weights, low), 1
        while low + count < high and get64(values, low + count) == value:
            count += 1
        if abs(above + count * weight - target) <= margin:
            return UNSURE
        if above + count * weight > target:
            return share(f, value, above, weight, count, target, margin)
        above += count * weight
        low += count
    return LARGE


@inner
def span(f, n):
    """The least of SPARE's values that matters (745 below the greatest, where weights end), and 255 over the distance; 0 if it is 0."""
    values = get(f, SPARE)
    most, least = get64(values, 0), get64(values, 0)
    for j in range(n):
        most, least = max(most, get64(values, j)), min(least, get64(values, j))
    least = max(least, most - 745)
    return least, (255.0 / (most - least) if most > least else 0.0)


@inner
def bin_of(value, least, rate):
    """A value's bin, 0 … 255: never falls as the value grows, whatever rounds, and equal values share one."""
    return np.int64((max(value, least) - least) * rate)


@inner
def binned(f, n, above, target, margin):
    """``nucleus`` for many: weights are added up in 256 bins of value, and only the bin in which the target is passed is looked at."""
    values, weights, bins = get(f, SPARE), get(f, WEIGHTS), get(f, BUFFER64)
    least, rate = span(f, n) if n >= MANY else (0.0, 0.0)
    if rate == 0:
        return nucleus(f, n, above, target, margin)
    for k in range(256):
        put64(bins, k, 0.0)
    for j in range(n):
        k = bin_of(get64(values, j), least, rate)
        put64(bins, k, get64(bins, k) + get64(weights, j))
    k = 255
    while k >= 0 and above + get64(bins, k) <= target:
        above += get64(bins, k)
        k -= 1
    if k < 0:
        return UNSURE if abs(above - target) <= margin else LARGE
    if abs(above - target) <= margin or abs(above + get64(bins, k) - target) <= margin:
        return UNSURE
    kept = 0
    for j in range(n):
        if bin_of(get64(values, j), least, rate) == k:
            swap(values, weights, kept, j)
            kept += 1
    return nucleus(f, kept, above, target, margin)


@inner
def kth_of(f, n, k):
    """The k-th largest of SPARE's ``n`` values, by bins where they are many."""
    values, bins = get(f, SPARE), get(f, BUFFER64)
    least, rate = span(f, n) if n >= MANY else (0.0, 0.0)
    if rate == 0:
        return kth_largest(values, n, k)
    for b in range(256):
        put64(bins, b, 0.0)
    for j in range(n):
        b = bin_of(get64(values, j), least, rate)
        put64(bins, b, get64(bins, b) + 1.0)
    b, left = 255, float(k)
    while get64(bins, b) < left:
        left -= get64(bins, b)
        b -= 1
    kept = 0
    for j in range(n):
        value = get64(values, j)
        if bin_of(value, least, rate) == b:
            put64(values, kept, value)
            kept += 1
    return kth_largest(values, kept, np.int64(left))
