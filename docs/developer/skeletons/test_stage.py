"""Copy me: the battery of laws on a stage of your own.  ``stage_contract`` is tests/stage_contract.py in Nalar's repository."""

from __future__ import annotations

import pytest
from stage import DropBest, Steady, Within

from nalar.stages import Stage
from stage_contract import check_stage


@pytest.mark.parametrize(
    ("stage", "neutral"),
    [
        (Within(2.0), Within(float("inf"))),
        (Within(0), None),
        (Steady(1.5), Steady(1.5, rate=0)),
        (DropBest(0.5), DropBest(0)),
        (DropBest(1), None),
    ],
    ids=str,
)
def test_it_keeps_the_laws_of_stages(stage: Stage, neutral: Stage | None) -> None:
    check_stage(stage, neutral=neutral)
