"""A row's program: the chain's operations in order, first on the whole row, from the first truncation on a list.

The table has one line of five float64 for each operation: its number, then its arguments.

    operation      arguments                                    operation        arguments
    GREEDY                                                      BIAS_OP          ids, amounts, n (addresses, count)
    TEMPERATURE    divisor                                      BAN_OP           ids, n
    TOP_K          k                                            ALLOW_OP         ids, n
    TOP_P          p                                            MIN_TOKENS       ids, n, tokens
    MIN_P          p, log p                                     REPETITION_OP …  value, scope (1 prompt, 2 output, 3 both)
                                                                … _SEEN          value, ids, n, counts-and-fades address

A run that cannot be certain stops with a status and can go on from there: the frame says where it stands.  Python then calls
``scan.sums64`` (UNSURE) or ``kept.large`` (LARGE) and ``run`` again, or leaves the row to the stages' own ``apply`` (BROKEN, GIVE_UP).
"""

from __future__ import annotations

import math

import numpy as np

from nalar.kernels.blocks import block
from nalar.kernels.compiled import entry, inner
from nalar.kernels.cut import SMALL, become_list, everything, list_minp, list_top, list_topk, list_topp, row_minp, row_topk, row_topp
from nalar.kernels.draw import draw_list, draw_row
from nalar.kernels.edits import (
    BAN,
    BIAS,
    REPETITION,
    allow,
    clear,
    close_list,
    edit_listed,
    edit_seen,
    open_list,
)
from nalar.kernels.frame import (
    BLOCK,
    BLOCKS,
    COUNT,
    COUNTED,
    DENSE,
    DIRECT,
    DIVISOR,
    DIVISORS,
    DRAW,
    FLOAT32,
    FLOAT64,
    GIVE_UP,
    IDS,
    INVERSE,
    KEPT,
    KIND,
    LARGE,
    LENGTH,
    LIST,
    LOGPROB,
    MAXIMA,
    NEXT,
    NO_DRAW,
    OK,
    OUTPUT,
    PROGRAM,
    RACE,
    ROW_TOP,
    SCANNED,
    SIZE,
    STATE,
    STATUS,
    STEP,
    TABLE,
    TABLE_IDS,
    TABLE_VALUES,
    TOKEN,
    TOP,
    UNSURE,
    VALUES,
    get,
    get_float,
    put,
    put_float,
)
from nalar.kernels.lanes import get32, get64, get_int, put64, put_int
from nalar.kernels.scan import maxima, scaled, sums

GREEDY, TEMPERATURE, TOP_K, TOP_P, MIN_P, BIAS_OP, BAN_OP, ALLOW_OP, MIN_TOKENS = range(9)
REPETITION_OP, FREQUENCY_OP, PRESENCE_OP, REPETITION_SEEN, FREQUENCY_SEEN, PRESENCE_SEEN = range(9, 15)
LINE = 5
COOLEST, HOTTEST = 1e-30, 1e30  # temperatures' product: between them no quotient of a float32 over- or underflows


