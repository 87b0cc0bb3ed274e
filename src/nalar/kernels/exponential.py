"""2 to a power and e to a power, sixteen at a time, with their error bounds.

Single precision, ``power32``: the weight 2^(x·s − c) with s = log₂(e) / T held as a sum of two float32, high + low, and c an
integer.  n = round(x·high) by adding and taking away 1.5·2²³; f = fma(x, high, −n), one rounding; f = fma(x, low, f), another;
then the degree-5 polynomial below, and n − c is added to the exponent's bits.  Relative error of a weight:

    argument     2 roundings of |f| ≤ ½ + ulp, each ≤ 2⁻²⁵, times ln 2               ≤ 4.2e-8
    polynomial   its coefficients rounded to float32, on [−½ − 2⁻⁸, ½ + 2⁻⁸]         ≤ 1.6e-7
    Horner       last fma 2⁻²⁴, the one before it times |f|·ln 2, and the rest       ≤ 8.6e-8
    together                                                                         ≤ 2.9e-7

x is raised to ``floor`` first, so that −inf and the far tail give 2⁻¹²⁰ and not garbage.  |x·s| must stay below 2¹⁶.

Double precision, ``power64``: the same with degree 9 (minimax 1.9e-14) and one product, so that the exponent errs by 2⁻⁵³·|x·s|.
``exp64``, for the few candidates of a list: the Taylor polynomial of e^r of degree 13 on |r| ≤ ½ ln 2 (remainder 4e-18) after a
reduction by ln 2 in two parts: relative error ≤ 4e-16.
"""

from __future__ import annotations

import math

from numba.core import types
from numba.extending import intrinsic

from nalar.kernels.lanes import D16, DOUBLES, F16, FLOATS, INTS, LONGS, call, constant, spread

POLYNOMIAL = (1.0000000716543544, 0.6931469670545221, 0.24022119724913082, 0.05550713290219342, 0.00967554129135166, 0.0013276466587062198)
POLYNOMIAL64 = (
    1.0000000000000135, 0.6931471805599462, 0.2402265069564034, 0.05550410866465168, 0.009618129193934304, 0.0013333558200793719,
    0.00015403433751254997, 1.5252672925346873e-05, 1.3259645243929057e-06, 1.0205905320493103e-07,
)
TAYLOR = tuple(1 / math.factorial(k) for k in range(14))
MAGIC32, MAGIC64 = 1.5 * 2**23, 1.5 * 2**52
LN2_HIGH = float.fromhex("0x1.62e42fefa39efp-1")
LN2_LOW = float.fromhex("0x1.abc9e3b39803fp-56")
SMALLEST = -708.0  # below this e^y is not a normal double; taken as 0


def horner(builder, vector, coefficients, argument):
    """The polynomial by fused multiply-adds, highest power first."""
    result = constant(vector, coefficients[-1])
    for coefficient in reversed(coefficients[:-1]):
        result = call(builder, "fma", vector, [result, argument, constant(vector, coefficient)])
    return result


@intrinsic
def power32(typing, x, high, low, floor, c):
    """2^(max(x, floor)·(high + low) − c), ``high``, ``low``, ``floor`` float32 and ``c`` int32: see the error bound above."""

    def emit(context, builder, signature, arguments):
        given, high, low, floor, c = arguments
        high, low = spread(builder, high, FLOATS), spread(builder, low, FLOATS)
        x = call(builder, "maxnum", FLOATS, [given, spread(builder, floor, FLOATS)], flags=("nsz",))
        magic = constant(FLOATS, MAGIC32)
        shifted = call(builder, "fma", FLOATS, [x, high, magic])
        whole = builder.fsub(shifted, magic)
        f = call(builder, "fma", FLOATS, [x, high, builder.fneg(whole)])
        f = call(builder, "fma", FLOATS, [x, low, f])
        value = builder.bitcast(horner(builder, FLOATS, POLYNOMIAL, f), INTS)
        # the whole number sits in the low bits of ``shifted``; shifting left drops the magic constant's own bits
        steps = builder.sub(builder.bitcast(shifted, INTS), spread(builder, c, INTS))
        return builder.bitcast(builder.add(value, builder.shl(steps, constant(INTS, 23))), FLOATS)

    return F16(F16, types.float32, types.float32, types.float32, types.int32), emit


@intrinsic
def exp64(typing, y):
    """e^y for y ≤ 700; 0 below −708."""

    def emit(context, builder, signature, arguments):
        return _exp64(builder, arguments[0])

    return D16(D16), emit


def _exp64(builder, given):
    y = call(builder, "maxnum", DOUBLES, [given, constant(DOUBLES, SMALLEST)], flags=("nsz",))
    magic = constant(DOUBLES, MAGIC64)
    shifted = call(builder, "fma", DOUBLES, [y, constant(DOUBLES, 1 / LN2_HIGH), magic])
    whole = builder.fneg(builder.fsub(shifted, magic))
    r = call(builder, "fma", DOUBLES, [whole, constant(DOUBLES, LN2_HIGH), y])
    r = call(builder, "fma", DOUBLES, [whole, constant(DOUBLES, LN2_LOW), r])
    value = builder.bitcast(horner(builder, DOUBLES, TAYLOR, r), LONGS)
    scaled = builder.add(value, builder.shl(builder.bitcast(shifted, LONGS), constant(LONGS, 52)))
    live = builder.fcmp_ordered(">=", given, constant(DOUBLES, SMALLEST))
    return builder.select(live, builder.bitcast(scaled, DOUBLES), constant(DOUBLES, 0.0))


@intrinsic
def power64(typing, x, scale, floor, c):
    """2^(max(x, floor)·scale − c) in double precision, ``scale`` and ``floor`` float64, ``c`` int64."""

    def emit(context, builder, signature, arguments):
        given, scale, floor, c = arguments
        scale = spread(builder, scale, DOUBLES)
        x = call(builder, "maxnum", DOUBLES, [given, spread(builder, floor, DOUBLES)], flags=("nsz",))
        magic = constant(DOUBLES, MAGIC64)
        shifted = call(builder, "fma", DOUBLES, [x, scale, magic])
        f = call(builder, "fma", DOUBLES, [x, scale, builder.fneg(builder.fsub(shifted, magic))])
        value = builder.bitcast(horner(builder, DOUBLES, POLYNOMIAL64, f), LONGS)
        steps = builder.sub(builder.bitcast(shifted, LONGS), spread(builder, c, LONGS))
        return builder.bitcast(builder.add(value, builder.shl(steps, constant(LONGS, 52))), DOUBLES)

    return D16(D16, types.float64, types.float64, types.int64), emit
