"""Edits: a side table of (id, new logit in double precision), so that the row itself is never written.

An edited id is *hidden* in the row (one byte for an id, so that a vector load masks sixteen) and lives in the table instead; an
allowed set hides all others without an entry.  Masses are sums over what is shown plus the table, never differences.
The same functions edit a list, whose entries take the table's place; ids that are no longer candidates are skipped there.

Each formula is that of the stage's ``apply``, in its order of operations.
"""

from __future__ import annotations

import math

import numpy as np

from nalar.kernels.blocks import element, is_hidden
from nalar.kernels.compiled import inner
from nalar.kernels.frame import (
    BLOCK,
    BLOCKS,
    BROKEN,
    COUNT,
    DENSE,
    EDITED,
    HIDDEN,
    HIDDEN_TOPS,
    HIDE,
    IDS,
    LIST,
    OK,
    ROW,
    SEEN,
    SEEN_IDS,
    SEEN_ROOM,
    SIZE,
    SLOT,
    SPARE_IDS,
    STATE,
    STEP,
    TABLE,
    TABLE_IDS,
    TABLE_VALUES,
    TOUCHED,
    VALUES,
    get,
    put,
)
from nalar.kernels.lanes import get32, get64, get_byte, get_int, prefetch, put32, put64, put_byte, put_int
from nalar.kernels.scan import scaled

BIAS, BAN, ALLOW, REPETITION, FREQUENCY, PRESENCE = range(6)


