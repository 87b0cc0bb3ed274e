"""What a generation yields: one event for each drawn token, and the reply they fold into."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from nalar.echo import PromptToken
from nalar.sampling import Sample, TokenLogprob
from nalar.speculative.verdict import Verdict
from nalar.trace import Trace

__all__ = ["Completion", "Event", "FinishReason", "Stats", "fold"]

FinishReason = Literal["stop", "length"]


@dataclass(slots=True)
class Stats:
    """Counts and times of one reply.  ``emitted`` counts every drawn token, an end id too; times are in seconds."""

    prompt: int = 0  # tokens in the prompt
    reused: int = 0  # of those, already in the engine from an earlier call
    drafted: int = 0
    accepted: int = 0
    emitted: int = 0
    steps: int = 0  # engine steps after the prompt
    prompt_seconds: float = 0.0
    seconds: float = 0.0  # the whole reply, prompt included
    reached: list[int] = field(default_factory=list)  # [i]: steps in which draft token i was tried, those before it accepted
    passed: list[int] = field(default_factory=list)  # [i]: of those, steps in which it was accepted
    cost: float = 0.0  # total variation that a lossy rule paid; 0 is exact
    lossy: bool = False

    def count(self, verdict: Verdict, kept: int) -> None:
        """Add a step of which the first ``kept`` tokens belong to the reply."""
        accepted = min(verdict.accepted, kept)
        self.drafted += verdict.drafted
        self.accepted += accepted
        self.emitted += kept
        self.cost += verdict.cost
        self.lossy = self.lossy or verdict.lossy
        for place in range(min(verdict.drafted, verdict.accepted + 1, kept)):
            if place == len(self.reached):
                self.reached.append(0)
                self.passed.append(0)
            self.reached[place] += 1
            self.passed[place] += place < accepted

    @property
    def acceptance(self) -> tuple[float, ...]:
        """How often draft token 0, 1, … was accepted when the tokens before it were."""
        return tuple(passed / max(reached, 1) for passed, reached in zip(self.passed, self.reached, strict=True))

    @property
    def tokens_per_second(self) -> float:
        """Emitted tokens a second, the prompt's time left out."""
        return self.emitted / max(self.seconds - self.prompt_seconds, 1e-9)


@dataclass(frozen=True, slots=True)
class Event:
    """One drawn token: the text that became safe to show with it, and on the last event why the reply ends.

    ``kept``, on the last event, is how many of the reply's tokens belong to its text.  ``trace`` is there when it was asked for.
    """

    token: int
    text: str
    logprobs: Sample
    finish: FinishReason | None = None
    kept: int = 0
    trace: Trace | None = None


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole reply.

    ``tokens`` are the ids of ``text``, without the end id and without what a stop string cut away; an end id that ``ignore_eos``
    passed over adds no text and is among them.  ``logprobs`` (final) has one entry for each.  ``raw_logprobs``, ``top`` and ``raw_top``
    are there when ``logprobs`` was asked for, ``prompt_logprobs`` with ``echo=True``.
    """

    text: str
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: FinishReason
    seed: int
    chain: str
    stats: Stats
    raw_logprobs: tuple[float, ...] | None = None
    top: tuple[tuple[TokenLogprob, ...], ...] | None = None
    raw_top: tuple[tuple[TokenLogprob, ...], ...] | None = None
    prompt_logprobs: tuple[PromptToken, ...] | None = None
    samples: tuple[Sample, ...] = field(default=(), repr=False)


def fold(
    events: Iterable[Event], *, seed: int, chain: str, stats: Stats, prompt_logprobs: tuple[PromptToken, ...] | None = None
) -> Completion:
    """The reply that ``events`` add up to; their texts joined are its text."""
    listed = list(events)
    last = listed[-1]
    samples = tuple(event.logprobs for event in listed)[: last.kept]
    asked = listed[0].logprobs.raw_logprob is not None
    return Completion(
        text="".join(event.text for event in listed),
        tokens=tuple(sample.token for sample in samples),
        logprobs=tuple(sample.logprob for sample in samples),
        finish_reason=last.finish or "length",
        seed=seed,
        chain=chain,
        stats=stats,
        raw_logprobs=tuple(sample.raw_logprob or 0.0 for sample in samples) if asked else None,
        top=tuple(sample.top for sample in samples) if asked else None,
        raw_top=tuple(sample.raw_top for sample in samples) if asked else None,
        prompt_logprobs=prompt_logprobs,
        samples=samples,
    )
