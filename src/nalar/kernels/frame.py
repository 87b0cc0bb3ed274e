"""The frame: one thread's working memory, a table of places that every kernel takes as its one argument.

One argument and one type: a kernel compiles once, whatever the row's type and layout.  The frame begins with the integers and floats
named below, eight bytes each, then come the arrays, each with room for a whole vocabulary.  A thread makes its frame once, and
makes a larger one when a longer row arrives.  The memory is virtual until touched, and most rows touch little of it.

The first sixteen words, a job, are copied in by Python; the rest belongs to the kernels, and Python reads results out of it.
"""

from __future__ import annotations

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

BLOCK = 256  # ids to a block: its maximum and its sum are kept
EDGE = 64  # spare places behind each array: vectors are stored whole

# --- what Python fills in for each row ---------------------------------------------------------------------------------
ROW = 0  # address of element 0
SIZE = 1  # ids in the row
KIND = 2  # element type, see below
STEP = 3  # bytes from one element to the next
PROGRAM = 4  # address of the chain's table, see program.py
LENGTH = 5  # operations in it
SEED, POSITION, SEQUENCE, THIRD, PURPOSE = 6, 7, 8, 9, 10  # the key's words
DRAW = 11  # how to draw, see below
SEEN, SEEN_ROOM, SEEN_IDS = 12, 13, 14  # the history's counts: address, columns reserved, columns used
OUTPUT = 15  # output tokens so far

FLOAT32, FLOAT64, BFLOAT16, FLOAT16 = 0, 1, 2, 3
NO_DRAW, INVERSE, RACE = 0, 1, 2

# --- where the row's program stands ------------------------------------------------------------------------------------
STATUS = 16
NEXT = 17  # the next operation
STATE = 18  # DENSE: the whole row; LIST: the list; KEPT: the row above a threshold
SCANNED = 19  # 0 nothing, 1 maxima, 2 maxima and sums in single precision, 3 in double
BLOCKS = 20
SCALE = 21  # sums are multiplied by 2^−SCALE
COUNT = 22  # candidates in the list
TABLE = 23  # entries in the table of edits
EDITED = 24  # whether some ids of the row are hidden
HIDDEN = 25  # whether they are too many to clear one by one
DIVISORS = 26  # temperatures so far, while the row is dense
LAST = 27  # KEPT: the last id among those equal to the threshold
DIRECT = 28  # blocks from here on must be copied out: 0 if the row is not contiguous float32
TOKEN = 30
LOGPROB = 31  # a float

OK, BROKEN, UNSURE, LARGE, GIVE_UP = 0, 1, 2, 3, 4
DENSE, LIST, KEPT = 0, 1, 2

# --- floats ------------------------------------------------------------------------------------------------------------
TOP = 32  # greatest logit of the dense row, edits included, as it is here in the chain
ROW_TOP = 33  # greatest element of the row that is not hidden, as it is in the row
SUM = 34  # Σ 2^(…−SCALE) over the dense row, or over what is kept
BOUND = 36  # KEPT: the threshold, as a logit
DIVISOR = 40  # up to four temperatures
FORCE = 44  # testing: 1 makes every single-precision decision unsure, 2 every decision
COUNTED = 48  # how often: rows, repeated in double, given up, large

# --- arrays ------------------------------------------------------------------------------------------------------------
(MAXIMA, SUMS, BUFFER, BUFFER64, HIDE, SLOT, TOUCHED, TABLE_IDS, TABLE_VALUES, IDS, VALUES, WEIGHTS, SPARE, RAW, SPARE_IDS,
 HIDDEN_TOPS, ROOM) = range(64, 81)
HEAD = 128  # eight-byte words before the arrays

ENTRY = {  # bytes for each id of the largest row; HIDE has a bit for each
    MAXIMA: 4, SUMS: 8, HIDE: 1 / 8, SLOT: 4, TOUCHED: 1, TABLE_IDS: 4, TABLE_VALUES: 8, IDS: 4, VALUES: 8, WEIGHTS: 8, SPARE: 8, RAW: 4,
    SPARE_IDS: 4, HIDDEN_TOPS: 4,
}


def layout(room: int) -> tuple[dict[int, int], int]:
    """Offsets of the arrays for rows of up to ``room`` ids, and the bytes of the whole frame."""
    offsets, end = {}, HEAD * 8
    for name in (BUFFER, BUFFER64):
        offsets[name], end = end, end + 8 * (BLOCK + EDGE)
    for name, size in ENTRY.items():
        offsets[name], end = end, end + int(size * (room + BLOCK + EDGE) + 127) // 64 * 64
    return offsets, end


LONG, DOUBLE = ir.IntType(64), ir.DoubleType()


def _getter(element, kind):
    @intrinsic
    def get(typing, frame, place):
        def emit(context, builder, signature, arguments):
            base = builder.inttoptr(arguments[0], element.as_pointer())
            return builder.load(builder.gep(base, [arguments[1]]), align=8)

        return kind(types.int64, types.int64), emit

    return get


def _setter(element, kind):
    @intrinsic
    def put(typing, frame, place, value):
        def emit(context, builder, signature, arguments):
            base = builder.inttoptr(arguments[0], element.as_pointer())
            given = context.cast(builder, arguments[2], signature.args[2], kind)
            builder.store(given, builder.gep(base, [arguments[1]]), align=8)
            return context.get_dummy_value()

        return types.void(types.int64, types.int64, value), emit

    return put


get, get_float = _getter(LONG, types.int64), _getter(DOUBLE, types.float64)
put, put_float = _setter(LONG, types.int64), _setter(DOUBLE, types.float64)
