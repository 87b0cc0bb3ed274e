"""A model file opened by llama.cpp: its weights in memory, and what its metadata says."""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nalar.engines.llama_library import library, log
from nalar.errors import EngineError, ModelNotFound

__all__ = ["Model", "read_text"]

SAMPLING = "general.sampling."


class Model:
    """The weights.  Every use goes through ``borrow``, so that ``free`` can neither race with one nor be followed by one."""

    def __init__(self, path: Path) -> None:
        log.take_error("")
        pointer = library.llama_model_load_from_file(os.fsencode(path), library.llama_model_default_params())
        if not pointer:
            raise ModelNotFound(f"model {str(path)!r} could not be loaded: {log.take_error('llama.cpp gave no reason')}")
        self._lock, self._pointer = threading.Lock(), pointer
        self._finalizer = weakref.finalize(self, library.llama_model_free, pointer)
        problem = _why_not_a_generator(pointer)
        if problem:
            self.free()
            raise ModelNotFound(f"model {str(path)!r} {problem}")

    @contextmanager
    def borrow(self) -> Iterator[Any]:
        """The C pointer for as long as the block runs.  Raises ``EngineError`` after ``free``."""
        with self._lock:
            if not self._finalizer.alive:
                raise EngineError("the model has been released; load it again to use it")
            yield self._pointer

    def free(self) -> None:
        """Give the weights' memory back; idempotent."""
        with self._lock:
            self._finalizer()

    def training_context(self) -> int:
        """Tokens in the longest text the model was trained on."""
        with self.borrow() as pointer:
            return int(library.llama_model_n_ctx_train(pointer))

    def can_truncate(self) -> bool:
        """Whether a sequence can be cut back.  A recurrent state has no past to return to."""
        with self.borrow() as pointer:
            return not (library.llama_model_is_recurrent(pointer) or library.llama_model_is_hybrid(pointer))

    def chat_template(self) -> str | None:
        """The Jinja source of the default chat template, or None."""
        with self.borrow() as pointer:
            source = library.llama_model_chat_template(pointer, None)
        return None if source is None else source.decode("utf-8", "replace")

    def sampling_defaults(self) -> dict[str, str]:
        """The file's own ``general.sampling.*`` values as text, without that prefix; to be shown, never applied."""
        with self.borrow() as pointer:
            pairs = [_entry(pointer, index) for index in range(library.llama_model_meta_count(pointer))]
        return {key.removeprefix(SAMPLING): value for key, value in pairs if key.startswith(SAMPLING)}


def read_text(write: Callable[[Any, int], int], size: int = 256) -> bytes:
    """The text that a C function writes into (buffer, size), however long.

    Such functions return the length, as a negative number or (like ``snprintf``) one past the buffer when it did not fit.
    """
    while True:
        buffer = ctypes.create_string_buffer(size)
        length = write(buffer, size)
        if 0 <= length < size:
            return buffer.raw[:length]
        size = abs(length) + 1


def _entry(pointer: Any, index: int) -> tuple[str, str]:
    key = read_text(lambda buffer, size: library.llama_model_meta_key_by_index(pointer, index, buffer, size))
    value = b""
    if key.startswith(SAMPLING.encode()):  # the tokenizer's entries are megabytes of text
        value = read_text(lambda buffer, size: library.llama_model_meta_val_str_by_index(pointer, index, buffer, size))
    return key.decode("utf-8", "replace"), value.decode("utf-8", "replace")


def _why_not_a_generator(pointer: Any) -> str | None:
    if library.llama_model_has_encoder(pointer) or not library.llama_model_has_decoder(pointer):
        return "is not a decoder-only language model"
    if library.llama_model_is_diffusion(pointer):
        return "is a diffusion model: it has no next-token logits"
    if not library.llama_vocab_n_tokens(library.llama_model_get_vocab(pointer)):
        return "has no vocabulary"
    return None
