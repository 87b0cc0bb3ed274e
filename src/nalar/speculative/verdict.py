"""What a step decided."""

from __future__ import annotations

from dataclasses import dataclass

from nalar.sampling import Sample

__all__ = ["Verdict"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """``accepted`` draft tokens stand, then comes ``token``, drawn here: recovered after a rejection, or the bonus.

    ``samples`` has one entry for each emitted token, in order; without a draft there is one, and ``accepted`` is 0.  Their
    log-probabilities are under the *target* law, of the recovered token too: what was asked for, not how it came about.

    ``drafted`` counts the tokens proposed, ``rule`` names the rule.  ``cost`` is the total variation a lossy rule paid in this step;
    0 for every exact rule.
    """

    accepted: int
    samples: tuple[Sample, ...]
    drafted: int = 0
    rule: str = "follow"
    cost: float = 0.0
    lossy: bool = False

    @property
    def token(self) -> int:
        """The id drawn after the accepted ones."""
        return self.samples[-1].token

    @property
    def tokens(self) -> tuple[int, ...]:
        """Every id emitted by the step."""
        return tuple(sample.token for sample in self.samples)

    @property
    def logprobs(self) -> tuple[float, ...]:
        """The natural logarithm of each emitted id's probability under the target law."""
        return tuple(sample.logprob for sample in self.samples)

    @property
    def bonus(self) -> bool:
        """Whether the whole draft was accepted, so that ``token`` came on top."""
        return self.accepted == self.drafted