@inner
def begin(f):
    """A fresh row: nothing scanned, nothing edited."""
    size = get(f, SIZE)
    blocks = (size + BLOCK - 1) // BLOCK
    clear(f)
    put(f, BLOCKS, blocks)
    direct = get(f, KIND) == FLOAT32 and get(f, STEP) == 4
    put(f, DIRECT, size // BLOCK if direct else 0)
    put(f, STATE, DENSE)
    for place in (NEXT, SCANNED, COUNT, DIVISORS):
        put(f, place, 0)
    put(f, TOKEN, -1)
    put_float(f, COUNTED, get_float(f, COUNTED) + 1)


@inner
def argument(f, place):
    return get_float(get(f, PROGRAM), get(f, NEXT) * LINE + place)


@inner
def address(f, place):
    return np.int64(argument(f, place))


@inner
def greedy(f):
    """The lowest id among the largest logits is all that is left."""
    if get(f, STATE) == DENSE:
        status = greedy_row(f) if get(f, KIND) != FLOAT64 else row_topk(f, 1)  # rounding makes ties
        if status != OK:
            return status
    else:
        top, values, ids = list_top(f), get(f, VALUES), get(f, IDS)
        j = 0
        while get64(values, j) != top:
            j += 1
        put_int(ids, 0, get_int(ids, j))
    put64(get(f, VALUES), 0, 0.0)
    put(f, COUNT, 1)
    return OK


@inner
def greedy_row(f):
    status = OK if get(f, SCANNED) else maxima(f)
    if status != OK:
        return status
    token, top = first_at_top(f), get_float(f, TOP)
    ids, values = get(f, TABLE_IDS), get(f, TABLE_VALUES)
    for j in range(get(f, TABLE)):
        if get64(values, j) == top:
            token = min(token, np.int64(get_int(ids, j)))
    put_int(get(f, IDS), 0, np.int32(token))
    become_list(f)
    return OK


@inner
def search(f, top):
    """The first element equal to ``top``, which a block's maximum is."""
    tops, b = get(f, MAXIMA), 0
    while get32(tops, b) != top:
        b += 1
    a, j = block(f, b), 0
    while get32(a, j) != top:
        j += 1
    return b * BLOCK + j


@inner
def first_at_top(f):
    """The lowest id of the row's own maximum; past the row's end where an edited id is larger."""
    top = np.float32(get_float(f, ROW_TOP))
    if scaled(f, float(top)) < get_float(f, TOP):
        return get(f, SIZE)
    return search(f, top)


@inner
def temperature(f, value):
    """Divide: the edits or the list now, the row when it is read."""
    if get(f, STATE) == DENSE:
        product = 1.0 / scaled(f, 1.0) * value
        if get(f, DIVISORS) == 4 or not COOLEST < product < HOTTEST:
            return GIVE_UP
        put_float(f, DIVISOR + get(f, DIVISORS), value)
        put(f, DIVISORS, get(f, DIVISORS) + 1)
        return divide(get(f, TABLE_VALUES), get(f, TABLE), value)
    status = divide(get(f, VALUES), get(f, COUNT), value)
    return GIVE_UP if status == OK and all_gone(get(f, VALUES), get(f, COUNT)) else status


@inner
def all_gone(values, n):
    """Whether even the greatest quotient underflowed to −inf: the limit of such a temperature is ``apply``'s to find."""
    greatest = -math.inf
    for j in range(n):
        if get64(values, j) > greatest:
            greatest = get64(values, j)
    return greatest == -math.inf


@inner
def divide(values, n, value):
    status = OK
    for j in range(n):
        quotient = get64(values, j) / value
        put64(values, j, quotient)
        if not quotient < math.inf:
            status = GIVE_UP
    return status


@inner
def edit(f, operation):
    listed = get(f, STATE) == LIST
    if listed:
        open_list(f)
    status = edit_by(f, operation)
    if listed:
        emptied = close_list(f)
        status = emptied if status == OK else status
    return status


@inner
def edit_by(f, operation):
    if operation == BIAS_OP:
        return edit_listed(f, BIAS, 0.0, address(f, 1), address(f, 2), 0, address(f, 3))
    if operation == BAN_OP:
        return edit_listed(f, BAN, 0.0, address(f, 1), 0, 0, address(f, 2))
    if operation == ALLOW_OP:
        return allow(f, address(f, 1), address(f, 2))
    if operation == MIN_TOKENS:
        return OK if get(f, OUTPUT) >= address(f, 3) else edit_listed(f, BAN, 0.0, address(f, 1), 0, 0, address(f, 2))
    if operation <= PRESENCE_OP:
        scope = address(f, 2)
        return edit_seen(f, REPETITION + operation - REPETITION_OP, argument(f, 1), scope & 1, scope & 2)
    counts, n = address(f, 4), address(f, 3)
    return edit_listed(f, REPETITION + operation - REPETITION_SEEN, argument(f, 1), address(f, 2), counts, counts + 8 * n, n)


@inner
def step(f, operation):
    """One operation; UNSURE from a dense row may be tried again in double precision, from a list it may not."""
    if operation == GREEDY:
        return greedy(f)
    if operation == TEMPERATURE:
        return temperature(f, argument(f, 1))
    if operation >= BIAS_OP:
        return edit(f, operation)
    if get(f, STATE) == LIST:
        return step_list(f, operation)
    return step_row(f, operation)


@inner
def step_row(f, operation):
    if operation == TOP_K:
        return OK if address(f, 1) >= get(f, SIZE) else row_topk(f, address(f, 1))
    status = row_topp(f, argument(f, 1)) if operation == TOP_P else row_minp(f, argument(f, 1), argument(f, 2))
    return again(f, status)


@inner
def step_list(f, operation):
    if operation == TOP_K:
        return list_topk(f, address(f, 1))
    status = list_topp(f, argument(f, 1)) if operation == TOP_P else list_minp(f, argument(f, 1), argument(f, 2))
    return GIVE_UP if status == UNSURE else status


@inner
def again(f, status):
    """UNSURE stands only where double precision has not been tried."""
    return GIVE_UP if status == UNSURE and (get(f, SCANNED) == 3 or get(f, STATE) == LIST) else status


@inner
def go(f):
    """Run the program from where it stands; the status says why it stopped."""
    while get(f, NEXT) < get(f, LENGTH):
        status = step(f, address(f, 0))
        if status != OK:
            return status
        put(f, NEXT, get(f, NEXT) + 1)
    return finish(f)


@inner
def finish(f):
    if get(f, STATE) == DENSE and get(f, SIZE) <= SMALL:  # as cheap, and exact
        status = OK if get(f, SCANNED) else maxima(f)
        if status != OK:
            return status
        everything(f)
    if get(f, STATE) == LIST:
        status = OK if get(f, DRAW) == NO_DRAW else draw_list(f)
        return GIVE_UP if status == UNSURE else status
    if get(f, STATE) == KEPT and get(f, DRAW) == RACE:
        return GIVE_UP
    status = OK if get(f, SCANNED) >= 2 else sums(f)
    if status == OK and get(f, DRAW) == INVERSE:
        status = draw_row(f)
    elif status == OK and get(f, DRAW) != NO_DRAW:
        status = LARGE
    return again(f, status)


@entry
def run(f, fresh):
    """One row, from its start (``fresh`` 1) or from where it stopped."""
    if fresh:
        begin(f)
    status = go(f)
    put(f, STATUS, status)
    return status


@entry
def batch(f, jobs, n, out):
    """``n`` rows: the job of row i in sixteen words from ``jobs`` + 128·i on, its status, token and logprob as three float64 to ``out``."""
    for i in range(n):
        for place in range(16):
            put(f, place, get(jobs + 128 * i, place))
        begin(f)
        status = go(f)
        put_float(out, 3 * i, float(status))
        put_float(out, 3 * i + 1, float(get(f, TOKEN)))
        put_float(out, 3 * i + 2, get_float(f, LOGPROB))
