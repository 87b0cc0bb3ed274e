"""Truncations: from the whole row to a list, and from a list to a shorter one.

A list holds ids, ascending, and logits in double precision as ``apply`` has them at that point: divided, edited and rounded
the same way.  So what a list decides is decided in double.  It holds only candidates that could still be drawn: a masked token
that ``apply`` carries along never counts again, since nothing raises −inf.

From row to list: some bound is known below which nothing survives, and only blocks whose maximum reaches it are read again.
"""

from __future__ import annotations

import math

import numpy as np

from nalar.kernels.blocks import block, element
from nalar.kernels.compiled import inner
from nalar.kernels.exponential import exp64
from nalar.kernels.frame import (
    BLOCK,
    BLOCKS,
    BOUND,
    COUNT,
    FLOAT64,
    IDS,
    KIND,
    LARGE,
    LAST,
    LIST,
    MAXIMA,
    OK,
    RAW,
    ROW_TOP,
    SCALE,
    SCANNED,
    SIZE,
    SPARE,
    SPARE_IDS,
    STATE,
    SUM,
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
    get32,
    get64,
    get_int,
    lanes,
    load,
    load64,
    pack,
    put32,
    put64,
    put_int,
    store,
    total,
)
from nalar.kernels.scan import LN2, exactness, maxima, scaled, slack, sums
from nalar.kernels.select import LOWEST, binned, bound_for, image, kth_of, number
from nalar.kernels.widen import widened

FIRST_LOOK = 64  # of the largest block maxima: their blocks hold most nuclei
SMALL = 1024  # rows of which everything goes into the list at once
FAINT = 0.02  # of the target in the first look: then thousands of candidates follow
CROWD = 4096  # candidates beyond which a sixteenth of the row is too much for a list


# --- from row to list --------------------------------------------------------------------------------------------------


@inner
def gather(f, bound, k):
    """Raw elements >= ``bound`` into RAW and IDS; how many.  With ``k`` > 0 only the k largest matter, and the bound rises."""
    raw, ids, tops = get(f, RAW), get(f, IDS), get(f, MAXIMA)
    found, limit = 0, 2 * k + 512
    for b in range(get(f, BLOCKS)):
        if get32(tops, b) >= bound:
            a, first = block(f, b), b * BLOCK
            for j in range(0, BLOCK, 16):
                values = load(a, j)
                bits = at_least(values, bound)
                if bits:
                    pack(values, first + j, bits, raw, ids, found)
                    found += count_bits(bits)
            if k > 0 and found > limit and get(f, KIND) != FLOAT64:
                bound = prune(f, found, k)
                found = k
    return found


@inner
def prune(f, n, k):
    """Leave the k largest of ``n`` gathered, the lowest ids among equals; returns the bound that a later id must reach to matter."""
    raw, ids, spare = get(f, RAW), get(f, IDS), get(f, SPARE)
    for j in range(n):
        put64(spare, j, float(get32(raw, j)))
    kth = np.float32(kth_of(f, n, k))
    larger = 0
    for j in range(n):
        larger += get32(raw, j) > kth
    ties, kept = k - larger, 0
    for j in range(n):
        x = get32(raw, j)
        if x > kth or (x == kth and ties > 0):
            ties -= x == kth
            put32(raw, kept, x)
            put_int(ids, kept, get_int(ids, j))
            kept += 1
    return number(image(kth) + 1) if kth != 0 else number(np.int64(1))


@inner
def as_list(f, n, low):
    """Gathered elements as logits, and the edited ids whose logit is >= ``low`` among them."""
    raw, ids, values = get(f, RAW), get(f, IDS), get(f, VALUES)
    if get(f, KIND) == FLOAT64:  # the bound was met by rounded elements
        gathered, n = n, 0
        for j in range(gathered):
            value = scaled(f, element(f, np.int64(get_int(ids, j))))
            if value >= low:
                put_int(ids, n, get_int(ids, j))
                put64(values, n, value)
                n += 1
    else:
        for j in range(n):
            put64(values, j, scaled(f, float(get32(raw, j))))
    n = merge(f, n, low)
    put(f, COUNT, n)
    return n