@inner
def clear(f):
    """Show every id again: one by one, or all where an allowed set hid most.  BLOCKS is still that of the row before."""
    if get(f, EDITED):
        hide, touched, ids = get(f, HIDE), get(f, TOUCHED), get(f, TABLE_IDS)
        for j in range(get(f, TABLE)):
            i = np.int64(get_int(ids, j))
            put_byte(hide, i >> 3, np.uint8(0))
            put_byte(touched, i // BLOCK, np.uint8(0))
        if get(f, HIDDEN):
            for i in range(get(f, BLOCKS) * BLOCK // 8):
                put_byte(hide, i, np.uint8(0))
            for b in range(get(f, BLOCKS)):
                put_byte(touched, b, np.uint8(0))
    put(f, EDITED, 0)
    put(f, HIDDEN, 0)
    put(f, TABLE, 0)


@inner
def place_of(f, i):
    """The place of id ``i`` in the table, or in the list once there is one; −1 if it is not there.

    SLOT is never cleared: what it says counts only if the id at that place agrees.
    """
    slot = np.int64(get_int(get(f, SLOT), i))
    listed = get(f, STATE) == LIST
    ids, n = (get(f, IDS), get(f, COUNT)) if listed else (get(f, TABLE_IDS), get(f, TABLE))
    return slot if 0 <= slot < n and np.int64(get_int(ids, slot)) == i else -1


@inner
def hide_in_block(f, b, x):
    """Block ``b`` has a hidden element ``x`` now: it is touched, and its maximum stands only if that is larger than all hidden ones."""
    touched, tops = get(f, TOUCHED), get(f, HIDDEN_TOPS)
    if get_byte(touched, b) == 0:
        put_byte(touched, b, np.uint8(1))
        put32(tops, b, x)
    elif x > get32(tops, b):
        put32(tops, b, x)


@inner
def find(f, i):
    """The place of id ``i`` among the values that edits change: made now if the row is still dense, −1 if it is no candidate, −2 if
    its element is NaN or +inf."""
    place = place_of(f, i)
    if place >= 0:
        return place
    if get(f, STATE) != DENSE or is_hidden(f, i):
        return -1
    x = element(f, i)
    if not x < math.inf:
        return -2
    place = get(f, TABLE)
    put_int(get(f, TABLE_IDS), place, np.int32(i))
    put64(get(f, TABLE_VALUES), place, scaled(f, x))
    put_int(get(f, SLOT), i, np.int32(place))
    put_byte(get(f, HIDE), i >> 3, np.uint8(get_byte(get(f, HIDE), i >> 3) | 1 << (i & 7)))
    hide_in_block(f, i // BLOCK, np.float32(x))
    put(f, TABLE, place + 1)
    put(f, EDITED, 1)
    return place


@inner
def changed(kind, old, value, amount, fade):
    """The new logit: ``amount`` is a bias or a count of occurrences, ``fade`` how much of a penalty applies."""
    if kind == BIAS:
        return old + amount
    if kind == BAN:
        return -math.inf
    if kind in (FREQUENCY, PRESENCE):  # a masked token stays masked, whatever the value
        return old if old == -math.inf else old - value * (amount if kind == FREQUENCY else fade)
    new = old / value if old > 0 else old * value
    if fade == 1.0 or old == -math.inf:
        return new
    return old * (1 - fade) + new * fade


@inner
def edit_one(f, i, kind, value, amount, fade):
    """Edit id ``i``; BROKEN where the row or the result is no logit."""
    place = find(f, i)
    if place < 0:
        return OK if place == -1 else BROKEN
    values = get(f, TABLE_VALUES) if get(f, STATE) == DENSE else get(f, VALUES)
    new = changed(kind, get64(values, place), value, amount, fade)
    put64(values, place, new)
    return OK if new < math.inf else BROKEN


@inner
def edit_listed(f, kind, value, ids, amounts, fades, n):
    """Edit ``n`` ids given with their amounts and fades (0: no such array)."""
    for j in range(n):
        amount = get64(amounts, j) if amounts != 0 else 1.0
        fade = get64(fades, j) if fades != 0 else 1.0
        if edit_one(f, np.int64(get_int(ids, j)), kind, value, amount, fade) != OK:
            return BROKEN
    return OK


@inner
def edit_seen(f, kind, value, use_prompt, use_output):
    """Edit every id of the history that occurs in the scope."""
    table, room, used, size = get(f, SEEN), get(f, SEEN_ROOM), get(f, SEEN_IDS), get(f, SIZE)
    if get(f, STATE) == DENSE:  # their elements lie all over the row: wait for all at once, not for one after the other
        row, stride = get(f, ROW), get(f, STEP)
        slot = get(f, SLOT)
        for j in range(used):
            i = np.int64(get_int(table, j))
            prefetch(row + stride * i)
            prefetch(slot + 4 * i)
    for j in range(used):
        i = np.int64(get_int(table, j))
        count = 0
        if use_prompt:
            count += np.int64(get_int(table, room + j))
        if use_output:
            count += np.int64(get_int(table, 2 * room + j))
        if 0 <= i < size and count > 0 and edit_one(f, i, kind, value, float(count), 1.0) != OK:
            return BROKEN
    return OK


@inner
def allow(f, ids, n):
    """Mask all but ``n`` ids."""
    return allow_row(f, ids, n) if get(f, STATE) == DENSE else allow_list(f, ids, n)


@inner
def allow_row(f, ids, n):
    """Hide every id whose bit is not set among the allowed ones; an edited id has its entry masked instead."""
    hide, table, values, allowed = get(f, HIDE), get(f, TABLE_IDS), get(f, TABLE_VALUES), get(f, SPARE_IDS)
    for i in range(get(f, BLOCKS) * BLOCK // 8):
        put_byte(allowed, i, np.uint8(0))
    for j in range(n):
        i = np.int64(get_int(ids, j))
        put_byte(allowed, i >> 3, np.uint8(get_byte(allowed, i >> 3) | 1 << (i & 7)))
    for j in range(get(f, TABLE)):
        i = np.int64(get_int(table, j))
        if not get_byte(allowed, i >> 3) >> (i & 7) & 1:
            put64(values, j, -math.inf)
    for i in range(get(f, BLOCKS) * BLOCK // 8):
        put_byte(hide, i, np.uint8(get_byte(hide, i) | ~get_byte(allowed, i)))
    for b in range(get(f, BLOCKS)):
        put_byte(get(f, TOUCHED), b, np.uint8(1))
        put32(get(f, HIDDEN_TOPS), b, math.inf)  # no maximum stands
    put(f, EDITED, 1)
    put(f, HIDDEN, 1)
    return OK


@inner
def allow_list(f, ids, n):
    marks, values, count = get(f, SPARE_IDS), get(f, VALUES), get(f, COUNT)
    for j in range(count):
        put_int(marks, j, np.int32(0))
    for j in range(n):
        place = find(f, np.int64(get_int(ids, j)))
        if place >= 0:
            put_int(marks, place, np.int32(1))
    for j in range(count):
        if get_int(marks, j) == 0:
            put64(values, j, -math.inf)
    return OK


@inner
def open_list(f):
    """Let ``find`` see the list: each candidate's place, by id."""
    slot, ids = get(f, SLOT), get(f, IDS)
    for j in range(get(f, COUNT)):
        put_int(slot, np.int64(get_int(ids, j)), np.int32(j))


@inner
def close_list(f):
    """BROKEN where no candidate is left."""
    values, most = get(f, VALUES), -math.inf
    for j in range(get(f, COUNT)):
        most = max(most, get64(values, j))
    return OK if most > -math.inf else BROKEN
