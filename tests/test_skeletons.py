"""The skeletons in docs/ are good to copy, the batteries pass on them and on every built-in stage, and fail on bad stages."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import nalar
import nalar.engines
from engine_contract import check_engine
from nalar.candidates import Candidates
from nalar.stages import (
    BUILT_IN,
    Allow,
    Ban,
    Bias,
    Context,
    Frequency,
    MinP,
    MinTokens,
    Presence,
    Repetition,
    Stage,
    Temperature,
    TopK,
    TopP,
)  # fmt: skip
from stage_contract import LAWS, Trial, check_stage

SKELETONS = Path(__file__).parent.parent / "docs" / "developer" / "skeletons"

Stages = list[tuple[Stage, dict[str, Any]]]


def moved(field: str) -> Callable[[Stage, list[int]], Stage]:
    """A stage with ids in ``field``, renamed."""

    def renamed(stage: Any, place: list[int]) -> Stage:
        ids = [place[token] for token in getattr(stage, field)]
        return MinTokens(stage.n, ids) if isinstance(stage, MinTokens) else type(stage)(ids)  # type: ignore[no-any-return]

    return renamed


def bias_moved(stage: Any, place: list[int]) -> Stage:
    return Bias({place[token]: value for token, value in stage.values})


STAGES: Stages = [
    (Temperature(0.7), {"neutral": Temperature(1)}),
    (Temperature(0), {}),
    (Temperature(1e-310), {}),
    (TopK(3), {"neutral": TopK(0)}),
    (TopK(3, ties="all"), {}),
    (TopP(0.7), {"neutral": TopP(1)}),
    (TopP(0.7, crossing=False, at_equality="continue", ties="all", mass="original"), {}),
    (TopP(0), {}),
    (MinP(0.2), {"neutral": MinP(0)}),
    (MinP(1, strict=True), {}),
    (Repetition(1.3), {"neutral": Repetition(1)}),
    (Repetition(0.8, scope="output", window=3, decay=2), {}),
    (Frequency(0.4), {"neutral": Frequency(0)}),
    (Frequency(0.4, scope="all", ignore_prefix=2), {}),
    (Presence(-0.5), {"neutral": Presence(0)}),
    (Presence(0.5, scope="prompt", window=6, decay=4), {}),
    (Bias({1: 2.0, 4: -3.0}), {"neutral": Bias({}), "renamed": bias_moved}),
    (Bias({6: float("-inf")}), {"renamed": bias_moved, "may_empty": True}),
    (Ban([0, 5]), {"neutral": Ban([]), "renamed": moved("ids"), "may_empty": True}),
    (Allow([1, 2, 6, 9]), {"renamed": moved("ids"), "may_empty": True}),
    (MinTokens(3, [2, 3]), {"neutral": MinTokens(0, [2]), "renamed": moved("ends"), "may_empty": True}),
]


def test_every_built_in_stage_is_checked() -> None:
    assert {stage.name for stage, _ in STAGES} == set(BUILT_IN)


@pytest.mark.parametrize(("stage", "claims"), STAGES, ids=lambda value: str(value) if isinstance(value, Stage) else "")
def test_built_in_stages_keep_the_laws_of_stages(stage: Stage, claims: dict[str, Any]) -> None:
    check_stage(stage, **claims)


# --- the skeletons ---------------------------------------------------------------------------------------------------


@contextmanager
def skeleton(name: str) -> Iterator[ModuleType]:
    """docs/developer/skeletons/``name``.py, importable under its own name while it is used, as beside a person's own test."""
    before = dict(sys.modules)
    spec = importlib.util.spec_from_file_location(name, SKELETONS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
        yield module
    finally:
        for added in ("stage", "engine"):
            sys.modules.pop(added, None)
            if added in before:
                sys.modules[added] = before[added]


def test_the_skeletons_of_stages_keep_their_laws() -> None:
    with skeleton("stage"), skeleton_test("test_stage", "stage") as battery:
        (mark,) = battery.test_it_keeps_the_laws_of_stages.pytestmark
        assert {type(stage).__name__ for stage, _ in mark.args[1]} == {"Within", "Steady", "DropBest"}
        for stage, neutral in mark.args[1]:
            battery.test_it_keeps_the_laws_of_stages(stage, neutral)


def test_the_skeleton_of_an_engine_keeps_its_laws() -> None:
    with skeleton("engine"), skeleton_test("test_engine", "engine") as battery:
        battery.test_it_keeps_the_laws_of_engines()
        battery.test_a_model_speaks_through_it()


@contextmanager
def skeleton_test(name: str, subject: str) -> Iterator[ModuleType]:
    """The skeleton of a test, whose ``from stage import …`` finds the skeleton beside it."""
    assert subject in sys.modules
    spec = importlib.util.spec_from_file_location(f"skeletons_{name}", SKELETONS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module


def test_an_entry_point_makes_load_find_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    with skeleton("engine"):
        entry = EntryPoint("mine", "engine:load", "nalar.engines")
        monkeypatch.setattr(nalar.engines, "entry_points", lambda group: [entry] if group == "nalar.engines" else [])
        for name in ("mine", "mine:anything"):
            with nalar.load(name, context=256) as model:
                assert (model.name, model.engine.limits.context) == (name, 256)
                check_engine(model.engine)
        with pytest.raises(nalar.NalarError, match="mine, smollm2, toy"):
            nalar.load("yours")


# --- the battery notices ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Writes(Stage):
    """Changes the row it was lent."""

    def apply(self, candidates: Candidates, context: Context) -> Candidates:
        candidates.logits[0] += 1
        return candidates


@dataclass(frozen=True)
class Gambles(Stage):
    """Takes chance from elsewhere."""

    def apply(self, candidates: Candidates, context: Context) -> Candidates:
        return candidates.replace(candidates.logits + np.random.default_rng().random(candidates.ids.size))


@dataclass(frozen=True)
class Empties(Stage):
    """Leaves nothing of a flat row."""

    def apply(self, candidates: Candidates, context: Context) -> Candidates:
        return candidates.keep(candidates.logits > candidates.logits.mean())


@dataclass(frozen=True)
class Revives(Stage):
    """Lets a forbidden token back in."""

    def apply(self, candidates: Candidates, context: Context) -> Candidates:
        return candidates.replace(np.maximum(candidates.logits, -9.0))


@dataclass(frozen=True)
class Favours(Stage):
    """Means something by the number of an id."""

    def apply(self, candidates: Candidates, context: Context) -> Candidates:
        return candidates.replace(candidates.logits + (candidates.ids == 3))


@dataclass(frozen=True)
class Shuffles(Stage):
    """Leaves the ids in another order."""

    def apply(self, candidates: Candidates, context: Context) -> Candidates:
        return Candidates(candidates.ids[::-1], candidates.logits[::-1])


@dataclass(unsafe_hash=True)
class Thaws(Stage):
    """Can be changed."""

    value: float = 1.0

    def apply(self, candidates: Candidates, context: Context) -> Candidates:
        return candidates


@dataclass(frozen=True)
class Hoards(Stage):
    """Keeps its memory in a list that it changes, where rollback cannot reach."""

    def initial(self, context: Context) -> list[int]:
        return []

    def observe(self, state: list[int], token: int, candidates: Candidates | None) -> list[int]:
        state.append(token)
        return state

    def apply(self, candidates: Candidates, context: Context) -> Candidates:
        return candidates.replace(np.where(np.isin(candidates.ids, context.state), candidates.logits - 9, candidates.logits))


BAD: list[tuple[Stage, str]] = [
    (Writes(), "it_changes_nothing_it_is_given"),
    (Gambles(), "it_is_a_function_of_its_arguments"),
    (Empties(), "it_keeps_a_token_and_ids_ascend"),
    (Revives(), "what_was_forbidden_stays_forbidden"),
    (Favours(), "renaming_the_tokens_renames_the_law"),
    (Shuffles(), "it_keeps_a_token_and_ids_ascend"),
    (Thaws(), "it_is_a_value"),
    (Hoards(), "commit_then_rollback_is_as_if_never_committed"),
]


@pytest.mark.parametrize(("stage", "law"), BAD, ids=lambda value: value if isinstance(value, str) else type(value).__name__)
def test_the_battery_fails_on_a_bad_stage(stage: Stage, law: str) -> None:
    (only,) = (each for each in LAWS if each.__name__ == law)
    with pytest.raises((AssertionError, ValueError)):
        only(Trial(stage))
    with pytest.raises((AssertionError, ValueError)):
        check_stage(stage)


def test_the_battery_fails_on_a_wrong_neutral_value() -> None:
    with pytest.raises(AssertionError):
        check_stage(TopK(3), neutral=TopK(5))
