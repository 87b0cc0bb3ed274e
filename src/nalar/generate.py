"""The loop: feed the prompt, draw, emit, feed the token, until the reply ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field

from nalar.chain import Chain
from nalar.completion import Event, Stats
from nalar.engines.base import Engine, Rows, Sequence, Work
from nalar.errors import EngineFull, InvalidValue, PromptTooLong
from nalar.params import SamplingParams
from nalar.prefixes import Prefixes
from nalar.reply import Reply
from nalar.sampler import Sampler

__all__ = ["Host", "Progress", "Request", "run"]

SLICE = 512  # prompt tokens a step: how soon a long prompt can be cancelled, and how often its progress shows

Progress = Callable[[int, int], None]  # prompt tokens done, prompt tokens in all


@dataclass(frozen=True, slots=True)
class Request:
    """One reply to be drawn: everything is resolved, nothing is left to chance but the draws."""

    prompt: tuple[int, ...]
    chain: Chain
    params: SamplingParams
    seed: int
    sequence: int = 0
    progress: Progress | None = None


@dataclass(slots=True)
class Host:
    """An engine with the sequences kept on it.  The lock covers a step together with the draws from its borrowed rows."""

    engine: Engine
    prefixes: Prefixes
    lock: threading.RLock = field(default_factory=threading.RLock)

    def step(self, work: Work) -> Rows:
        """One sequence's rows; idle sequences make room when the engine is full."""
        while True:
            try:
                return self.engine.step([work])[0]
            except EngineFull:
                if not self.prefixes.free_one():
                    raise


def run(host: Host, request: Request, stats: Stats) -> Iterator[Event]:
    """The events of one reply.  Closing the iterator cancels it and frees its sequence."""
    check_prompt(host, request.prompt)
    started = time.perf_counter()
    sampler = Sampler(request.chain, request.seed, request.sequence, request.prompt, vocabulary=host.engine.vocabulary.size)
    reply = Reply(request.params, host.engine.vocabulary)
    with host.lock:
        sequence, stats.reused = host.prefixes.acquire(request.prompt)
    try:
        event = yield from _draw(host, request, sampler, reply, sequence, stats, started)
    except BaseException:
        with host.lock:
            host.prefixes.drop(sequence)
        raise
    with host.lock:
        host.prefixes.keep(sequence)
    stats.seconds = time.perf_counter() - started
    yield event


def check_prompt(host: Host, prompt: tuple[int, ...]) -> None:
    """A prompt of at least one token that fits the context."""
    if not prompt:
        raise InvalidValue("prompt must hold at least one token, got an empty prompt")
    context = host.engine.limits.context
    if len(prompt) > context:
        raise PromptTooLong(f"prompt must fit the context of {context} tokens, got {len(prompt)} tokens")


def _draw(
    host: Host, request: Request, sampler: Sampler, reply: Reply, sequence: Sequence, stats: Stats, started: float
) -> Generator[Event, None, Event]:
    """Yields all events but the last, which it returns."""
    stats.prompt = len(request.prompt)
    pending = request.prompt[stats.reused :]
    while True:
        with host.lock:
            rows = _feed(host, sequence, pending, request.progress)
            drawn = sampler.sample(rows[0], logprobs=request.params.logprobs)
        if stats.emitted == 0:
            stats.prompt_seconds = time.perf_counter() - started
        stats.emitted += 1
        stats.steps = stats.emitted - 1
        event = reply.take(drawn, room=len(sequence.tokens) < host.engine.limits.context)
        if event.finish is not None:
            return event
        yield event
        pending = (drawn.token,)


def _feed(host: Host, sequence: Sequence, tokens: tuple[int, ...], progress: Progress | None) -> Rows:
    """Append ``tokens`` in slices and return the row after the last; the last two share a slice."""
    size = min(SLICE, host.engine.limits.step_tokens)
    while len(tokens) > size:
        cut = size - 1 if len(tokens) == size + 1 else size
        host.step(Work(sequence, tokens[:cut], rows=0))
        tokens = tokens[cut:]
        if progress is not None:
            progress(len(sequence.tokens), len(sequence.tokens) + len(tokens))
    return host.step(Work(sequence, tokens))
