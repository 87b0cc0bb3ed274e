"""An engine that says exactly what a test wants: piece after piece, whatever was drawn before.

    model = scripted([b"Hi", b"!\\n", b"User"])
    model.generate(PROMPT, temperature=0, stop="\\n")

A step of a script is one token's bytes; a list of them, the best first (a mask that takes the best leaves the next); or a whole
row of logits, with −inf for further ids.  Equal bytes are one id.  ``END`` and ``OTHER_END`` are end ids without bytes.  After
its last step the script says ``b"~"``.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Ids
from dataclasses import dataclass
from typing import Any

import numpy as np

from nalar.chain import Chain
from nalar.engines.base import Lease, Limits, Message, Rows, Sequence, Work, lend
from nalar.errors import EngineFull
from nalar.model import Model

__all__ = ["END", "OTHER_END", "PROMPT", "REST", "Scripted", "ScriptedVocabulary", "scripted", "told"]

PROMPT = (0,)  # one id, so that step i of the script is the row after i drawn tokens
END, OTHER_END = b"<end>", b"<other end>"
REST = b"~"
STEP, UNSAID = 8.0, -60.0  # between choices of a step; every id that a step does not name

Step = bytes | list[bytes] | np.ndarray


@dataclass(frozen=True)
class ScriptedVocabulary:
    """Id 0 is the prompt's, 1 and 2 are the end ids, 3 is ``REST``, then the script's pieces in order of appearance."""

    pieces: tuple[bytes, ...]
    ends: frozenset[int] = frozenset({1, 2})
    begin: tuple[int, ...] = ()
    chat_template: str | None = None

    @property
    def size(self) -> int:
        return len(self.pieces)

    @property
    def controls(self) -> dict[str, int]:
        return {END.decode(): 1, OTHER_END.decode(): 2}

    def id_of(self, piece: bytes) -> int:
        return {END: 1, OTHER_END: 2}.get(piece) or self.pieces.index(piece, 3)

    def encode(self, text: str) -> list[int]:
        raise NotImplementedError(f"a script's prompt is given as ids, got {text!r}")

    def encode_chat(self, messages: list[Message]) -> list[int]:
        raise NotImplementedError(f"a script's prompt is given as ids, got {messages!r}")


class Scripted:
    """``rows[i]`` [vocabulary, or wider: padding] is what follows the token at place i; the last row repeats."""

    def __init__(self, vocabulary: ScriptedVocabulary, rows: Ids[Any], *, context: int = 4096, sequences: int = 8) -> None:
        self.vocabulary = vocabulary
        self.limits = Limits(context, step_tokens=512, sequences=sequences, can_truncate=True, can_fork=True)
        self._rows = [np.asarray(row, np.float32) for row in rows]
        self._lease = Lease()
        self.open_slots: set[int] = set()

    def open(self) -> Sequence:
        self._lease.ended = True
        slot = next((slot for slot in range(self.limits.sequences) if slot not in self.open_slots), None)
        if slot is None:
            raise EngineFull("all sequences are open")
        self.open_slots.add(slot)
        return Sequence(slot)

    def fork(self, sequence: Sequence) -> Sequence:
        twin = self.open()
        twin.tokens.extend(sequence.tokens)
        return twin

    def truncate(self, sequence: Sequence, length: int) -> None:
        self._lease.ended = True
        del sequence.tokens[length:]

    def close(self, sequence: Sequence) -> None:
        self._lease.ended = True
        if not sequence.closed:
            self.open_slots.discard(sequence.slot)
            sequence.tokens.clear()
            sequence.closed = True

    def step(self, work: list[Work]) -> list[Rows]:
        self._lease.ended = True
        self._lease = Lease()
        lent = []
        for item in work:
            assert not item.sequence.closed
            item.sequence.tokens.extend(item.tokens)
            length = len(item.sequence.tokens)
            assert length <= self.limits.context, "the loop must not feed past the context"
            said = [self._rows[min(place, len(self._rows) - 1)] for place in range(length - item.rows, length)]
            lent.append(lend(np.array(said, np.float32).reshape(item.rows, -1), self._lease))
        return lent


def scripted(script: Ids[Step], *, pieces: Mapping[int, bytes] | None = None, **limits: Any) -> Model:
    """A model that follows ``script``.  ``pieces``: the bytes of more ids."""
    said = [piece for step in script if not isinstance(step, np.ndarray) for piece in ([step] if isinstance(step, bytes) else step)]
    known = [b"", b"", b"", REST, *(piece for piece in dict.fromkeys(said) if piece not in (END, OTHER_END, REST))]
    wide = max([len(known), *(token + 1 for token in pieces or ()), *(step.size for step in script if isinstance(step, np.ndarray))])
    known += [b"?"] * (wide - len(known))
    for token, piece in (pieces or {}).items():
        known[token] = piece
    vocabulary = ScriptedVocabulary(tuple(known))
    return Model(Scripted(vocabulary, [_row(step, vocabulary) for step in [*script, REST]], **limits))


def told(model: Model, *, chain: Chain | None = None, **fields: Any) -> list[str]:
    """The pieces of text that a stream sends, token by token: the empty ones too."""
    law = {"temperature": 0} if chain is None else {}
    events, _ = model.events(model.request(PROMPT, chain=chain, **law, **fields))
    return [event.text for event in events]


def _row(step: Step, vocabulary: ScriptedVocabulary) -> np.ndarray:
    if isinstance(step, np.ndarray):
        return np.concatenate([step, np.full(max(0, vocabulary.size - step.size), -np.inf)])
    row = np.full(vocabulary.size, UNSAID)
    for place, piece in enumerate([step] if isinstance(step, bytes) else step):
        row[vocabulary.id_of(piece)] = -STEP * place
    return row
