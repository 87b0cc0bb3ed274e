"""A chain: its order, what it takes from parameters, and what it says of a stage that breaks the contract."""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nalar import Chain, History, Key, NalarError, SamplingParams, sample_batch
from nalar.candidates import Candidates
from nalar.errors import BrokenRow, InvalidType, InvalidValue
from nalar.rows import as_row
from nalar.stages import Allow, Ban, Bias, Context, Frequency, MinP, MinTokens, Presence, Repetition, Stage, Temperature, TopK, TopP

INF = math.inf
EVERYTHING: dict[str, Any] = {  # field of the parameters: its stage; deliberately not in the order of the chain
    "min_p": (0.1, MinP(0.1)), "top_p": (0.9, TopP(0.9)), "top_k": (40, TopK(40)), "temperature": (0.8, Temperature(0.8)),
    "presence_penalty": (0.3, Presence(0.3)), "frequency_penalty": (-0.2, Frequency(-0.2)), "repetition_penalty": (1.2, Repetition(1.2)),
    "logit_bias": ({3: -INF}, Bias({3: -INF})), "min_tokens": (5, MinTokens(5, [2])), "banned_tokens": ([8], Ban([8])),
    "allowed_tokens": ([1, 2], Allow([1, 2])),
}
DOCUMENTED = ("allow", "ban", "min_tokens", "bias", "repetition", "frequency", "presence", "temperature", "top_k", "top_p", "min_p")


def test_the_order_is_the_documented_one() -> None:
    assert DOCUMENTED == Chain.ORDER


@given(st.sets(st.sampled_from(sorted(EVERYTHING))))
def test_from_params_follows_the_order_and_drops_what_is_neutral(names: set[str]) -> None:
    chain = Chain.from_params(SamplingParams(**{name: EVERYTHING[name][0] for name in names}), ends=[2])
    asked = {EVERYTHING[name][1].name: EVERYTHING[name][1] for name in names}
    assert list(chain) == [asked[name] for name in DOCUMENTED if name in asked]


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 1}, {"top_k": -1}, {"top_k": None}, {"top_p": 1}, {"min_p": 0}, {"repetition_penalty": 1},
        {"frequency_penalty": -0.0},
        {"logit_bias": {}}, {"allowed_tokens": None}, {"banned_tokens": []}, {"min_tokens": 0}, {"stop": "x", "stop_tokens": [4]},
    ],
)
def test_a_neutral_value_leaves_no_stage(fields: dict[str, Any]) -> None:
    assert str(Chain.from_params(SamplingParams(**fields), ends=[2])) == "identity"


@pytest.mark.parametrize(
    ("fields", "stage"),
    [
        ({"temperature": 0}, Temperature(0)), ({"top_p": 0.0}, TopP(0)), ({"min_p": 1}, MinP(1)), ({"allowed_tokens": []}, Allow([])),
        ({"logit_bias": {0: 0.0}}, Bias({0: 0.0})), ({"presence_penalty": 5e-324}, Presence(5e-324)),
        ({"repetition_penalty": 0.5}, Repetition(0.5)),
    ],
)
def test_zero_and_empty_are_not_taken_for_absent(fields: dict[str, Any], stage: Stage) -> None:
    assert Chain.from_params(SamplingParams(**fields)).stages == (stage,)


@pytest.mark.parametrize(
    ("fields", "ends", "expected"),
    [
        ({}, [2, 9], "min_tokens(4, ends=[2, 9])"),
        ({"stop_tokens": [5]}, [9, 2], "min_tokens(4, ends=[2, 5, 9])"),
        ({"stop_tokens": [5]}, (), "min_tokens(4, ends=[5])"),
        ({"ignore_eos": True}, [2], "identity"),  # ends are ignored, so nothing can end the reply early
        ({"ignore_eos": True, "stop_tokens": [5]}, [2], "min_tokens(4, ends=[5])"),
        ({"ignore_eos": True}, (), "identity"),
    ],
)
def test_min_tokens_masks_whatever_could_end_the_reply(fields: dict[str, Any], ends: Any, expected: str) -> None:
    assert str(Chain.from_params(SamplingParams(min_tokens=4, **fields), ends)) == expected


