"""How kernels are compiled: ``inner`` for the parts, ``entry`` for what Python calls.

An entry compiles at its first call (one signature: all arguments are int64) and is cached; ``cache.py`` says where.
``error_model="numpy"`` divides without a check.  There is no fast-math flag anywhere: NaN and −inf mean what they mean.

Numba optimises every function it compiles together with all that it calls, and then again in each caller: with these kernels'
eighty parts that takes a minute.  The parts are never called from Python, so here they are only translated, and LLVM
optimises an entry's whole tree once.
"""

from __future__ import annotations

import ctypes

from numba import _dynfunc, njit
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler


@ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object, ctypes.py_object, ctypes.py_object)
def REFUSE(closure, arguments, keywords):  # noqa: N802
    """What stands where Python would find a part's machine code."""
    raise TypeError("a part of a kernel cannot be called from Python")


class PartLibrary(JITCodeLibrary):
    """The LLVM code of a part: neither linked, nor optimised, nor made executable; whoever calls it gets it whole."""

    def finalize(self):
        self._raise_if_finalized()
        self._finalized = True


class EntryLibrary(JITCodeLibrary):
    """The LLVM code of an entry: all parts that it reaches are linked in before it is optimised."""

    def finalize(self):
        self._linking_libraries = callers_first(self)
        super().finalize()


def callers_first(library):
    """All libraries that ``library`` reaches through parts, each before those that it calls: LLVM's linker drops a part that nothing
    linked so far refers to."""
    order, seen = [], set()

    def visit(one):
        for called in one._linking_libraries:
            if id(called) not in seen:
                seen.add(id(called))
                if isinstance(called, PartLibrary):
                    visit(called)
                order.append(called)

    visit(library)
    return order[::-1]


class PartCompiler(Compiler):
    """Translates, and leaves out what only Python's calls would need."""

    def __init__(self, typingctx, targetctx, library, args, return_type, flags, locals):
        flags.no_compile = flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
        library = PartLibrary(targetctx.codegen(), "part")
        super().__init__(typingctx, targetctx, library, args, return_type, flags, locals)

    def _compile_core(self):
        result = super()._compile_core()
        description = result.fndesc
        refuse, module = ctypes.cast(REFUSE, ctypes.c_void_p).value, description.lookup_module()
        handle = _dynfunc.make_function(module, description.qualname, "a part", refuse, result.environment, (result.library,))
        self.state.targetctx.insert_user_function(handle, description, [result.library])
        return result._replace(entry_point=handle)


class EntryCompiler(Compiler):
    def __init__(self, typingctx, targetctx, library, args, return_type, flags, locals):
        library = EntryLibrary(targetctx.codegen(), "entry")
        library.enable_object_caching()
        super().__init__(typingctx, targetctx, library, args, return_type, flags, locals)


inner = njit(error_model="numpy", nogil=True, pipeline_class=PartCompiler)
entry = njit(error_model="numpy", nogil=True, cache=True, pipeline_class=EntryCompiler)
