"""Sixteen numbers at a time: the vector type and the few operations that the hot loops are written in.

Numba vectorises a plain loop only when its form pleases LLVM, and says nothing when it does not.  These types take that luck
away, and something else with it: sixteen lanes are sixteen lanes on every processor, so every sum is made in the same order
and has the same bits with AVX-512, AVX2 or SSE (without fused multiply-add hardware it is slow, and still the same).

    F16   sixteen float32        D16   sixteen float64

``fma`` and ``maximum`` are LLVM's own: one rounding, and NaN carried.
"""

from __future__ import annotations

from llvmlite import ir
from numba.core import types
from numba.core.datamodel.models import PrimitiveModel
from numba.extending import intrinsic, register_model

LANES = 16
FLOAT, DOUBLE, INT, LONG = ir.FloatType(), ir.DoubleType(), ir.IntType(32), ir.IntType(64)
FLOATS, DOUBLES = ir.VectorType(FLOAT, LANES), ir.VectorType(DOUBLE, LANES)
INTS, LONGS, BITS = ir.VectorType(INT, LANES), ir.VectorType(LONG, LANES), ir.VectorType(ir.IntType(1), LANES)


class Lanes(types.Type):
    """The Numba type of a vector: opaque, made and used by the functions below alone."""

    def __init__(self, name: str, vector: ir.Type) -> None:
        super().__init__(name)
        self.vector = vector


@register_model(Lanes)
class LanesModel(PrimitiveModel):
    """A vector is held as LLVM holds it."""

    def __init__(self, manager, kind):
        super().__init__(manager, kind, kind.vector)


F16, D16 = Lanes("float32x16", FLOATS), Lanes("float64x16", DOUBLES)
OF = {types.float32: F16, types.float64: D16}
I64 = types.int64


def pointer(builder, address, index, element):
    """Where element ``index`` of the array at ``address`` lies."""
    base = builder.inttoptr(address, element.as_pointer())
    return builder.gep(base, [index])


def constant(vector, value):
    """The same constant in each lane."""
    return ir.Constant(vector, [value] * LANES)


def spread(builder, scalar, vector):
    """One scalar in each lane."""
    single = builder.insert_element(ir.Constant(vector, ir.Undefined), scalar, ir.Constant(INT, 0))
    return builder.shuffle_vector(single, ir.Constant(vector, ir.Undefined), ir.Constant(INTS, [0] * LANES))


def call(builder, name, vector, arguments, *, flags=()):
    """An LLVM intrinsic over whole vectors."""
    suffix = {FLOATS: "v16f32", DOUBLES: "v16f64"}[vector]
    kind = ir.FunctionType(vector, [vector] * len(arguments))
    function = builder.module.declare_intrinsic(f"llvm.{name}.{suffix}", fnty=kind)
    return builder.call(function, arguments, fastmath=flags)


def halves(builder, vector, element, combine):
    """Fold the lanes to one scalar, always in the same order: lane i with lane i + 8, then i + 4, i + 2, i + 1."""
    size = LANES
    while size > 1:
        size //= 2
        undefined = ir.Constant(vector.type, ir.Undefined)
        low = builder.shuffle_vector(vector, undefined, ir.Constant(ir.VectorType(INT, size), list(range(size))))
        high = builder.shuffle_vector(vector, undefined, ir.Constant(ir.VectorType(INT, size), list(range(size, 2 * size))))
        vector = combine(builder, low, high)
    return builder.extract_element(vector, ir.Constant(INT, 0))


def _raw(element, vector, result):
    @intrinsic
    def load(typing, address, index):
        def emit(context, builder, signature, arguments):
            place = builder.bitcast(pointer(builder, *arguments, element), vector.as_pointer())
            return builder.load(place, align=element_size(element))

        return result(I64, I64), emit

    return load


def element_size(element):
    """Bytes of a scalar."""
    return {FLOAT: 4, DOUBLE: 8}[element] if element in (FLOAT, DOUBLE) else element.width // 8


load = _raw(FLOAT, FLOATS, F16)
load64 = _raw(DOUBLE, DOUBLES, D16)


@intrinsic
def store(typing, address, index, values):
    """Write sixteen numbers from element ``index`` of the array at ``address`` on."""
    element, vector = (FLOAT, FLOATS) if values == F16 else (DOUBLE, DOUBLES)

    def emit(context, builder, signature, arguments):
        place = builder.bitcast(pointer(builder, arguments[0], arguments[1], element), vector.as_pointer())
        builder.store(arguments[2], place, align=element_size(element))
        return context.get_dummy_value()

    return types.void(I64, I64, values), emit


def _scalar(element, result):
    @intrinsic
    def get(typing, address, index):
        def emit(context, builder, signature, arguments):
            return builder.load(pointer(builder, *arguments, element), align=element_size(element))

        return result(I64, I64), emit

    return get


def _scalar_store(element, kind):
    @intrinsic
    def put(typing, address, index, value):
        def emit(context, builder, signature, arguments):
            given = context.cast(builder, arguments[2], signature.args[2], kind)
            builder.store(given, pointer(builder, arguments[0], arguments[1], element), align=element_size(element))
            return context.get_dummy_value()

        return types.void(I64, I64, value), emit

    return put


