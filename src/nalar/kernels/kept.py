"""Many survivors: a flat row's nucleus, a low min-p, a large k.  The result is a threshold on the row, not a list of half of it.

A sample of the row places a bracket, lower and upper bound, around where the cut must be.  One pass in double precision adds
up each block's weights at least the upper bound, and all weights, and gathers what lies between; selection among those
few thousand finds the cut exactly.  A bracket that misses is made wider, and after three misses the row becomes a list.

Sample error.  A fraction q of a mass, estimated from n weighted samples below the largest candidates (which are known), has
standard deviation √(q(1 − q)/n′), n′ = (Σw)² / Σw²; the bracket is ``DEVIATIONS`` of them to each side.

float64 rows become lists at once: rounded to float32 they have ties that are none.
"""

from __future__ import annotations

import math

import numpy as np

from nalar.kernels.blocks import ahead, block
from nalar.kernels.compiled import entry, inner
from nalar.kernels.cut import CROWD, FIRST_LOOK, as_list, become_list, everything, gather, weigh
from nalar.kernels.exponential import exp64, power64
from nalar.kernels.frame import (
    BLOCK,
    BLOCKS,
    BOUND,
    BROKEN,
    COUNT,
    COUNTED,
    FLOAT64,
    GIVE_UP,
    IDS,
    KEPT,
    KIND,
    LARGE,
    LAST,
    LENGTH,
    MAXIMA,
    NEXT,
    OK,
    PROGRAM,
    RAW,
    ROW_TOP,
    SCALE,
    SCANNED,
    SIZE,
    SPARE,
    STATE,
    SUM,
    SUMS,
    TABLE,
    TABLE_IDS,
    TABLE_VALUES,
    TOP,
    UNSURE,
    VALUES,
    WEIGHTS,
    get,
    get_float,
    put,
    put_float,
)
from nalar.kernels.lanes import (
    add,
    at_least,
    count_bits,
    fused,
    get32,
    get64,
    get_int,
    lanes,
    load,
    load64,
    pack,
    put64,
    put_int,
    store,
    total,
    where_at_least,
    widen,
)
from nalar.kernels.scan import LN2, LOG2E, exactness, maxima, rate, scaled, slack
from nalar.kernels.select import LOWEST, binned, bound_for, image, kth_of, number

DEVIATIONS = (2.2, 5.0, 12.0)  # to each side, at each attempt: the first misses one row in forty
VECTORS = 128  # sampled, sixteen elements each
TOP_K, TOP_P, MIN_P = 2, 3, 4  # as program.py numbers them; it imports nothing from here
LINE = 5


