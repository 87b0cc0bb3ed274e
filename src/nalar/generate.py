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
from nalar.speculative.drafts.base import DraftSource
from nalar.speculative.proposal import NOTHING, Proposal
from nalar.speculative.verdict import Verdict
from nalar.speculative.verifier import RuleLike
from nalar.trace import Trace, trace_row

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
    draft: DraftSource | None = None
    rule: RuleLike = None


def run(host: Host, request: Request, stats: Stats) -> Generator[Event]:
    """The events of one reply.  Closing the iterator cancels it and frees its sequence."""
    started = time.perf_counter()
    speculation = Speculation(request, host, stats)
    try:
        with host.lock:
            sequence, stats.reused = host.prefixes.acquire(request.prompt)
        with host.keeping(sequence):
            last = yield from _draw_all(host, request, speculation, sequence, stats, started)
    finally:
        with host.lock:  # a draft may live on the same engine, whose rows are lent until its next call
            speculation.close()
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
    host: Host, request: Request, speculation: Speculation, sequence: Sequence, stats: Stats, started: float
) -> Generator[Event, None, Event]:
    """Yields all events but the last, which it returns."""
    stats.prompt = len(request.prompt)
    pending = feed_ahead(host, sequence, request.prompt[stats.reused :], request.progress)
    while True:
        with host.lock:
            events = speculation.step(sequence, pending)
        if stats.prompt_seconds == 0:
            stats.prompt_seconds = time.perf_counter() - started
            if request.progress is not None:
                request.progress(stats.prompt, stats.prompt)
        else:
            stats.steps += 1
        yield from events[:-1]
        if events[-1].finish is not None:
            return events[-1]
        yield events[-1]
        pending = (events[-1].token,)


class Speculation:
    """One reply's steps: propose, run the engine, verify, emit; and take back what did not stand."""

    def __init__(self, request: Request, host: Host, stats: Stats) -> None:
        self._request, self._host, self._stats = request, host, stats
        self._sampler = sampler_of(host, request)
        self._reply = Reply(request.params, host.engine.vocabulary)
        self._draft = None if request.draft is None else request.draft.begin(host.engine)
        if self._draft is not None:
            self._draft.observe(request.prompt)

    def step(self, sequence: Sequence, pending: tuple[int, ...]) -> list[Event]:
        """Feed ``pending`` and a draft, and return the events of the tokens that stand, at least one."""
        start = len(sequence.tokens) + len(pending)
        proposal = self._propose(start, len(pending))
        rows = self._host.step([Work(sequence, pending + proposal.tokens, len(proposal) + 1)])[0]
        verdict = self._sampler.step(rows, proposal, self._request.rule, logprobs=self._request.params.logprobs)
        traces = self._traces(rows, len(verdict.tokens))
        events = self._events(verdict, start)
        kept = len(events)
        self._sampler.rollback(len(verdict.tokens) - kept)
        self._stats.count(verdict, kept)
        if len(proposal):
            self._host.engine.truncate(sequence, start + min(verdict.accepted, kept - (events[-1].finish is not None)))
        if self._draft is not None:
            self._draft.observe([event.token for event in events])
        return [replace(event, trace=trace) for event, trace in zip(events, traces, strict=False)] if traces else events

    def close(self) -> None:
        """Free what the draft holds."""
        if self._draft is not None:
            self._draft.close()

    def _propose(self, held: int, fed: int) -> Proposal:
        """No more than the reply, the context and one engine step have room for."""
        if self._draft is None or self._request.draft is None:
            return NOTHING
        limits = self._host.engine.limits
        wanted = self._request.params.max_tokens - self._sampler.history.position - 1
        room = min(self._request.draft.length, wanted, limits.context - held, limits.step_tokens - fed)
        return self._draft.propose(self._sampler.history, self._sampler.key, room) if room > 0 else NOTHING

    def _events(self, verdict: Verdict, start: int) -> list[Event]:
        """The events of a step's tokens, up to the one that ends the reply."""
        events: list[Event] = []
        for place, sample in enumerate(verdict.samples):
            events.append(self._reply.take(sample, room=start + place < self._host.engine.limits.context))
            if events[-1].finish is not None:
                break
        return events

    def _traces(self, rows: Rows, emitted: int) -> list[Trace]:
        """What each stage did to each emitted token's row, where that was asked for."""
        if not self._request.trace:
            return []
        sampler, traces = self._sampler, list[Trace]()
        for place in range(emitted):
            before = sampler.history.copy()
            before.rollback(emitted - place)
            traces.append(trace_row(rows[place][: sampler.vocabulary], sampler.chain, before, sampler.key.at(before.position)))
        return traces