def test_min_tokens_without_ends_is_an_error_and_not_a_silent_nothing() -> None:
    with pytest.raises(InvalidValue, match=r"min_tokens needs ends.* got min_tokens=4"):
        Chain.from_params(SamplingParams(min_tokens=4))


@pytest.mark.parametrize("params", [{"top_k": 4}, None, "top_k(4)"])
def test_from_params_takes_parameters_only(params: Any) -> None:
    with pytest.raises(InvalidType, match=r"params must be a nalar\.SamplingParams"):
        Chain.from_params(params)


def test_the_empty_chain_is_the_softmax() -> None:
    assert str(Chain([])) == str(Chain()) == "identity"
    assert Chain([]).distribution([0.0, math.log(3), -INF]).probs == pytest.approx([0.25, 0.75], rel=1e-15)


def test_chains_are_values() -> None:
    one, two = Chain([TopK(4), Temperature(0.5)]), Chain.parse("top_k(4) | temperature(0.5)")
    assert one == two
    assert len({one, two, Chain(list(reversed(one.stages)))}) == 2
    assert pickle.loads(pickle.dumps(one)) == copy.deepcopy(one) == one
    assert (len(one), list(one), one.stages) == (2, [TopK(4), Temperature(0.5)], (TopK(4), Temperature(0.5)))
    assert repr(one) == "Chain.parse('top_k(4) | temperature(0.5)')"
    assert Chain(one) == one
    with pytest.raises(AttributeError):
        one.stages = ()  # type: ignore[misc]


def test_the_order_is_kept_also_where_a_stage_comes_twice() -> None:
    assert str(Chain([TopK(2), Temperature(1), TopK(2)])) == "top_k(2) | temperature(1.0) | top_k(2)"


@pytest.mark.parametrize("stages", [[TopK], ["top_k(4)"], "top_k(4)", None, 4, [None], [TopK(1), 4]])
def test_what_is_no_stage_is_refused(stages: Any) -> None:
    with pytest.raises(InvalidType, match="stages must be a list of Stage objects"):
        Chain(stages)


def test_a_chain_equals_its_stages_by_hand() -> None:
    row = np.array([2.0, 1.0, 0.5, 0.0, -1.0])
    chain = Chain([Presence(1.0), Temperature(0.5), TopK(3), MinP(0.2)])
    steps = list(chain.steps(Candidates.from_row(as_row(row)), History(output=[0])))
    assert [step.stage for step in steps] == list(chain)
    assert all(before.after is after.before for before, after in pairwise(steps))
    assert [step.after.logits.tolist() for step in steps] == [
        [1.0, 1.0, 0.5, 0.0, -1.0], [2.0, 2.0, 1.0, 0.0, -2.0], [2.0, 2.0, 1.0], [2.0, 2.0, 1.0],  # exp(−1) = 0.37 ≥ 0.2
    ]
    assert steps[-1].after.ids.tolist() == chain.candidates(row, History(output=[0])).ids.tolist() == [0, 1, 2]


@pytest.mark.parametrize(("name", "value"), [("history", [1, 2]), ("history", ()), ("history", "x"), ("key", 7), ("key", (7,))])
def test_a_history_and_a_key_are_checked(name: str, value: Any) -> None:
    for chain in (Chain(), Chain([Repetition(2)])):
        with pytest.raises(InvalidType, match=f"{name} must be a nalar"):
            chain.distribution([0.0, 1.0], **{name: value})


# --- a stage that breaks the contract ------------------------------------------------------------------------------------

INT, FLOAT = np.int32, np.float64


@dataclass(frozen=True)
class Broken(Stage):
    """Returns what it is told to."""

    result: Callable[[Candidates], Any]

    def apply(self, candidates: Candidates, context: Any) -> Any:
        return self.result(candidates)


def made(ids: Any, logits: Any) -> Callable[[Candidates], Candidates]:
    return lambda candidates: Candidates(ids, logits)