@inner
def sample(f, below):
    """Sampled elements under ``below`` into SPARE and their weights into WEIGHTS; how many, Σ of the weights and of their squares."""
    values, weights, blocks, found = get(f, SPARE), get(f, WEIGHTS), get(f, BLOCKS), 0
    s, top = rate(f) * LN2, get_float(f, TOP)
    for b in range(0, blocks, max(blocks // VECTORS, 1)):
        a = block(f, b)
        for j in range(16 * (b * 7 % 16), 16 * (b * 7 % 16) + 16):
            x = get32(a, j)
            if LOWEST <= x < below:
                put64(values, found, float(x))
                put64(weights, found, float(x) * s - top)
                found += 1
    for j in range(found, found + 16):
        put64(weights, j, -math.inf)
    mass, square = lanes(0.0), lanes(0.0)
    for j in range(0, found, 16):
        w = exp64(load64(weights, j))
        store(weights, j, w)
        mass, square = add(mass, w), fused(w, w, square)
    return found, total(mass), total(square)


@inner
def quantile(f, n, mass):
    """The sampled element down to which ``mass`` of the sampled weight lies; LOWEST if that is more than all."""
    return np.float32(get_float(f, BOUND)) if binned(f, n, 0.0, mass, 0.0) == OK else LOWEST


@inner
def bracket_pass(f, low, high):
    """Σ of all weights (returned), each block's Σ of those >= ``high`` (SUMS), and the elements in [low, high) gathered (COUNT)."""
    s, c = rate(f), np.int64(math.floor(get_float(f, TOP) * LOG2E))
    floor = (float(c) - 900) / s
    raw, ids, sums, tops, found, whole = get(f, RAW), get(f, IDS), get(f, SUMS), get(f, MAXIMA), 0, 0.0
    for b in range(get(f, BLOCKS)):
        ahead(f, b)
        a, first = block(f, b), b * BLOCK
        all_sum, high_sum = lanes(0.0), lanes(0.0)
        near = get32(tops, b) >= low
        for j in range(0, BLOCK, 16):
            x = load(a, j)
            w = power64(widen(x), s, floor, c)
            all_sum, high_sum = add(all_sum, w), add(high_sum, where_at_least(x, high, w))
            if near:
                bits = at_least(x, low) & ~at_least(x, high)
                pack(x, first + j, bits, raw, ids, found)  # with no bit set too: every other vector has one, and no branch guesses
                found += count_bits(bits)
        whole += total(all_sum)
        put64(sums, b, total(high_sum))
    put(f, SCALE, c)
    put(f, COUNT, found)
    put(f, SCANNED, 3)
    return whole


@inner
def table_sums(f, high):
    """The edited ids' part: Σ of all weights (returned), and those whose logit is >= ``high`` added to their blocks."""
    ids, values, sums, shift, whole = get(f, TABLE_IDS), get(f, TABLE_VALUES), get(f, SUMS), get(f, SCALE) * LN2, 0.0
    for j in range(get(f, TABLE)):
        value = get64(values, j)
        weight = math.exp(value - shift)
        whole += weight
        if value >= high:
            b = np.int64(get_int(ids, j)) // BLOCK
            put64(sums, b, get64(sums, b) + weight)
    return whole


@inner
def bracket_list(f, low, high):
    """The bracket as a list with the edited ids in it; and what of those is not below ``high`` taken out again."""
    n, top = as_list(f, get(f, COUNT), low), high
    if get(f, TABLE) == 0:
        return n
    ids, values, kept = get(f, IDS), get(f, VALUES), 0
    for j in range(n):
        if get64(values, j) < top:
            put64(values, kept, get64(values, j))
            put_id(ids, kept, j)
            kept += 1
    put(f, COUNT, kept)
    return kept


@inner
def put_id(ids, to, at):
    put_int(ids, to, get_int(ids, at))


@inner
def settle(f):
    """The row is cut at BOUND, and LAST of those equal to it stay: say which id is the last, and add the bracket's part to the sums."""
    ids, values, weights, sums = get(f, IDS), get(f, VALUES), get(f, WEIGHTS), get(f, SUMS)
    bound, ties, last = get_float(f, BOUND), get(f, LAST), np.int64(-1)
    weigh(f, get(f, COUNT))
    factor = math.exp(get_float(f, TOP) - get(f, SCALE) * LN2)
    for j in range(get(f, COUNT)):
        value, i = get64(values, j), np.int64(get_int(ids, j))
        weight = get64(weights, j) * factor if value > bound else 0.0  # no branch: half of them are, in no order
        if value == bound and ties > 0:
            ties -= 1
            last = i
            weight = get64(weights, j) * factor
        put64(sums, i >> 8, get64(sums, i >> 8) + weight)
    mass = 0.0
    for b in range(get(f, BLOCKS)):
        mass += get64(sums, b)
    put_float(f, SUM, mass)
    put(f, LAST, last)
    put(f, STATE, KEPT)
    put(f, NEXT, get(f, NEXT) + 1)
    return OK


@inner
def block_total(f):
    mass = 0.0
    for b in range(get(f, BLOCKS)):
        mass += get64(get(f, SUMS), b)
    return mass


@inner
def cut_bracket(f, p, k, low, high):
    """One attempt: OK, LARGE where the cut is not in the bracket, GIVE_UP where it hangs on rounding."""
    upper = scaled(f, float(high))
    whole = bracket_pass(f, low, high)
    whole += table_sums(f, upper)
    above, n = block_total(f), bracket_list(f, scaled(f, float(low)) if low > LOWEST else -math.inf, upper)
    factor = math.exp(get(f, SCALE) * LN2 - get_float(f, TOP))
    above, target = above * factor, p * whole * factor
    weigh(f, n)
    margin = target * slack(f)
    if above - target > margin:
        return LARGE
    if abs(above - target) <= margin:
        return GIVE_UP
    status = binned(f, n, above, target, margin)
    if status == UNSURE:
        return GIVE_UP
    return settle(f) if status == OK else status


@inner
def large_topp(f, p):
    """The nucleus of a row in which it is more than a list should hold."""
    blocks = get(f, BLOCKS)
    first = bound_for(f, blocks, min(FIRST_LOOK, max(8, blocks // 2)), np.float32(get_float(f, ROW_TOP)))
    above = weigh(f, as_list(f, gather(f, first, 0), scaled(f, float(first)) if first > LOWEST else -math.inf))
    rest = get_float(f, SUM) * math.exp(get(f, SCALE) * LN2 - get_float(f, TOP)) - above
    fraction = (p * (rest + above) - above) / max(rest, 1e-300)
    for attempt in range(3):
        n, mass, square = sample(f, first)
        if n < 64:
            return LARGE
        wide = DEVIATIONS[attempt] * math.sqrt(max(fraction * (1 - fraction), 1e-4) * square) / mass + 2 / n
        high = number(image(quantile(f, n, (fraction - wide) * mass)) + 1) if fraction > wide else first
        low = quantile(f, n, (fraction + wide) * mass)
        status = cut_bracket(f, p, 0, low, high)
        if status != LARGE:
            return status
    return LARGE


@inner
def large_minp(f, log_p):
    """The threshold is known; only what lies within rounding of it is looked at one by one."""
    edge = get_float(f, TOP) + log_p
    bound = edge / scaled(f, 1.0)
    slope = 1e-6 * (abs(bound) + abs(get_float(f, ROW_TOP))) + 1e-30
    low, high = np.float32(max(bound - slope, float(LOWEST))), np.float32(bound + slope)
    upper = scaled(f, float(high))
    bracket_pass(f, low, high)
    table_sums(f, upper)
    n, margin = bracket_list(f, scaled(f, float(low)) if low > LOWEST else -math.inf, upper), exactness(f, 1) * (1 + abs(log_p))
    for j in range(n):
        if abs(get64(get(f, VALUES), j) - get_float(f, TOP) - log_p) <= margin:
            return GIVE_UP
    put_float(f, BOUND, edge)
    put(f, LAST, 0)
    return settle(f)


@inner
def large_topk(f, k):
    """A list where that is short beside the row, else a threshold: a sample says down to where."""
    for attempt in range(3):
        n, _, _ = sample(f, np.float32(math.inf))
        if n < 64:
            return LARGE
        fraction = k / get(f, SIZE)
        wide = DEVIATIONS[attempt] * math.sqrt(max(fraction * (1 - fraction), 1e-4) / n) + 2 / n
        place = np.int64(math.ceil((fraction + wide) * n))
        low = LOWEST if place >= n else np.float32(kth_of(f, n, place))
        if k > get(f, SIZE) // 16:
            place = np.int64((fraction - wide) * n)
            high = number(image(np.float32(kth_of(f, n, place))) + 1) if place >= 1 else np.float32(3.4028235e38)
            status = count_bracket(f, k, low, high)
            if status != LARGE:
                return status
        else:
            found = gather(f, low, 0)
            if found >= k or low == LOWEST:
                as_list(f, found, scaled(f, float(low)) if low > LOWEST else -math.inf)
                become_list(f)
                return OK
    return LARGE


@inner
def count_bracket(f, k, low, high):
    """The k-th largest lies in [low, high) if fewer than k are at least ``high``; then a count inside the bracket finds it."""
    upper, more = scaled(f, float(high)), 0
    for b in range(get(f, BLOCKS)):
        a = block(f, b)
        for j in range(0, BLOCK, 16):
            more += count_bits(at_least(load(a, j), high))
    for j in range(get(f, TABLE)):
        more += get64(get(f, TABLE_VALUES), j) >= upper
    if more >= k:
        return LARGE
    bracket_pass(f, low, high)
    table_sums(f, upper)
    n = bracket_list(f, scaled(f, float(low)) if low > LOWEST else -math.inf, upper)
    if more + n < k:
        return LARGE
    for j in range(n):
        put64(get(f, SPARE), j, get64(get(f, VALUES), j))
    kth, larger = kth_of(f, n, k - more), 0
    for j in range(n):
        larger += get64(get(f, VALUES), j) > kth
    put_float(f, BOUND, kth)
    put(f, LAST, k - more - larger)
    return settle(f)


@inner
def operate(f):
    """The operation at hand on the dense row, where the row's type allows it."""
    line = get(f, PROGRAM) + get(f, NEXT) * LINE * 8
    operation, argument = np.int64(get_float(line, 0)), get_float(line, 1)
    if get(f, KIND) == FLOAT64 or get(f, NEXT) >= get(f, LENGTH) or get(f, SIZE) <= CROWD:
        return LARGE
    if abs(get_float(f, TOP)) > 1e5:  # exponents err by 1e-16 of the logit: keep that far below the margins
        return LARGE
    if operation == TOP_P:
        return large_topp(f, argument)
    if operation == MIN_P:
        return large_minp(f, get_float(line, 2))
    return large_topk(f, np.int64(argument))


@entry
def large(f):
    """What ``run`` left as LARGE: a threshold and the sums of what stays, or a list on which the operation goes on."""
    put_float(f, COUNTED + 3, get_float(f, COUNTED + 3) + 1)
    status = OK if get(f, SCANNED) else maxima(f)
    if status != OK:
        return status
    status = operate(f)
    if status == GIVE_UP:
        return BROKEN
    if status == LARGE:
        return everything(f)
    if get(f, STATE) == KEPT and get(f, NEXT) < get(f, LENGTH):
        put(f, NEXT, get(f, NEXT) - 1)
        return everything(f)
    return OK