get32, get64 = _scalar(FLOAT, types.float32), _scalar(DOUBLE, types.float64)
get_int, get_byte, get_half = _scalar(INT, types.int32), _scalar(ir.IntType(8), types.uint8), _scalar(ir.IntType(16), types.uint16)
put32, put64 = _scalar_store(FLOAT, types.float32), _scalar_store(DOUBLE, types.float64)
put_int, put_byte = _scalar_store(INT, types.int32), _scalar_store(ir.IntType(8), types.uint8)


@intrinsic
def lanes(typing, value):
    """``value``, a float32 or float64, in each lane."""
    result = OF[value]
    return result(value), lambda context, builder, signature, arguments: spread(builder, arguments[0], result.vector)


def _elementwise(emit_one, arity):
    def typed(typing, *given):
        def emit(context, builder, signature, arguments):
            return emit_one(builder, given[0].vector, arguments)

        return given[0](*given), emit

    if arity == 2:
        return intrinsic(lambda typing, a, b: typed(typing, a, b))
    return intrinsic(lambda typing, a, b, c: typed(typing, a, b, c))


add = _elementwise(lambda builder, vector, given: builder.fadd(*given), 2)
fused = _elementwise(lambda builder, vector, given: call(builder, "fma", vector, given), 3)
# nsz: which zero wins does not matter, and without it x86 needs three more instructions.
maximum = _elementwise(lambda builder, vector, given: call(builder, "maximum", vector, given, flags=("nsz",)), 2)


@intrinsic
def greatest(typing, values):
    """The largest lane; NaN if one of them is."""

    def emit(context, builder, signature, arguments):
        kind = ir.FunctionType(FLOAT, [FLOATS])
        function = builder.module.declare_intrinsic("llvm.vector.reduce.fmaximum.v16f32", fnty=kind)
        return builder.call(function, arguments, fastmath=("nsz",))

    return types.float32(F16), emit


@intrinsic
def total(typing, values):
    """The sum of the lanes in double precision."""

    def emit(context, builder, signature, arguments):
        wide = builder.fpext(arguments[0], DOUBLES) if values == F16 else arguments[0]
        return halves(builder, wide, DOUBLE, lambda builder, low, high: builder.fadd(low, high))

    return types.float64(values), emit


@intrinsic
def widen(typing, values):
    """Sixteen float32 as float64, exactly."""
    return D16(F16), lambda context, builder, signature, arguments: builder.fpext(arguments[0], DOUBLES)


@intrinsic
def at_least(typing, values, bound):
    """Sixteen bits: which lanes are >= ``bound``, a float32."""

    def emit(context, builder, signature, arguments):
        bits = builder.fcmp_ordered(">=", arguments[0], spread(builder, arguments[1], FLOATS))
        return builder.zext(builder.bitcast(bits, ir.IntType(LANES)), LONG)

    return I64(F16, types.float32), emit


@intrinsic
def where_at_least(typing, values, bound, numbers):
    """``numbers``, sixteen float64, in the lanes whose float32 in ``values`` is >= ``bound``, and 0 in the others."""

    def emit(context, builder, signature, arguments):
        bits = builder.fcmp_ordered(">=", arguments[0], spread(builder, arguments[1], FLOATS))
        return builder.select(bits, arguments[2], constant(DOUBLES, 0.0))

    return D16(F16, types.float32, D16), emit


@intrinsic
def pack(typing, values, first, bits, floats, ints, used):
    """Append the lanes whose bit is set to the array ``floats``, and their ids, ``first`` + lane, to ``ints``, from place ``used`` on.

    All sixteen places are written, so both arrays need room for sixteen more.
    """

    def emit(context, builder, signature, arguments):
        given, start, mask, floats, ints, used = arguments
        chosen = builder.bitcast(builder.trunc(mask, ir.IntType(LANES)), BITS)
        ids = builder.add(spread(builder, builder.trunc(start, INT), INTS), ir.Constant(INTS, list(range(LANES))))
        for vector, name, element, values, base in ((FLOATS, "v16f32", FLOAT, given, floats), (INTS, "v16i32", INT, ids, ints)):
            kind = ir.FunctionType(vector, [vector, BITS, vector])
            function = builder.module.declare_intrinsic(f"llvm.experimental.vector.compress.{name}", fnty=kind)
            packed = builder.call(function, [values, chosen, ir.Constant(vector, ir.Undefined)])
            place = builder.bitcast(pointer(builder, base, used, element), vector.as_pointer())
            builder.store(packed, place, align=4)
        return context.get_dummy_value()

    return types.void(F16, I64, I64, I64, I64, I64), emit


@intrinsic
def count_bits(typing, bits):
    """How many bits are set."""
    return I64(I64), lambda context, builder, signature, arguments: builder.ctpop(arguments[0])


@intrinsic
def prefetch(typing, address):
    """Ask for the memory at ``address``; an address outside the array does no harm."""

    def emit(context, builder, signature, arguments):
        pointed = ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [pointed, INT, INT, INT])
        function = builder.module.declare_intrinsic("llvm.prefetch", [pointed], kind)
        place = builder.inttoptr(arguments[0], pointed)
        builder.call(function, [place, ir.Constant(INT, 0), ir.Constant(INT, 3), ir.Constant(INT, 1)])  # read, keep, data
        return context.get_dummy_value()

    return types.void(I64), emit