@pytest.mark.parametrize(
    ("result", "kind", "words"),
    [
        (lambda c: None, InvalidType, "apply must return Candidates, got NoneType"),
        (lambda c: c.logits, InvalidType, "apply must return Candidates, got ndarray"),
        (lambda c: (c.ids, c.logits), InvalidType, "got tuple"),
        (made([0, 1], [0.0, 1.0]), InvalidType, "candidates must be int32"),
        (made(np.array([0, 1]), np.zeros(2)), InvalidType, "int64"),
        (made(np.array([0, 1], INT), np.zeros(2, np.float32)), InvalidType, "float32"),
        (made(np.array([0, 1], INT), np.zeros(3)), InvalidType, r"int32 \[2\] and float64 \[3\]"),
        (made(np.zeros((1, 2), INT), np.zeros((1, 2))), InvalidType, r"\[1, 2\]"),
        (made(np.array([1, 0], INT), np.zeros(2)), InvalidValue, "ids must ascend within"),
        (made(np.array([0, 0], INT), np.zeros(2)), InvalidValue, "ids must ascend within"),
        (made(np.array([0, 3], INT), np.zeros(2)), InvalidValue, r"within \[0, 2\]"),
        (made(np.array([-1, 0], INT), np.zeros(2)), InvalidValue, r"within \[0, 2\]"),
        (made(np.array([0, 1], INT), np.array([0.0, np.nan])), BrokenRow, "left a logit of nan"),
        (made(np.array([0, 1], INT), np.array([np.inf, 0.0])), BrokenRow, "left a logit of inf"),
        (made(np.array([0, 1], INT), np.array([-np.inf, -np.inf])), BrokenRow, "left no token to draw"),
        (made(np.zeros(0, INT), np.zeros(0)), BrokenRow, "left no token to draw"),
        (lambda c: c.keep(c.ids < 0), BrokenRow, "left no token to draw"),
        (lambda c: Candidates(c.ids, c.logits, math.nan), InvalidValue, "log_total .* must be a finite number, got nan"),
        (lambda c: Candidates(c.ids, c.logits, -INF), InvalidValue, "log_total .* must be a finite number, got -inf"),
        (lambda c: Candidates(c.ids, c.logits, "1.0"), InvalidType, "log_total .* must be a finite number, got '1.0'"),
        (lambda c: Candidates(c.ids, c.logits, np.zeros(2)), InvalidType, "log_total .* must be a finite number, got array"),
    ],
)
def test_a_stage_that_breaks_the_contract_is_named(result: Any, kind: type[Exception], words: str) -> None:
    chain = Chain([TopK(0), Broken(result), Temperature(1)])
    with pytest.raises(kind, match=f"^broken:? .*{words}") as caught:
        chain.distribution([0.0, 1.0, 2.0])
    assert isinstance(caught.value, NalarError)
    assert getattr(caught.value, "stage", "broken") == "broken"


def test_an_exception_of_a_stage_fails_its_row_only() -> None:
    def fail(candidates: Candidates) -> Any:
        raise ZeroDivisionError("mine")

    chains = [Chain(), Chain([Broken(fail)]), Chain()]
    batch = sample_batch(np.zeros((3, 4)), chains, [Key(1)] * 3, errors="return")
    assert [type(error) for error in batch.errors] == [type(None), ZeroDivisionError, type(None)]
    assert batch.tokens[1] == -1
    with pytest.raises(ZeroDivisionError, match="mine"):
        sample_batch(np.zeros((3, 4)), chains, [Key(1)] * 3)


def test_a_stage_without_apply_says_so() -> None:
    class Nothing(Stage):
        pass

    with pytest.raises(NotImplementedError, match="Nothing must define apply"):
        Chain([Nothing()]).distribution([0.0])


def test_half_a_memory_is_refused_where_it_is_written() -> None:
    """The chain would take the stage for one without memory, and its state would be None for ever."""
    with pytest.raises(InvalidType, match="Half must define both initial and observe, or neither"):

        class Half(Stage):
            def initial(self, context: Context) -> float:
                return 1.0


def test_a_user_s_stage_can_bring_tokens_back_and_reweigh() -> None:
    again = Broken(made(np.array([0, 2], INT), np.array([0.0, 0.0], FLOAT)))
    assert Chain([TopK(1), again]).distribution([0.0, 5.0, 0.0]).probs.tolist() == [0.5, 0.5]
