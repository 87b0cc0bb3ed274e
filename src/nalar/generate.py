"""The loop: feed the prompt, draw, emit, feed the token, until the reply ends."""

from __future__ import annotations

import time
from collections.abc import Generator
from dataclasses import dataclass, replace

from nalar.chain import Chain
from nalar.completion import Event, Stats
from nalar.engines.base import Rows, Sequence, Work
from nalar.feed import Host, Progress, feed_ahead
from nalar.params import SamplingParams
from nalar.reply import Reply
from nalar.sampler import Sampler
from nalar.trace import trace_row

__all__ = ["Request", "draw", "run", "sampler_of"]


@dataclass(frozen=True, slots=True)
class Request:
    """One reply to be drawn: everything is resolved, nothing is left to chance but the draws."""

    prompt: tuple[int, ...]
    chain: Chain
    params: SamplingParams
    seed: int
    sequence: int = 0
    progress: Progress | None = None
    trace: bool = False  # also record what each stage did, by the stages' own apply


def run(host: Host, request: Request, stats: Stats) -> Generator[Event]:
    """The events of one reply.  Closing the iterator cancels it and frees its sequence."""
    started = time.perf_counter()
    sampler = sampler_of(host, request)
    reply = Reply(request.params, host.engine.vocabulary)
    with host.lock:
        sequence, stats.reused = host.prefixes.acquire(request.prompt)
    with host.keeping(sequence):
        try:
            last = yield from _draw_all(host, request, sampler, reply, sequence, stats, started)
        finally:
            stats.seconds = time.perf_counter() - started
    yield last


def sampler_of(host: Host, request: Request) -> Sampler:
    """The sampler that draws ``request``."""
    return Sampler(request.chain, request.seed, request.sequence, request.prompt, vocabulary=host.engine.vocabulary.size)


def draw(sampler: Sampler, reply: Reply, rows: Rows, request: Request, *, room: bool) -> Event:
    """Draw from the last of ``rows``, and say what it means for the reply."""
    row = rows[-1]
    vocabulary = sampler.vocabulary
    trace = trace_row(row[:vocabulary], sampler.chain, sampler.history, sampler.key) if request.trace else None
    event = reply.take(sampler.sample(row, logprobs=request.params.logprobs), room=room)
    return event if trace is None else replace(event, trace=trace)


def _draw_all(
    host: Host, request: Request, sampler: Sampler, reply: Reply, sequence: Sequence, stats: Stats, started: float
) -> Generator[Event, None, Event]:
    """Yields all events but the last, which it returns."""
    stats.prompt = len(request.prompt)
    pending = feed_ahead(host, sequence, request.prompt[stats.reused :], request.progress)
    while True:
        with host.lock:
            rows = host.step([Work(sequence, pending)])[0]
            event = draw(sampler, reply, rows, request, room=len(sequence.tokens) < host.engine.limits.context)
        if stats.emitted == 0:
            stats.prompt_seconds = time.perf_counter() - started
            if request.progress is not None:
                request.progress(stats.prompt, stats.prompt)
        stats.steps = stats.emitted
        stats.emitted += 1
        if event.finish is not None:
            return event
        yield event
        pending = (event.token,)