@inner
def merge(f, n, low):
    """Merge the edited ids with a logit >= ``low``, and above −inf, into the list by id; the new length."""
    table, given, some, these = get(f, TABLE_IDS), get(f, TABLE_VALUES), get(f, SPARE_IDS), get(f, SPARE)
    more = 0
    for j in range(get(f, TABLE)):
        value = get64(given, j)
        if value >= low and value > -math.inf:
            put_int(some, more, get_int(table, j))
            put64(these, more, value)
            more += 1
    if more == 0:
        return n
    sort_by_id(some, these, more)
    ids, values = get(f, IDS), get(f, VALUES)
    i, j = n - 1, more - 1
    for place in range(n + more - 1, -1, -1):
        if j < 0:
            break
        if i >= 0 and get_int(ids, i) > get_int(some, j):
            put_int(ids, place, get_int(ids, i))
            put64(values, place, get64(values, i))
            i -= 1
        else:
            put_int(ids, place, get_int(some, j))
            put64(values, place, get64(these, j))
            j -= 1
    return n + more


@inner
def sort_by_id(ids, values, n):
    """Shell's sort of (id, value) pairs: edits come in the order of the history."""
    gap = 1
    while gap < n // 3:
        gap = 3 * gap + 1
    while gap > 0:
        for i in range(gap, n):
            key, value = get_int(ids, i), get64(values, i)
            j = i
            while j >= gap and get_int(ids, j - gap) > key:
                put_int(ids, j, get_int(ids, j - gap))
                put64(values, j, get64(values, j - gap))
                j -= gap
            put_int(ids, j, key)
            put64(values, j, value)
        gap //= 3


@inner
def become_list(f):
    """From here on the list is all there is; edits look their ids up in it."""
    put(f, STATE, LIST)


@inner
def below(f, bound):
    """A bound for logits of float64 rows, which were rounded: one float32 lower."""
    return number(image(bound) - 1) if get(f, KIND) == FLOAT64 and bound > LOWEST else bound


@inner
def everything(f):
    """The whole row as a list."""
    as_list(f, gather(f, LOWEST, 0), -math.inf)
    become_list(f)
    return OK


@inner
def row_topk(f, k):
    """The k largest of the row: at least k block maxima reach a bound, so at least k elements do."""
    status = OK if get(f, SCANNED) else maxima(f)
    if status != OK:
        return status
    blocks = get(f, BLOCKS)
    if get(f, SIZE) <= SMALL or blocks < k:
        if get(f, SIZE) > 16 * CROWD:
            return LARGE
        everything(f)
        return list_topk(f, k)
    bound = below(f, bound_for(f, blocks, k, np.float32(get_float(f, ROW_TOP))))
    as_list(f, gather(f, bound, k), scaled(f, float(bound)) if bound > LOWEST else -math.inf)
    become_list(f)
    return list_topk(f, k)


@inner
def row_minp(f, p, log_p):
    """Those at least p times as likely as the most likely: a bound on the logits themselves."""
    status = OK if get(f, SCANNED) else maxima(f)
    if status != OK:
        return status
    low = get_float(f, TOP) + log_p
    bound = low / scaled(f, 1.0)
    bound -= 1e-6 * (abs(bound) + abs(get_float(f, ROW_TOP))) + 1e-30
    cut = np.float32(max(bound, float(LOWEST)))
    if get(f, SIZE) > 16 * CROWD and count_blocks(f, cut) > get(f, BLOCKS) // 4:
        return LARGE
    as_list(f, gather(f, cut, 0), low - 1e-6 * (abs(low) + abs(get_float(f, TOP)) + 1))
    become_list(f)
    return list_minp(f, p, log_p)


@inner
def count_blocks(f, bound):
    tops, found = get(f, MAXIMA), 0
    for b in range(get(f, BLOCKS)):
        found += get32(tops, b) >= bound
    return found


