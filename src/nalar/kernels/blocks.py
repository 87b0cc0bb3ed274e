"""A row as blocks of 256 float32, whatever its type, layout and edits.

A contiguous float32 block without edits is read where it lies.  Every other block (16-bit, double, strided, with hidden ids, or
cut off by the row's end) is copied into the frame's buffer first: converted, −inf for each hidden id and behind the end.  So
every loop over blocks is written once, a conversion never makes a second pass, and rows are never written.

float64 is rounded to float32 here.  Rounding never reorders, so what is at least a bound stays so; sums of float64 rows are made
in double by ``scan.sums64`` instead.
"""

from __future__ import annotations

import math

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from nalar.kernels.compiled import inner
from nalar.kernels.frame import (
    BFLOAT16,
    BLOCK,
    BUFFER,
    BUFFER64,
    DIRECT,
    EDITED,
    FLOAT32,
    FLOAT64,
    HIDE,
    KIND,
    ROW,
    SIZE,
    STEP,
    TOUCHED,
    get,
)
from nalar.kernels.lanes import (
    BITS,
    F16,
    FLOATS,
    INTS,
    constant,
    get32,
    get64,
    get_byte,
    get_half,
    greatest,
    load,
    maximum,
    pointer,
    prefetch,
    put32,
    put64,
    spread,
    store,
)

AHEAD = 8192  # bytes; at 128,256 logits from memory a pass for maxima takes 10 µs with it, 15 without
HALVES = ir.VectorType(ir.IntType(16), 16)


@intrinsic
def shown(typing, values, bits, index):
    """``values``, with −inf in the lanes whose bit is set in the bit array at address ``bits``, from bit ``index`` (a multiple of 8) on."""

    def emit(context, builder, signature, arguments):
        given, bits, index = arguments
        place = builder.add(bits, builder.lshr(index, ir.Constant(ir.IntType(64), 3)))
        word = builder.load(builder.inttoptr(place, ir.IntType(16).as_pointer()), align=1)
        return builder.select(builder.bitcast(word, BITS), constant(FLOATS, -math.inf), given)

    return F16(F16, types.int64, types.int64), emit


def _half(builder, bits):
    """float16 bits (in int32 lanes) as float32: the exponent's bias differs by 112; infinities and NaN keep all its bits set."""
    sign = builder.shl(builder.and_(bits, constant(INTS, 0x8000)), constant(INTS, 16))
    rest = builder.shl(builder.and_(bits, constant(INTS, 0x7FFF)), constant(INTS, 13))
    value = builder.bitcast(builder.fmul(builder.bitcast(rest, FLOATS), constant(FLOATS, 2.0**112)), INTS)
    special = builder.icmp_unsigned(">=", rest, constant(INTS, 0x0F800000))
    value = builder.select(special, builder.or_(rest, constant(INTS, 0x7F800000)), value)
    return builder.bitcast(builder.or_(value, sign), FLOATS)


@intrinsic
def load_half(typing, address, index, brain):
    """Sixteen 16-bit numbers as float32, exactly: bfloat16 where ``brain`` is true, else float16."""

    def emit(context, builder, signature, arguments):
        place = builder.bitcast(pointer(builder, arguments[0], arguments[1], ir.IntType(16)), HALVES.as_pointer())
        bits = builder.zext(builder.load(place, align=2), INTS)
        upper = builder.bitcast(builder.shl(bits, constant(INTS, 16)), FLOATS)
        return builder.select(arguments[2], upper, _half(builder, bits))

    return F16(types.int64, types.int64, types.boolean), emit


@intrinsic
def from_half(typing, bits, brain):
    """One 16-bit number, given as uint16, as float64."""

    def emit(context, builder, signature, arguments):
        wide = spread(builder, builder.zext(arguments[0], ir.IntType(32)), INTS)
        upper = builder.bitcast(builder.shl(wide, constant(INTS, 16)), FLOATS)
        both = builder.select(arguments[1], upper, _half(builder, wide))
        return builder.fpext(builder.extract_element(both, ir.Constant(ir.IntType(32), 0)), ir.DoubleType())

    return types.float64(types.uint16, types.boolean), emit




@inner
def is_hidden(f, i):
    """Whether id ``i`` is not to be read from the row: it is in the table of edits, or masked."""
    return get(f, EDITED) != 0 and get_byte(get(f, HIDE), i >> 3) >> (i & 7) & 1 != 0


@inner
def element(f, i):
    """Element ``i`` of the row as it was given, in double precision."""
    address, kind = get(f, ROW) + i * get(f, STEP), get(f, KIND)
    if kind == FLOAT32:
        return float(get32(address, 0))
    if kind == FLOAT64:
        return get64(address, 0)
    return from_half(get_half(address, 0), kind == BFLOAT16)


@inner
def block(f, b):
    """The address of 256 float32: block ``b``."""
    if b < get(f, DIRECT) and not (get(f, EDITED) and get_byte(get(f, TOUCHED), b)):
        return get(f, ROW) + b * BLOCK * 4
    return fill(f, b)


@inner
def ahead(f, b):
    """Ask for what a pass over the row will need when it is some blocks further: the processor alone looks only a page ahead."""
    step = get(f, STEP)
    if 0 < step <= 8:
        place = get(f, ROW) + b * BLOCK * step + AHEAD
        for line in range(0, BLOCK * step, 64):
            prefetch(place + line)


@inner
def fill(f, b):
    """Copy block ``b`` into the buffer; a NaN or +inf under a hidden id becomes a NaN in front, so that it is found."""
    buffer, first, size = get(f, BUFFER), b * BLOCK, get(f, SIZE)
    inside = min(BLOCK, size - first)
    source = buffer
    if b < get(f, DIRECT):
        source = get(f, ROW) + first * 4
    else:
        copy(f, buffer, first, inside)
        for i in range(inside, BLOCK):
            put32(buffer, i, -math.inf)
    if get(f, EDITED) and get_byte(get(f, TOUCHED), b):
        hide = get(f, HIDE)
        most = load(source, 0)
        for i in range(0, BLOCK, 16):
            given = load(source, i)
            most = maximum(most, given)
            store(buffer, i, shown(given, hide, first + i))
        if not greatest(most) < math.inf:
            put32(buffer, 0, math.nan)
    return buffer


@inner
def copy(f, buffer, first, inside):
    """Elements ``first`` … ``first + inside − 1`` as float32, by whole vectors where they are contiguous."""
    kind, step = get(f, KIND), get(f, STEP)
    address = get(f, ROW) + first * step
    done = 0
    if kind >= BFLOAT16 and step == 2:
        done = inside // 16 * 16
        for i in range(0, done, 16):
            store(buffer, i, load_half(address, i, kind == BFLOAT16))
    elif kind == FLOAT32 and step == 4:
        done = inside // 16 * 16
        for i in range(0, done, 16):
            store(buffer, i, load(address, i))
    for i in range(done, inside):
        put32(buffer, i, element(f, first + i))


@inner
def block64(f, b):
    """The address of 256 float64: block ``b``, not rounded."""
    buffer, first = get(f, BUFFER64), b * BLOCK
    if get(f, STEP) == 8 and not get(f, EDITED) and first + BLOCK <= get(f, SIZE):
        return get(f, ROW) + first * 8
    inside = min(BLOCK, get(f, SIZE) - first)
    for i in range(BLOCK):
        put64(buffer, i, -math.inf)
    for i in range(inside):
        if not is_hidden(f, first + i):
            put64(buffer, i, element(f, first + i))
    return buffer


