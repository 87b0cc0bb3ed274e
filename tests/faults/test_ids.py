"""IDS: token ids in requests.  Each list is checked against the row's width, and a wrong id hurts its own request only.

Each case is a report of facts/faults.md on another engine, with the value that the report calls right.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nalar
from faults.scripted import PROMPT, scripted
from nalar import Chain, History, Key, Sampler, SamplingParams, sample, sample_batch
from nalar.errors import InvalidValue
from nalar.stages import Allow, Ban, Bias, MinTokens, Stage


@dataclass(frozen=True)
class Case:
    """A request with one id that its vocabulary does not have."""

    id: str
    fault: str
    vocabulary: int
    ask: dict[str, Any]
    outside: int


CASES = [
    Case("B203-logit_bias", "vLLM: one request with a bad id ended the engine", 128_256, {"logit_bias": {191_222: -100}}, 191_222),
    Case("B204-logit_bias", "vLLM, older: the same", 32_064, {"logit_bias": {55_434: 5.0}}, 55_434),
    Case(
        "B206-stop_tokens", "vLLM: the one list that nobody checked; it wrote into the neighbour's row", 129_280,
        {"stop_tokens": [151_645], "min_tokens": 1}, 151_645,
    ),
]


@pytest.fixture(scope="module")
def toy() -> Iterator[Any]:
    with nalar.load("toy") as model:
        yield model


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_a_bad_id_is_an_error_that_names_it_and_the_other_row_is_served(case: Case) -> None:
    rows = np.zeros((2, case.vocabulary), np.float32)
    rows[:, 7] = 50.0
    chains = [Chain.from_params(SamplingParams(**case.ask), ends=[2]), Chain()]
    batch = sample_batch(rows, chains, [Key(1), Key(2)], errors="return")
    assert isinstance(batch.errors[0], ValueError)
    assert str(case.outside) in str(batch.errors[0])
    assert batch.tokens.tolist() == [-1, 7], "row 2: p(7) = 1 − 2e-17"
    assert rows[1, 7] == 50.0
    assert np.count_nonzero(rows) == 2, "rows are read, never written"


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.id}-in-the-loop")
def test_a_bad_id_fails_its_request_and_the_model_goes_on(toy: Any, case: Case) -> None:
    for call in (toy.generate, toy.generate_n, lambda *given, **ask: list(toy.stream(*given, **ask))):
        with pytest.raises(InvalidValue, match=str(case.outside)):
            call("The ", **case.ask)
        assert toy.generate("The ", seed=7, max_tokens=3).text


@pytest.mark.parametrize("fields", [{}, {"min_tokens": 0}, {"ignore_eos": True}, {"min_tokens": 2, "chain": Chain()}],
                         ids=lambda fields: f"B206-{fields}")
def test_b206_stop_ids_are_checked_without_min_tokens_too(toy: Any, fields: dict[str, Any]) -> None:
    """B206: 'check every id list against logits width': a stop id that cannot come is a mistake, whatever else is asked."""
    with pytest.raises(InvalidValue, match="151645"):
        toy.generate("The ", max_tokens=3, stop_tokens=[151_645], **fields)


@pytest.mark.parametrize("temperature", [0, 1], ids=["B207-greedy", "B207-sampled"])
def test_b207_a_bias_has_its_effect(temperature: float) -> None:
    """B207, llama.cpp: `-l 2742-100` changed nothing.  Right: −inf never drawn; log-odds move by 100."""
    row = [0.0, 9.0, 8.0]
    banned = Chain.from_params(SamplingParams(logit_bias={1: -math.inf}, temperature=temperature))
    assert banned.distribution(row).prob(1) == 0
    assert 1 not in {sample(row, banned, Key(seed)).token for seed in range(20)}
    moved = Chain.from_params(SamplingParams(logit_bias={1: -100}, temperature=temperature)).distribution(row)
    if temperature == 0:
        assert moved.ids.tolist() == [2]
    else:  # 9 − 8 = 1 becomes −99
        assert moved.logprob(1) - moved.logprob(2) == pytest.approx(-99, abs=1e-9)


@pytest.mark.parametrize("door", ["parameters", "text", "loop", "sampler"], ids=lambda door: f"B208-{door}")
def test_b208_a_bias_is_in_the_chain_at_every_door(door: str) -> None:
    """B208, go-llama.cpp: parsed, and never added.  Right: with +100 on one id, that id is drawn (p = 1 − 2e-44)."""
    row, ask = np.zeros(8), {"logit_bias": {5: 100.0}}
    drawn: dict[str, Callable[[], int]] = {
        "parameters": lambda: sample(row, Chain.from_params(SamplingParams(**ask)), Key(3)).token,
        "text": lambda: sample(row, Chain.parse("bias({5: 100})"), Key(3)).token,
        "loop": lambda: scripted([row]).generate(PROMPT, max_tokens=1, **ask).tokens[0],
        "sampler": lambda: Sampler(Chain.from_params(SamplingParams(**ask)), seed=3).sample(row).token,
    }
    assert drawn[door]() == 5


# --- the rule, once for all -------------------------------------------------------------------------------------------

STAGES: dict[str, Callable[[list[int]], Stage]] = {
    "bias": lambda ids: Bias(dict.fromkeys(ids, 1.0)),
    "allow": lambda ids: Allow([*ids, 0]),
    "ban": lambda ids: Ban([token for token in ids if token]),
    "min_tokens": lambda ids: MinTokens(1, [token for token in ids if token]),
}


@pytest.mark.parametrize("name", STAGES)
@given(ids=st.lists(st.integers(0, 40) | st.integers(0, 2**31 - 1), max_size=6), width=st.integers(1, 40), padding=st.integers(0, 3))
def test_any_list_of_ids_is_checked_against_the_row(name: str, ids: list[int], width: int, padding: int) -> None:
    """In range: the row is drawn from.  One outside, in the padding too: an error that names it.  The neighbour never notices."""
    row = np.linspace(0, 1, width + padding)
    chain, keys = Chain([STAGES[name](ids)]), [Key(1), Key(1)]
    batch = sample_batch([row, row], [chain, Chain()], keys, errors="return", vocabulary=width)
    outside = [token for token in ids if token >= width]
    if outside:
        assert isinstance(batch.errors[0], InvalidValue)
        assert str(batch.errors[0]).startswith(f"{name}: ")
        assert str(max(outside)) in str(batch.errors[0])
    else:
        assert 0 <= batch.tokens[0] < width
    assert batch.tokens[1] == sample(row[:width], Chain(), Key(1)).token


@pytest.mark.parametrize("name", STAGES)
@given(ids=st.lists(st.integers(-(2**40), 2**40), min_size=1, max_size=4))
def test_an_id_no_vocabulary_has_is_refused_when_the_stage_is_built(name: str, ids: list[int]) -> None:
    if all(0 <= token < 2**31 for token in ids):
        STAGES[name](ids)
    else:
        with pytest.raises(InvalidValue):
            STAGES[name](ids)


@given(
    token=st.integers(261, 2**31 - 1), where=st.sampled_from(["logit_bias", "allowed_tokens", "banned_tokens", "stop_tokens", "prompt"]),
    least=st.integers(0, 2), among=st.lists(st.integers(0, 255), max_size=3),
)
def test_any_id_list_of_a_request_is_checked_against_the_model(toy: Any, token: int, where: str, least: int, among: list[int]) -> None:
    listed = [*among, token]
    asked: dict[str, Any] = {"prompt": [84], "min_tokens": least, "max_tokens": 3}
    asked[where] = dict.fromkeys(listed, 0.5) if where == "logit_bias" else listed
    with pytest.raises(InvalidValue, match=str(token)):
        toy.generate(**asked)


def test_ids_of_the_history_that_a_row_does_not_have_are_left_alone() -> None:
    """Image placeholders and −1 are in histories on purpose (design): never penalised, never an error, and no neighbour's id either."""
    history = History(prompt=[-1, 9, 200_000], output=[-5, 2**31 - 1])
    for text in ("repetition(2.0)", "frequency(1.0)", "presence(1.0)"):
        row = [1.0, 2.0, 3.0]
        assert Chain.parse(text).candidates(row, history).logits.tolist() == row
