"""A language model without weights: bytes as tokens, a small predictable law, the whole engine contract.

It runs the product in a second on any machine.  Ids 0 … 255 are the bytes, so characters split over tokens; then come two
end ids and three roles.  Its law is in `toy_law`: it has read a few short texts, repeats what it said before (so drafts
from the context are often accepted), and ends a reply where its texts ended.  A row depends on the token ids of its
sequence alone: not on the batch, not on how the tokens were divided into steps.

Rows whose lease has ended are overwritten with NaN, so that a caller who keeps one too long finds out here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from nalar.checks import check_integer
from nalar.engines.base import Lease, Limits, Loaded, LoadOptions, Message, Rows, Sequence, Work, lend
from nalar.engines.messages import check_messages
from nalar.engines.toy_law import END_OF_TEXT, MARK, Law, as_text
from nalar.errors import EngineError, EngineFull, InvalidType, InvalidValue

__all__ = ["CONTEXT", "Toy", "ToyVocabulary", "load"]

CONTEXT = 4096  # tokens a sequence can hold, unless asked otherwise
STEP_TOKENS = 8192
ROLES = {"system": 258, "user": 259, "assistant": 260}
CONTROLS = {"<|end|>": MARK, "<|end_of_text|>": END_OF_TEXT, **{f"<|{name}|>": token for name, token in ROLES.items()}}
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def load(name: str, options: LoadOptions) -> Loaded:
    """The toy as ``nalar.load("toy")`` gets it.  It has no threads and is always reproducible, so it ignores those options."""
    context = CONTEXT if options.context is None else options.context
    engine = Toy(context=context, sequences=options.sequences)
    return Loaded(engine, name, engine.release)


@dataclass(frozen=True, slots=True)
class ToyVocabulary:
    """The bytes, ``<|end|>`` (256), ``<|end_of_text|>`` (257) and the roles ``<|system|>``, ``<|user|>``, ``<|assistant|>``."""

    size: int = 261
    ends: frozenset[int] = frozenset({MARK, END_OF_TEXT})
    pieces: tuple[bytes, ...] = (*(bytes([byte]) for byte in range(256)), *(b"",) * 5)
    controls: Mapping[str, int] = field(default_factory=lambda: CONTROLS, hash=False)
    begin: tuple[int, ...] = ()
    chat_template: str | None = CHAT_TEMPLATE

    def encode(self, text: str) -> list[int]:
        """The UTF-8 bytes of ``text``; never a control token, whatever the text says."""
        if not isinstance(text, str):
            raise InvalidType(f"text must be a string, got {text!r}")
        try:
            return list(text.encode())
        except UnicodeEncodeError:
            raise InvalidValue(f"text must be text that UTF-8 can encode, got {text!r}") from None

    def encode_chat(self, messages: list[Message]) -> list[int]:
        """Each message as its role, its bytes and ``<|end|>``; then ``<|assistant|>``."""
        ids: list[int] = []
        for message in check_messages(messages):
            ids += [ROLES[message["role"]], *self.encode(message["content"]), MARK]
        return [*ids, ROLES["assistant"]]


class Toy:
    """The toy model.

    Args:
        context: Tokens a sequence can hold.
        sequences: Sequences open at the same time.
        step_tokens: Tokens one step can take, all sequences together.
    """

    def __init__(self, *, context: int = CONTEXT, sequences: int = 8, step_tokens: int = STEP_TOKENS) -> None:
        self.vocabulary = ToyVocabulary()
        self.limits = Limits(
            context=check_integer("context", context, 1),
            step_tokens=check_integer("step_tokens", step_tokens, 1),
            sequences=check_integer("sequences", sequences, 1),
            can_truncate=True,
            can_fork=True,
        )
        self._law = Law(self.vocabulary.size)
        self._open: dict[int, Sequence] = {}
        self._texts: dict[int, str] = {}  # [slot] → its tokens as the law reads them, kept because writing 4,096 anew is slow
        self._lease = Lease()
        self._lent: list[npt.NDArray[np.float32]] = []

    def open(self) -> Sequence:
        """An empty sequence in the lowest free slot."""
        self._end_lease()
        return self._occupy([], "")

    def fork(self, sequence: Sequence) -> Sequence:
        """A new sequence that holds the same tokens."""
        self._end_lease()
        self._check_open(sequence)
        return self._occupy(list(sequence.tokens), self._texts[sequence.slot])

    def truncate(self, sequence: Sequence, length: int) -> None:
        """Keep the first ``length`` tokens, as if the others had never been fed."""
        self._end_lease()
        self._check_open(sequence)
        length = check_integer("length", length, 0, len(sequence.tokens))
        del sequence.tokens[length:]
        self._texts[sequence.slot] = self._texts[sequence.slot][:length]

    def close(self, sequence: Sequence) -> None:
        """Free the slot; closing twice is closing once."""
        self._end_lease()
        if sequence.closed:
            return
        self._check_open(sequence)
        del self._open[sequence.slot], self._texts[sequence.slot]
        sequence.tokens.clear()
        sequence.closed = True

    def release(self) -> None:
        """Close every sequence."""
        self._end_lease()
        for sequence in list(self._open.values()):
            self.close(sequence)

    def step(self, work: list[Work]) -> list[Rows]:
        """Feed each sequence its tokens; one block of rows a Work.  An error leaves every sequence as it was."""
        self._end_lease()
        added = [self._check_work(item) for item in work]
        self._check_step(work)
        texts = [self._texts[item.sequence.slot] + as_text(tokens) for item, tokens in zip(work, added, strict=True)]
        computed = [self._rows(text, item.rows) for item, text in zip(work, texts, strict=True)]
        for item, tokens, text in zip(work, added, texts, strict=True):  # nothing can fail from here on
            item.sequence.tokens.extend(tokens)
            self._texts[item.sequence.slot] = text
        self._lent, self._lease = computed, Lease()
        return [lend(rows, self._lease) for rows in computed]

    def _rows(self, text: str, wanted: int) -> npt.NDArray[np.float32]:
        """The rows after the last ``wanted`` characters of ``text``, each computed by itself."""
        rows = np.empty((wanted, self.vocabulary.size), np.float32)
        for row in range(wanted):
            rows[row] = self._law.logits(text, len(text) - wanted + row + 1)
        return rows

    def _occupy(self, tokens: list[int], text: str) -> Sequence:
        slot = next((slot for slot in range(self.limits.sequences) if slot not in self._open), None)
        if slot is None:
            raise EngineFull(f"all {self.limits.sequences} sequences are open; close one, or load the model with more")
        self._open[slot], self._texts[slot] = Sequence(slot, tokens), text
        return self._open[slot]

    def _end_lease(self) -> None:
        self._lease.ended = True
        for rows in self._lent:
            rows.fill(np.nan)
        self._lent = []

    def _check_open(self, sequence: Sequence) -> None:
        if sequence.closed:
            raise EngineError(f"sequence in slot {sequence.slot} is closed")
        if self._open.get(sequence.slot) is not sequence:
            raise EngineError(f"sequence in slot {sequence.slot} belongs to another engine")

    def _check_work(self, item: Work) -> list[int]:
        """The new tokens as plain integers, once everything about this item is in order."""
        self._check_open(item.sequence)
        new = [check_integer("token id", token, 0, self.vocabulary.size - 1) for token in item.tokens]
        if not new:
            raise InvalidValue("work must hold at least one token, got none")
        check_integer("rows", item.rows, 0, len(new))
        held = len(item.sequence.tokens)
        if held + len(new) > self.limits.context:
            raise EngineError(
                f"the sequence would hold {held + len(new)} tokens ({held} held, {len(new)} new), the context is {self.limits.context}"
            )
        return new

    def _check_step(self, work: list[Work]) -> None:
        """What only the work as a whole can break."""
        total = sum(len(item.tokens) for item in work)
        if total > self.limits.step_tokens:
            raise EngineError(f"a step takes at most {self.limits.step_tokens} tokens, got {total}; feed a long prompt in several steps")
        if len({item.sequence.slot for item in work}) < len(work):
            raise InvalidValue("work must name each sequence at most once a step, got one twice")
