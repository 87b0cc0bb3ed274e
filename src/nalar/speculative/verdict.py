"""What a step decided."""

from __future__ import annotations

from dataclasses import dataclass

from nalar.sampling import Sample

__all__ = ["Verdict"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """``accepted`` draft tokens stand, then comes ``token``, drawn here: recovered after a rejection, or the bonus.

    ``samples`` has one entry for each emitted token, in order; without a draft there is one, and ``accepted`` is 0.
    """

    accepted: int
    samples: tuple[Sample, ...]

    @property
    def token(self) -> int:
        """The id drawn after the accepted ones."""
        return self.samples[-1].token

    @property
    def tokens(self) -> tuple[int, ...]:
        """Every id emitted by the step."""
        return tuple(sample.token for sample in self.samples)
