"""llama.cpp's context: the cache of all sequences and the one call that computes.  Thin, typed, no decisions."""

from __future__ import annotations

import ctypes
import threading
import weakref
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from nalar.engines.llama_library import library, log
from nalar.engines.llama_model import Model
from nalar.engines.slices import SLICE, Place
from nalar.errors import EngineError

__all__ = ["Context", "Shape"]

OK, NO_ROOM = 0, 1  # what llama_decode returns


@dataclass(frozen=True, slots=True)
class Shape:
    """How large a context is asked to be."""

    cells: int
    slots: int
    threads: int


class Context:
    """One llama.cpp context.  ``cells`` is read back: llama.cpp rounds what it is asked for."""

    def __init__(self, model: Model, shape: Shape) -> None:
        log.take_error("")
        with model.borrow() as pointer:
            self._pointer = library.llama_init_from_model(pointer, _parameters(shape))
            self._width = int(library.llama_vocab_n_tokens(library.llama_model_get_vocab(pointer)))
        if not self._pointer:
            raise EngineError(f"no context of {shape.cells} tokens: {log.take_error('llama.cpp gave no reason')}")
        self.cells = int(library.llama_n_ctx_seq(self._pointer))  # of a unified cache: all of it, for any sequence
        self._memory = library.llama_get_memory(self._pointer)
        self._batch = _Batch(SLICE + 1)
        self._computing = threading.Lock()
        # The finalizer holds the model, so that the weights outlive the context whatever order objects die in.
        self._finalizer = weakref.finalize(self, _free, self._pointer, self._computing, model)

    @property
    def alive(self) -> bool:
        """False after ``free``."""
        return self._finalizer.alive

    def free(self) -> None:
        """Give the cache's memory back; idempotent."""
        self._finalizer()

    def compute(self, places: list[Place]) -> None:
        """Append these tokens to their sequences.  Raises ``EngineError``; then the caller must restore the sequences."""
        batch = self._batch.fill(places)
        log.take_error("")
        with self._computing:
            code = library.llama_decode(self._pointer, batch)
        if code == OK:
            return
        what = "its cache has no room" if code == NO_ROOM else f"its decoder returned {code}"
        raise EngineError(f"llama.cpp failed, {what}: {log.take_error('it gave no reason')}")

    def rows(self, first: int, count: int) -> npt.NDArray[np.float32]:
        """``[count, width]``: the rows after the places ``first``, … of the last ``compute``, in llama.cpp's own memory."""
        if not count:
            return np.empty((0, self._width), np.float32)
        pointer = library.llama_get_logits_ith(self._pointer, first)
        if not pointer:
            raise EngineError(f"llama.cpp has no logits for token {first} of the batch")
        buffer: Any = (ctypes.c_float * (count * self._width)).from_address(ctypes.addressof(pointer.contents))
        buffer.owner = self  # forgotten rows keep the memory they look at alive
        return np.frombuffer(buffer, np.float32).reshape(count, self._width)

    def remove(self, slot: int, start: int = 0) -> bool:
        """Forget ``slot`` from position ``start`` on; False where the model cannot (a recurrent state, cut in part)."""
        return bool(library.llama_memory_seq_rm(self._memory, slot, start or -1, -1))

    def copy(self, source: int, target: int) -> None:
        """``target`` becomes ``source``, sharing its cells."""
        self.remove(target)  # onto a used slot llama.cpp merges the cells of both, without an error
        library.llama_memory_seq_cp(self._memory, source, target, -1, -1)

    def merge(self, source: int, target: int, start: int) -> None:
        """``target``, which is never computed, also holds the cells of ``source`` from position ``start`` on."""
        library.llama_memory_seq_cp(self._memory, source, target, start, -1)

    def length(self, slot: int) -> int:
        """How many tokens llama.cpp holds for ``slot``."""
        return int(library.llama_memory_seq_pos_max(self._memory, slot)) + 1


class _Batch:
    """A ``llama_batch`` over NumPy arrays: filling it is five assignments, where ctypes would loop."""

    def __init__(self, size: int) -> None:
        self._tokens, self._positions, self._slots = (np.zeros(size, np.int32) for _ in range(3))
        self._owners, self._wanted = np.ones(size, np.int32), np.zeros(size, np.int8)
        self._slot_pointers = self._slots.ctypes.data + np.arange(size, dtype=np.uintp) * self._slots.itemsize
        self._struct = library.llama_batch()
        for name, array in (("token", self._tokens), ("pos", self._positions), ("n_seq_id", self._owners),
                            ("seq_id", self._slot_pointers), ("logits", self._wanted)):
            setattr(self._struct, name, ctypes.cast(array.ctypes.data, dict(library.llama_batch._fields_)[name]))

    def fill(self, places: list[Place]) -> Any:
        size = len(places)
        assert size <= len(self._tokens), "a batch larger than the context's would abort the process"
        self._tokens[:size] = [place.token for place in places]
        self._positions[:size] = [place.position for place in places]
        self._slots[:size] = [place.slot for place in places]
        self._wanted[:size] = [place.wanted for place in places]
        self._struct.n_tokens = size
        return self._struct


def _parameters(shape: Shape) -> Any:
    parameters = library.llama_context_default_params()
    parameters.n_ctx, parameters.n_seq_max = shape.cells, shape.slots
    parameters.n_batch = parameters.n_ubatch = SLICE  # one call computes one slice
    parameters.n_threads = parameters.n_threads_batch = shape.threads  # several rows at once use the second
    # Flash attention stays on where llama.cpp turns it on: without it a row depends on the cells of its neighbours.
    parameters.kv_unified = True  # or a fork would copy, and one of a part of a sequence would abort the process
    return parameters


def _free(pointer: Any, computing: threading.Lock, model: Model) -> None:
    del model  # held until here
    if computing.acquire(blocking=False):  # at exit a daemon thread may still compute; then the system takes it all back
        library.llama_free(pointer)
