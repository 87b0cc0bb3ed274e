"""What each stage did to a row, as data: for the terminal, the page and the log alike."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nalar.candidates import Candidates
from nalar.chain import Chain
from nalar.distribution import Distribution
from nalar.history import History
from nalar.keys import Key
from nalar.rows import FloatRow
from nalar.text_form import print_stage

__all__ = ["StageTrace", "Trace", "trace_row"]


@dataclass(frozen=True, slots=True)
class StageTrace:
    """One stage at work.  Counts are of tokens with positive probability; entropies in nats.

    ``mass`` is how much of the probability it was given sits on the tokens it left; ``cut`` are the ids it made impossible,
    the most likely first.
    """

    stage: str
    before: int
    after: int
    mass: float
    entropy_before: float
    entropy_after: float
    cut: tuple[int, ...]
    law: Distribution


@dataclass(frozen=True, slots=True)
class Trace:
    """A row on its way through a chain: the raw law, then each stage."""

    raw: Distribution
    stages: tuple[StageTrace, ...]

    @property
    def law(self) -> Distribution:
        """What is drawn from."""
        return self.stages[-1].law if self.stages else self.raw

    def cut_by(self) -> dict[int, str]:
        """For each impossible token that was possible in the raw law, the stage that cut it."""
        return {token: stage.stage for stage in reversed(self.stages) for token in stage.cut}


def trace_row(row: FloatRow, chain: Chain, history: History, key: Key | None = None) -> Trace:
    """Run the stages' own ``apply`` on one row, and measure before and after each.

    >>> import numpy as np
    >>> trace = trace_row(np.log([0.5, 0.25, 0.25]), Chain.parse("top_k(1)"), History())
    >>> [(stage.stage, stage.before, stage.after, round(stage.mass, 6), stage.cut) for stage in trace.stages]
    [('top_k(1)', 3, 1, 0.5, (1, 2))]
    """
    whole = Candidates.from_row(row)
    raw = Distribution.from_candidates(whole)
    before, stages = raw, []
    for step in chain.steps(whole, history, key):
        after = Distribution.from_candidates(step.after)
        stages.append(_measure(print_stage(step.stage), before, after))
        before = after
    return Trace(raw, tuple(stages))


def _measure(stage: str, before: Distribution, after: Distribution) -> StageTrace:
    survives = np.isin(before.ids, after.ids)
    cut = ~survives
    order = np.argsort(-before.logprobs[cut], kind="stable")
    return StageTrace(
        stage=stage,
        before=before.ids.size,
        after=after.ids.size,
        mass=float(before.probs[survives].sum()) if cut.any() else 1.0,
        entropy_before=before.entropy(),
        entropy_after=after.entropy(),
        cut=tuple(before.ids[cut][order].tolist()),
        law=after,
    )
