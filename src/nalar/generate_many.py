"""Several replies to one prompt: it is evaluated once, and every reply starts as a fork of it."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field, replace

from nalar.completion import Event, Stats
from nalar.engines.base import Rows, Sequence, Work
from nalar.errors import EngineFull
from nalar.feed import Host, feed_ahead
from nalar.generate import Request, draw, run, sampler_of
from nalar.reply import Reply
from nalar.sampler import Sampler

__all__ = ["Branch", "run_many"]


@dataclass(slots=True)
class Branch:
    """One reply in the making."""

    request: Request
    sampler: Sampler
    reply: Reply
    stats: Stats = field(default_factory=Stats)
    events: list[Event] = field(default_factory=list)
    sequence: Sequence | None = None

    @property
    def done(self) -> bool:
        return bool(self.events) and self.events[-1].finish is not None

    def pending(self, sequence: Sequence) -> tuple[int, ...]:
        """The drawn tokens that ``sequence`` does not hold yet: one, or all after the branch had to make room."""
        return tuple(event.token for event in self.events[len(sequence.tokens) - len(self.request.prompt) :])

    def take(self, rows: Rows, *, room: bool) -> None:
        self.events.append(draw(self.sampler, self.reply, rows, self.request, room=room))
        self.stats.steps = self.stats.emitted
        self.stats.emitted += 1


def run_many(host: Host, request: Request, n: int) -> list[Branch]:
    """``n`` replies to one prompt, as ``n`` runs with sequence 0 … n − 1 would draw them.

    As many as the engine has sequences for are drawn side by side, a step for all of them; the others wait for one of these to end.
    """
    limits = host.engine.limits
    if n == 1 or limits.sequences == 1 or not limits.can_fork or request.draft is not None:
        return [_alone(host, replace(request, sequence=index)) for index in range(n)]
    started = time.perf_counter()
    with host.lock:
        root, reused = host.prefixes.acquire(request.prompt)
        branches: list[Branch] = []
        try:
            rows = host.step([Work(root, feed_ahead(host, root, request.prompt[reused:], request.progress))])[0]
            prompt_seconds = time.perf_counter() - started
            if request.progress is not None:
                request.progress(len(request.prompt), len(request.prompt))
            branches = [_branch(host, replace(request, sequence=index)) for index in range(n)]
            for branch in branches:
                branch.stats.prompt, branch.stats.reused, branch.stats.prompt_seconds = len(request.prompt), reused, prompt_seconds
                branch.take(rows, room=len(root.tokens) < host.engine.limits.context)
                branch.stats.seconds = time.perf_counter() - started
            _grow(host, root, [branch for branch in branches if not branch.done], started)
        finally:
            for sequence in {root, *(branch.sequence for branch in branches if branch.sequence is not None)}:
                host.prefixes.drop(sequence)
    return branches


def _alone(host: Host, request: Request) -> Branch:
    """A reply drawn by itself, where no fork can be had."""
    branch = _branch(host, request)
    branch.events = list(run(host, request, branch.stats))
    return branch


def _branch(host: Host, request: Request) -> Branch:
    return Branch(request, sampler_of(host, request), Reply(request.params, host.engine.vocabulary))


def _grow(host: Host, root: Sequence, branches: list[Branch], started: float) -> None:
    waiting, growing = deque(branches), list[Branch]()
    most = min(len(branches), host.engine.limits.step_tokens)
    while waiting or growing:
        _start(host, root, waiting, growing, most)
        work = [Work(branch.sequence, branch.pending(branch.sequence)) for branch in growing if branch.sequence is not None]
        try:
            lent = host.step(work)
        except EngineFull:
            if len(growing) == 1:
                raise
            waiting.appendleft(growing.pop())  # the youngest makes room, and is computed again once another has ended
            _release(host, root, waiting[0])
            most = len(growing)
            continue
        for branch, rows, item in zip(growing, lent, work, strict=True):
            branch.take(rows, room=len(item.sequence.tokens) < host.engine.limits.context)
        for branch in growing:
            if branch.done:
                branch.stats.seconds = time.perf_counter() - started
                _release(host, root, branch)
                most += 1
        most = min(most, host.engine.limits.step_tokens)
        growing = [branch for branch in growing if not branch.done]


def _start(host: Host, root: Sequence, waiting: deque[Branch], growing: list[Branch], most: int) -> None:
    """Give sequences to waiting branches while there are any; the prompt's own is lent where no other is left."""
    while waiting and len(growing) < most:
        lendable = all(branch.sequence is not root for branch in growing) and (len(waiting) == 1 or host.engine.limits.can_truncate)
        try:
            sequence = root if lendable and len(waiting) == 1 else host.prefixes.make_room(lambda: host.engine.fork(root))
        except EngineFull:
            if not lendable:
                if not growing:
                    raise
                return
            sequence = root
        branch = waiting.popleft()
        if sequence is not root and len(sequence.tokens) > len(branch.request.prompt):
            host.engine.truncate(sequence, len(branch.request.prompt))
        branch.sequence = sequence
        growing.append(branch)


def _release(host: Host, root: Sequence, branch: Branch) -> None:
    """Take its sequence from a branch; the prompt's own goes back to the prompt."""
    sequence, branch.sequence = branch.sequence, None
    if sequence is None:
        return
    if sequence is not root:
        host.prefixes.drop(sequence)
    elif host.engine.limits.can_truncate:
        host.engine.truncate(root, len(branch.request.prompt))