@inner
def row_topp(f, p):
    """The nucleus: the sum of all weights, and the largest candidates until theirs passes p times it."""
    if p == 0:
        return row_topk(f, 1)
    if get(f, SIZE) <= SMALL:
        status = OK if get(f, SCANNED) else maxima(f)
        if status != OK:
            return status
        everything(f)
        return list_topp(f, p)
    status = OK if get(f, SCANNED) >= 2 else sums(f)
    if status != OK:
        return status
    blocks = get(f, BLOCKS)
    bound = below(f, bound_for(f, blocks, min(FIRST_LOOK, max(8, blocks // 2)), np.float32(get_float(f, ROW_TOP))))
    for attempt in range(4):
        n = as_list(f, gather(f, bound, 0), scaled(f, float(bound)) if bound > LOWEST else -math.inf)
        mass = weigh(f, n)
        target = p * get_float(f, SUM) * math.exp(get(f, SCALE) * LN2 - get_float(f, TOP))
        status = binned(f, n, 0.0, target, target * (slack(f) + exactness(f, n)))
        if status == OK:
            become_list(f)
            return keep(f)
        if status == UNSURE or bound == LOWEST:
            return UNSURE
        if mass < target * FAINT:
            return LARGE
        bound = below(f, widened(f, bound, target - mass, attempt))
        if bound != bound:
            return LARGE
    return LARGE


# --- a list and a shorter one ------------------------------------------------------------------------------------------


@inner
def list_top(f):
    values, most = get(f, VALUES), -math.inf
    for j in range(get(f, COUNT)):
        most = max(most, get64(values, j))
    return most


@inner
def weigh(f, n):
    """WEIGHTS: exp(logit − maximum) for the list, and SPARE: its logits; the sum.  On a dense row the maximum is the row's."""
    values, spare, weights = get(f, VALUES), get(f, SPARE), get(f, WEIGHTS)
    top = list_top(f) if get(f, STATE) == LIST else get_float(f, TOP)
    for j in range(n):
        value = get64(values, j)
        put64(spare, j, value)
        put64(weights, j, value - top)
    for j in range(n, n + 16):
        put64(weights, j, -math.inf)
    mass = lanes(0.0)
    for j in range(0, n, 16):
        w = exp64(load64(weights, j))
        mass = add(mass, w)
        store(weights, j, w)
    return total(mass)


@inner
def keep(f):
    """Keep what lies above BOUND, and the first LAST of those equal to it."""
    ids, values, bound, ties = get(f, IDS), get(f, VALUES), get_float(f, BOUND), get(f, LAST)
    kept = 0
    for j in range(get(f, COUNT)):
        value = get64(values, j)
        if value > bound or (value == bound and ties > 0):
            ties -= value == bound
            put_int(ids, kept, get_int(ids, j))
            put64(values, kept, value)
            kept += 1
    put(f, COUNT, kept)
    return OK


@inner
def list_topk(f, k):
    """The k largest of the list, the lowest ids among equals."""
    n = get(f, COUNT)
    if n <= k:
        return OK
    values, spare = get(f, VALUES), get(f, SPARE)
    for j in range(n):
        put64(spare, j, get64(values, j))
    kth, larger = kth_of(f, n, k), 0
    for j in range(n):
        larger += get64(values, j) > kth
    put_float(f, BOUND, kth)
    put(f, LAST, k - larger)
    return keep(f)


@inner
def list_topp(f, p):
    """The nucleus of the list.  Where all weights are 1 the sums are whole numbers, and nothing is left to certify."""
    n = get(f, COUNT)
    if p == 0 or n == 1:
        return list_topk(f, 1)
    mass = weigh(f, n)
    if mass == float(n):
        return list_topk(f, max(np.int64(math.ceil(p * mass)), 1))
    status = binned(f, n, 0.0, p * mass, mass * exactness(f, n))
    return keep(f) if status == OK else UNSURE


@inner
def list_minp(f, p, log_p):
    """exp(logit − maximum) ≥ p as logit − maximum ≥ log p; the maxima stay in any case."""
    ids, values, top, margin = get(f, IDS), get(f, VALUES), list_top(f), exactness(f, 1) * (1 + abs(log_p))
    kept = 0
    for j in range(get(f, COUNT)):
        value = get64(values, j)
        under = value - top
        if under != 0 and abs(under - log_p) <= margin:
            return UNSURE
        if under == 0 or under > log_p:
            put_int(ids, kept, get_int(ids, j))
            put64(values, kept, value)
            kept += 1
    put(f, COUNT, kept)
    return OK
