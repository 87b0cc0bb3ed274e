"""Copy me: an engine of your own, around one function from tokens to logits.

Replace ``next_logits`` with your model and ``Bytes`` with its tokeniser; keep the bookkeeping, which is what the contract is about.
Then run the battery in ``test_engine.py``.  An entry point makes ``nalar.load("mine")`` find it:

    [project.entry-points."nalar.engines"]
    mine = "my_package.engine:load"
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from nalar.checks import check_integer
from nalar.engines.base import Lease, Limits, Loaded, LoadOptions, Message, Rows, Sequence, Work, lend
from nalar.errors import EngineError, EngineFull, InvalidValue

__all__ = ["Bytes", "Mine", "load"]

END = 256


def load(name: str, options: LoadOptions) -> Loaded:
    """What the entry point names.  ``name`` is what the person wrote, "mine" or "mine:anything"; an option left None is yours to choose."""
    engine = Mine(context=options.context or 1024, sequences=options.sequences)
    return Loaded(engine, name, release=engine.release)


def next_logits(tokens: list[int]) -> npt.NDArray[np.float32]:
    """YOUR MODEL: the logits [vocabulary] after ``tokens``.  This one likes the byte that followed last time."""
    logits = np.full(END + 1, -4.0, np.float32)
    logits[32:127] = 0.0  # printable
    for place in range(len(tokens) - 1):
        if tokens[place] == tokens[-1]:
            logits[tokens[place + 1]] += 3.0
    return logits


class Bytes:
    """YOUR TOKENISER: the bytes, and one end id."""

    size = END + 1
    ends = frozenset({END})
    pieces = (*(bytes([byte]) for byte in range(256)), b"")  # b"" for control tokens: they add nothing to the text
    controls: Mapping[str, int] = MappingProxyType({"<end>": END})
    begin = ()  # what the model wants before a plain prompt
    chat_template = None

    def encode(self, text: str) -> list[int]:
        """Text anywhere: no control token, whatever it says, and no ``begin``."""
        return list(text.encode())

    def encode_chat(self, messages: list[Message]) -> list[int]:
        """Here, and only here, control tokens may come in."""
        return [token for message in messages for token in (*self.encode(message["content"]), END)]


class Mine:
    """The engine.  Rows are lent until the next call; an error leaves every sequence as it was."""

    def __init__(self, *, context: int, sequences: int) -> None:
        self.vocabulary = Bytes()
        self.limits = Limits(context=context, step_tokens=context, sequences=sequences, can_truncate=True, can_fork=True)
        self._open: dict[int, Sequence] = {}
        self._lease = Lease()

    def open(self) -> Sequence:
        self._begin()
        return self._occupy([])

    def fork(self, sequence: Sequence) -> Sequence:
        self._begin(sequence)
        return self._occupy(list(sequence.tokens))  # a real model shares the prefix's cache here

    def truncate(self, sequence: Sequence, length: int) -> None:
        self._begin(sequence)
        del sequence.tokens[check_integer("length", length, 0, len(sequence.tokens)) :]

    def close(self, sequence: Sequence) -> None:
        self._begin()
        if not sequence.closed:  # closing twice is closing once
            self._begin(sequence)
            del self._open[sequence.slot]
            sequence.tokens.clear()
            sequence.closed = True

    def release(self) -> None:
        for sequence in list(self._open.values()):
            self.close(sequence)

    def step(self, work: list[Work]) -> list[Rows]:
        self._begin(*(item.sequence for item in work))
        for item in work:  # everything that can fail comes first
            self._check(item)
        if sum(len(item.tokens) for item in work) > self.limits.step_tokens:
            raise EngineError(f"a step takes at most {self.limits.step_tokens} tokens")
        if len({item.sequence.slot for item in work}) < len(work):
            raise InvalidValue("work must name each sequence at most once a step, got one twice")
        rows = [self._rows(item) for item in work]
        for item in work:
            item.sequence.tokens.extend(item.tokens)
        self._lease = Lease()
        return [lend(each, self._lease) for each in rows]

    def _rows(self, item: Work) -> npt.NDArray[np.float32]:
        tokens = [*item.sequence.tokens, *item.tokens]
        ends = range(len(tokens) - item.rows + 1, len(tokens) + 1)
        return np.array([next_logits(tokens[:end]) for end in ends], np.float32).reshape(item.rows, self.vocabulary.size)

    def _occupy(self, tokens: list[int]) -> Sequence:
        slot = next((slot for slot in range(self.limits.sequences) if slot not in self._open), None)
        if slot is None:
            raise EngineFull(f"all {self.limits.sequences} sequences are open")
        self._open[slot] = Sequence(slot, tokens)
        return self._open[slot]

    def _begin(self, *sequences: Sequence) -> None:
        """Every call ends the lease of the rows before it, and takes open sequences of this engine only."""
        self._lease.ended = True
        for sequence in sequences:
            if sequence.closed or self._open.get(sequence.slot) is not sequence:
                raise EngineError(f"sequence in slot {sequence.slot} is closed, or another engine's")

    def _check(self, item: Work) -> None:
        if not item.tokens:
            raise InvalidValue("work must hold at least one token, got none")
        for token in item.tokens:
            check_integer("token id", token, 0, self.vocabulary.size - 1)
        check_integer("rows", item.rows, 0, len(item.tokens))
        if len(item.sequence.tokens) + len(item.tokens) > self.limits.context:
            raise EngineError(f"the sequence would grow beyond the context of {self.limits.context} tokens")
