"""Prompt in, rows out: how a sequence is brought up to date, in slices that can be cancelled."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from nalar.engines.base import Engine, Rows, Sequence, Work
from nalar.errors import InvalidValue, PromptTooLong
from nalar.prefixes import Prefixes

__all__ = ["Host", "Progress", "check_prompt", "feed_ahead", "feed_with_rows"]

SLICE = 512  # prompt tokens a step: how soon a long prompt can be cancelled, and how often its progress shows
ROWS_SLICE = 64  # the same where every row is wanted, which costs vocabulary · 4 bytes each

Progress = Callable[[int, int], None]  # prompt tokens done, prompt tokens in all


@dataclass(slots=True)
class Host:
    """An engine with the sequences kept on it.  The lock covers a step together with the draws from its borrowed rows."""

    engine: Engine
    prefixes: Prefixes
    lock: threading.RLock = field(default_factory=threading.RLock)

    def step(self, work: list[Work]) -> list[Rows]:
        """The rows of ``work``; idle sequences make room when the engine is full."""
        return self.prefixes.make_room(lambda: self.engine.step(work))

    @contextmanager
    def keeping(self, sequence: Sequence) -> Iterator[None]:
        """Keep ``sequence`` for a next prompt when the block ends well; free it when it does not."""
        try:
            yield
        except BaseException:
            with self.lock:
                self.prefixes.drop(sequence)
            raise
        with self.lock:
            self.prefixes.keep(sequence)


def check_prompt(host: Host, prompt: tuple[int, ...]) -> None:
    """A prompt of at least one token that fits the context."""
    if not prompt:
        raise InvalidValue("prompt must hold at least one token, got an empty prompt")
    context = host.engine.limits.context
    if len(prompt) > context:
        raise PromptTooLong(f"prompt must fit the context of {context} tokens, got {len(prompt)} tokens")


def feed_ahead(host: Host, sequence: Sequence, tokens: tuple[int, ...], progress: Progress | None = None) -> tuple[int, ...]:
    """Append all but the last slice of ``tokens``, and return that slice.

    Between slices other streams may use the engine; the last one is the caller's, who draws from its row under the same lock.
    """
    *before, last = slices(tokens, min(SLICE, host.engine.limits.step_tokens))
    total = len(sequence.tokens) + len(tokens)
    for part in before:
        with host.lock:
            host.step([Work(sequence, part, rows=0)])
        if progress is not None:
            progress(len(sequence.tokens), total)
    return last


def feed_with_rows(host: Host, sequence: Sequence, tokens: tuple[int, ...]) -> Iterator[tuple[int, Rows]]:
    """Append ``tokens`` and yield, slice by slice, how many came before and a row after each token."""
    done = 0
    for part in slices(tokens, min(ROWS_SLICE, host.engine.limits.step_tokens)):
        yield done, host.step([Work(sequence, part, rows=len(part))])[0]
        done += len(part)


def slices(tokens: tuple[int, ...], size: int) -> list[tuple[int, ...]]:
    """``tokens`` in parts of at most ``size``; the last two share a part, since a row may differ when decoded alone.

    >>> slices((1, 2, 3, 4, 5), 4)
    [(1, 2, 3), (4, 5)]
    """
    parts = []
    while len(tokens) > size:
        cut = size - 1 if len(tokens) == size + 1 and size > 2 else size
        parts.append(tokens[:cut])
        tokens = tokens[cut:]
    return [*parts, tokens]
