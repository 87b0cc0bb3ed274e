"""The default engine: GGUF models through llama.cpp's own functions, with rows that do not depend on their neighbours.

Price and promise.  Slices of 63 tokens (see ``slices``) make a row the same, bit for bit, however the text before it was cut
and whatever is computed beside it.  Two exceptions are left: a step of exactly one token, and a neighbour that leaves (see
``llama_cache``).  ``reproducible=True`` removes both, at about 60 % more time for a step of one token.  An engine belongs to
one thread at a time: a call while another runs is an error, never a race.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import numpy.typing as npt

from nalar.checks import check_flag, check_integer
from nalar.engines.base import Lease, Limits, Loaded, LoadOptions, Rows, Sequence, Work, lend
from nalar.engines.gguf_vocabulary import GgufVocabulary
from nalar.engines.llama_cache import OWN_SLOTS, Cache
from nalar.engines.llama_context import Context, Shape
from nalar.engines.llama_model import Model
from nalar.engines.slices import Place, cut, layout
from nalar.engines.weights import PACKAGED, find_weights
from nalar.errors import EngineError, EngineFull, InvalidValue

__all__ = ["LlamaEngine", "load"]

COMFORT = 8192  # cells: the default context, and how large a cache grows before sequences must share it
MOST_SEQUENCES = 256 - OWN_SLOTS  # llama.cpp has 256
MOST_THREADS = 512  # more would abort the process


def load(name: str, options: LoadOptions) -> Loaded:
    """The engine for ``name``: "smollm2", or a path to a .gguf file.

    ``options.context`` is in [1, the model's training context], by default that but at most 8192.  The cache has room for
    ``sequences`` full contexts up to 8192 tokens, or one full context if that is more; past it, sequences share it, and a
    step that does not fit raises ``EngineFull``.

    Raises ``ModelNotFound``, ``MissingPackage``, ``InvalidValue`` for an option out of range, ``EngineError`` without memory.
    """
    path = find_weights(name)
    model = Model(path)
    try:
        engine = LlamaEngine(model, options)
    except BaseException:
        model.free()
        raise
    return Loaded(engine, name if name in PACKAGED else path.stem, engine.release)


class LlamaEngine:
    """One model and one cache, shared by the open sequences.  See ``base.Engine`` for the contract.

    ``defaults`` are the model file's own sampling settings, as text, to be shown; ``cells`` is the cache's size in tokens.
    """

    def __init__(self, model: Model, options: LoadOptions) -> None:
        trained = model.training_context()
        context = min(trained, COMFORT)
        if options.context is not None:
            context = check_integer("context", options.context, 1, trained)
        sequences = check_integer("sequences", options.sequences, 1, MOST_SEQUENCES)
        threads = _default_threads() if options.threads is None else check_integer("threads", options.threads, 1, MOST_THREADS)
        slots = sequences + (OWN_SLOTS if check_flag("reproducible", options.reproducible) else 0)
        cells = min(context * sequences, max(context, COMFORT)) + options.reproducible  # llama.cpp rounds it up
        self._model = model
        self._context = Context(model, Shape(cells, slots, threads))
        self._cache = Cache(self._context, sequences, options.reproducible, recurrent=not model.can_truncate())
        self._open: dict[int, Sequence] = {}
        self._busy, self._lease = threading.Lock(), Lease()
        self.vocabulary = GgufVocabulary(model)
        self.defaults = model.sampling_defaults()
        self.limits = Limits(min(context, self._cache.capacity), self._cache.capacity, sequences, model.can_truncate(), True)

    @property
    def cells(self) -> int:
        """Tokens that all sequences together can hold; a forked sequence shares its prefix."""
        return self._cache.capacity

    @property
    def cells_used(self) -> int:
        """Tokens that they hold now."""
        return self._cache.used()

    def open(self) -> Sequence:
        """A new, empty sequence.  Raises ``EngineFull``."""
        with self._turn():
            return self._take_slot()

    def fork(self, sequence: Sequence) -> Sequence:
        """A sequence with the same tokens, sharing their cells.  Raises ``EngineFull``."""
        with self._turn():
            self._check_open(sequence)
            twin = self._take_slot()
            self._cache.share(sequence.slot, twin.slot)
            twin.tokens = list(sequence.tokens)
            return twin

    def truncate(self, sequence: Sequence, length: int) -> None:
        """Keep the first ``length`` tokens.  Raises ``EngineError`` where ``limits.can_truncate`` is False."""
        with self._turn():
            self._check_open(sequence)
            length = check_integer("length", length, 0, len(sequence.tokens))
            if length == len(sequence.tokens):
                return
            if not (self.limits.can_truncate or length == 0) or not self._cache.drop(sequence.slot, length):
                raise EngineError(f"this model cannot cut a sequence from {len(sequence.tokens)} tokens back to {length}")
            del sequence.tokens[length:]

    def close(self, sequence: Sequence) -> None:
        """Free the sequence's slot and cells; closing one again does nothing."""
        if sequence.closed:
            return
        with self._turn():
            self._check_open(sequence)
            self._discard(sequence)

    def step(self, work: list[Work]) -> list[Rows]:
        """Append each work's tokens and lend the rows after its last ``rows`` of them; an error leaves everything as it was.

        Raises ``InvalidValue`` for work that is none, ``EngineError`` past the context, ``EngineFull`` without free cells.
        """
        with self._turn():
            work = self._checked(work)
            lengths = [len(one.sequence.tokens) for one in work]
            try:
                rows = self._compute(work)
                for one in work:
                    one.sequence.tokens.extend(one.tokens)
                for one in work:
                    self._cache.take(one.sequence.slot, len(one.tokens))
            except BaseException:  # KeyboardInterrupt too: it arrives between two slices of a long prompt
                for one, length in zip(work, lengths, strict=True):
                    self._restore(one.sequence, length)
                raise
            ends = np.cumsum([one.rows for one in work])
            return [lend(rows[end - one.rows : end], self._lease) for one, end in zip(work, ends, strict=True)]

    def release(self) -> None:
        """Free the cache and the weights; idempotent.  Any later call raises ``EngineError``, and rows lent are gone.

        Raises ``EngineError`` while another thread computes: freeing under it would crash the process.
        """
        if not self._context.alive:
            return
        with self._turn():
            for sequence in self._open.values():
                sequence.closed = True
            self._open.clear()
            self._context.free()
            self._model.free()

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """One call at a time; each ends the lease of the rows lent before it."""
        if not self._busy.acquire(blocking=False):
            raise EngineError("the engine is busy with another call: it belongs to one thread at a time")
        try:
            if not self._context.alive:
                raise EngineError("the engine has been released; load the model again to use it")
            self._lease.ended = True
            self._lease = Lease()
            yield
        finally:
            self._busy.release()

    def _compute(self, work: list[Work]) -> npt.NDArray[np.float32]:
        """Every wanted row, in the order of ``work``: borrowed when one slice has them all, else gathered."""
        slices = list(cut(layout(work)))
        wanted = [sum(place.wanted for place in one) for one in slices]
        total, size = sum(wanted), self.vocabulary.size
        gathered = None if not slices or wanted[-1] == total else np.empty((total, size), np.float32)
        done, rows = 0, self._context.rows(0, 0)
        for places, count in zip(slices, wanted, strict=True):
            self._cache.compute(places)
            rows = self._context.rows(_first_wanted(places), count)
            if gathered is not None:
                gathered[done : done + count] = rows[:, :size]
            done += count
        return rows[:, :size] if gathered is None else gathered

    def _restore(self, sequence: Sequence, length: int) -> None:
        """Undo a failed step: llama.cpp keeps the slices that it had finished."""
        slot = sequence.slot
        del sequence.tokens[length:]
        if self._cache.restore(slot, length):
            return
        # A recurrent state has no way back but to read the tokens again.
        self._context.remove(slot)
        try:
            for places in cut(layout([Work(Sequence(slot), tuple(sequence.tokens), 0)])):
                self._cache.compute(places)
        except BaseException:
            self._discard(sequence)
            raise

    def _take_slot(self) -> Sequence:
        slot = next((slot for slot in range(self.limits.sequences) if slot not in self._open), None)
        if slot is None:
            raise EngineFull(f"all {self.limits.sequences} sequences are open; close one, or load with more sequences")
        self._context.remove(slot)  # whatever happened before, nobody reads a previous tenant's cells
        self._open[slot] = Sequence(slot)
        return self._open[slot]

    def _discard(self, sequence: Sequence) -> None:
        self._cache.drop(sequence.slot)
        sequence.tokens.clear()
        sequence.closed = True
        self._open.pop(sequence.slot, None)

    def _check_open(self, sequence: Sequence) -> None:
        if sequence.closed:
            raise EngineError("the sequence is closed")
        if self._open.get(sequence.slot) is not sequence:
            raise EngineError("the sequence belongs to another engine")

    def _checked(self, work: list[Work]) -> list[Work]:
        """The same work with plain integers, once everything about it is in order and there is room for it."""
        if len({id(one.sequence) for one in work}) < len(work):
            raise InvalidValue("work must name each sequence once a step")
        checked = [self._checked_one(f"work[{index}]", one) for index, one in enumerate(work)]
        needed = sum(len(one.tokens) for one in checked)
        if not self._cache.make_room(needed):
            used, room = self._cache.used(), self._cache.capacity
            raise EngineFull(f"the step adds {needed} tokens to {used} in a cache of {room}, which all sequences share")
        return checked

    def _checked_one(self, name: str, work: Work) -> Work:
        self._check_open(work.sequence)
        if not work.tokens:
            raise InvalidValue(f"{name}.tokens must hold at least one token, got none")
        tokens = tuple(check_integer(f"a token of {name}", token, 0, self.vocabulary.size - 1) for token in work.tokens)
        held, added, context = len(work.sequence.tokens), len(tokens), self.limits.context
        if held + added > context:
            raise EngineError(f"{held + added} tokens ({held} held, {added} new) do not fit the context of {context}")
        return Work(work.sequence, tokens, check_integer(f"{name}.rows", work.rows, 0, added))


def _first_wanted(places: list[Place]) -> int:
    return next((index for index, place in enumerate(places) if place.wanted), 0)


def _default_threads() -> int:
    """Half the cores this process may run on: threads wait for each other by spinning, so one core too many, shared with
    another process, costs up to fifty times what it brings."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // 2)
