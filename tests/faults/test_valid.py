"""VALID: parameters and sentinels.  Refused where they are written down, never clamped, never `x or default`; neutral is exact.

Each case is a report of facts/faults.md on another engine, with the value that the report calls right.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nalar
from faults.scripted import PROMPT, scripted
from nalar import Chain, Distribution, History, Key, Sampler, SamplingParams, sample, sample_batch
from nalar.cli.commands import run
from nalar.errors import InvalidType, InvalidValue, NalarError, PromptTooLong
from nalar.model import LAW_FIELDS
from nalar.stages import Ban, Bias, Frequency, MinP, MinTokens, Presence, Repetition, Temperature, TopK, TopP

INF, NAN = math.inf, math.nan


@dataclass(frozen=True)
class Case:
    """Several spellings of one request, a row, and the ids that can be drawn then."""

    id: str
    fault: str
    asks: list[dict[str, Any]]
    row: list[float]
    ids: list[int]
    why: str


CASES = [
    Case("B076-minus-zero", "vLLM: two doors, two ranges", [{"temperature": -0.0}], [0, 9, 0], [1], "-0.0 acts as 0"),
    Case("B076-hot", "vLLM: 3.0 passed one door only", [{"temperature": 2.0}, {"temperature": 3.0}], [0, 9, 0], [0, 1, 2], "any finite T"),
    Case("B077-top_p", "LlamaFactory: `top_p or 1.0`", [{"top_p": 0.0}, {"top_p": 0}], [0, 0, 1], [2], "the narrowest is never widened"),
    Case("B077-temperature", "the same idiom", [{"temperature": 0.0}, {"temperature": 0}], [0, 1, 0], [1], "0 is greedy, not a default"),
    Case("B077-top_k-and-min_p", "the same idiom", [{"top_k": 0}, {"min_p": 0.0}], [0, 9, 0], [0, 1, 2], "0 is off here, documented"),
    Case("B079-top_p-0", "transformers: NaN in one framework", [{"top_p": 0.0}], [1, 2, 3], [2], "id 2 on every path"),
    Case("B080-top_p-1", "distilabel: the default was refused", [{"top_p": 1.0}, {"top_p": 1}], [3, -700, 0], [0, 1, 2], "valid, a no-op"),
    Case(
        "B081-top_k-0-is-off", "llama-cpp-python: 0 acted as 1", [{"top_k": 0, "temperature": 0.72, "top_p": 0.73}],
        [0.0, 2.8, 2.9, 3.0], [1, 2, 3], "weights at T=0.72: 1, 0.870, 0.757, 0.016; 70.8 % before the third, 99.4 % before the fourth",
    ),
    Case("B083-top_k-0", "lattice: an empty set became id 0", [{"top_k": 0, "top_p": 0.9}], [0, 0, 9], [2], "p(2) = 0.9998 > 0.9"),
    Case("B084-unset", "tpu-inference: greedy", [{}, {"top_k": None}, {"top_k": -1}, {"top_k": 0}], [0.5] * 50, list(range(50)), "off"),
    Case("B085-too-large", "vLLM: crash", [{"top_k": 5}, {"top_k": 6}, {"top_k": 100_000}], [0, 1, 2, 1, 0], [0, 1, 2, 3, 4], "no-op"),
    Case("B087-top_k-is-the-vocabulary", "mlx-lm: refused", [{"top_k": 5}], [0, 1, 2, 1, 0], [0, 1, 2, 3, 4], "no-op"),
    Case("B095-temperature-0", "llamafarm: T=0 drew at random", [{"temperature": 0}], [1.0, 1.1, 0.9], [1], "id 1 every time"),
    Case("B096-temperature-0", "nanoGPT: division by zero", [{"temperature": 0}, {"temperature": 0.0}], [1.0, 0.5, 3.0], [2], "argmax"),
]


def every_path(params: SamplingParams, row: list[float]) -> Iterator[tuple[str, Distribution]]:
    """The law of one request through each door, for each width of float."""
    chain = Chain.from_params(params)
    key = Key(seed=7)
    for dtype in (np.float16, np.float32, np.float64):
        array = np.array(row, dtype)
        yield f"distribution {dtype}", chain.distribution(array)
        yield f"text {dtype}", Chain.parse(str(chain)).distribution(array)
        yield f"sample {dtype}", _law(sample(array, chain, key, keep_law=True))
        yield f"batch {dtype}", _law(sample_batch(np.stack([array, array]), chain, [key, key], keep_law=True).samples[1])
        yield f"sampler {dtype}", _law(Sampler(chain, seed=7).sample(array, keep_law=True))


def _law(drawn: Any) -> Distribution:
    assert drawn.token in drawn.law.ids
    return drawn.law


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_a_reported_fault_stays_away(case: Case) -> None:
    for ask in case.asks:
        for path, law in every_path(SamplingParams(**ask), case.row):
            assert law.ids.tolist() == case.ids, f"{path}: {case.why}"


@pytest.mark.parametrize("ask", [{"top_p": 1.0}, {"top_k": 0}, {"top_k": 5}, {"top_k": 100_000}],
                         ids=["B080-exact", "B081-exact", "B087-exact", "B085-exact"])
def test_a_filter_that_is_off_changes_no_bit(ask: dict[str, Any]) -> None:
    row = [0.3, -1.7, 2.9, 0.0, -40.0]
    for _, law in every_path(SamplingParams(**ask), row):
        assert law.ids.tolist() == [0, 1, 2, 3, 4]
    assert _same(Chain.from_params(SamplingParams(**ask)).distribution(row), Chain().distribution(row))


def _same(one: Distribution, other: Distribution) -> bool:
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in ("ids", "probs", "logprobs"))


REFUSED = [
    ("B073-not-finite", "sglang: the check was t < 0, false for NaN", [{"temperature": value} for value in (NAN, INF, -INF)]),
    ("B075-from-json", "Rapid-MLX: NaN crashed the GPU, and the message echoed it into JSON", [
        {name: value} for name in ("temperature", "top_p", "min_p", "repetition_penalty", "frequency_penalty")
        for value in json.loads('[NaN, Infinity, -Infinity, "NaN", "Infinity"]')
    ]),
    ("B089-min_tokens_to_keep", "transformers: 0 was accepted and could empty the row", [{"min_tokens_to_keep": 0, "top_p": 1e-9}]),
    # the design wins over the report: 0 is no "zero tokens" but an error; prompts are scored by `prompt_logprobs`
    ("B091-max_tokens", "ms-swift, DeepSpeed: a negative budget was accepted", [{"max_tokens": value} for value in (-239, -1, 0, None)]),
]


@pytest.mark.parametrize("asks", [pytest.param(asks, id=id) for id, _, asks in REFUSED])
def test_what_the_report_calls_an_error_is_one_at_every_door(asks: list[dict[str, Any]]) -> None:
    with nalar.load("toy") as model:
        doors: list[Callable[..., Any]] = [
            lambda ask: SamplingParams().replace(**ask), lambda ask: SamplingParams(**ask), lambda ask: model.generate("The ", **ask),
        ]
        for ask in asks:
            for door in doors:
                with pytest.raises((ValueError, TypeError)) as caught:
                    door(ask)
                assert next(iter(ask)) in str(caught.value), "the cause is named"
                json.loads(json.dumps({"error": str(caught.value), "args": caught.value.args}, allow_nan=False))  # B075


@pytest.mark.parametrize(("value", "good"), [
    ("-0.0", True), ("0", True), ("2.0", True), ("3.0", True),
    ("-1", False), ("nan", False), ("inf", False), ("-inf", False), ("1e400", False),
])
def test_b076_one_range_of_temperature_at_every_door(value: str, good: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """B076, and B073 on the command line: parameters, stage, chain's text and command agree."""
    number = float(value)
    doors: list[Callable[[], Any]] = [
        lambda: SamplingParams(temperature=number), lambda: SamplingParams().replace(temperature=number),
        lambda: Temperature(number), lambda: Chain.parse(f"temperature({value})"),
    ]
    for door in doors:
        if good:
            door()
        else:
            with pytest.raises(NalarError):
                door()
    status = run(["generate", "The ", "--model", "toy", "--max-tokens", "1", f"--temperature={value}"])
    told = capsys.readouterr().err
    assert status == (0 if good else 2)
    assert good or ("temperature" in told and len(told.splitlines()) == 1)


def test_b077_zeros_are_values_on_the_command_line_too(capsys: pytest.CaptureFixture[str]) -> None:
    """B077: temperature, top_k, top_p, min_p and seed 0 through `or`."""
    asked = ["--temperature=0", "--top-k=0", "--top-p=0", "--min-p=0", "--seed=0", "--max-tokens=3", "--json"]
    assert run(["generate", "The ", "--model", "toy", *asked]) == 0
    record = json.loads(capsys.readouterr().out)
    assert (record["seed"], record["chain"]) == (0, "temperature(0.0) | top_p(0.0)")
    with nalar.load("toy") as model:
        out = model.generate("The ", seed=0, max_tokens=4)
        assert (out.seed, out.tokens) == (0, model.generate("The ", seed=0, max_tokens=4).tokens)
    assert Sampler(Chain(), seed=0).seed == 0


def test_b088_more_logprobs_than_tokens_is_a_clean_refusal() -> None:
    """B088, sglang: 20 of 8 killed the scheduler.  Right: 8 entries or a clean rejection; all 8 of 8 are there, and the model goes on."""
    row = np.arange(8.0)
    with pytest.raises(InvalidValue, match=r"logprobs must be an integer in \[0, 8\], got 20"):
        sample(row, Chain(), Key(1), logprobs=20)
    assert [best.token for best in sample(row, Chain(), Key(1), logprobs=8).top] == list(range(7, -1, -1))
    model = scripted([row])
    for call in (model.generate, model.generate_n):
        with pytest.raises(InvalidValue, match="logprobs"):
            call(PROMPT, logprobs=20, max_tokens=2)
    assert len(model.generate(PROMPT, logprobs=8, max_tokens=1, temperature=0).raw_top[0]) == 8
    assert len(model.engine.open_slots) <= 1, "a refused call leaves no sequence open (one is kept as a prefix)"


def test_b089_the_narrowest_nucleus_keeps_a_token() -> None:
    """B089: with top_p=1e-9 a row was emptied."""
    assert Chain([TopP(1e-9)]).distribution([0.0, 0.0, 0.1]).ids.tolist() == [2]
    assert Chain([MinP(1.0), TopP(1e-9, crossing=False)]).distribution([0.0, 0.0, 0.1]).ids.tolist() == [2]


def test_b091_a_budget_is_never_what_the_prompt_left() -> None:
    """B091: context − prompt went negative.  Right: the cause is named; a prompt that just fits gives the token that follows it."""
    with nalar.load("toy", context=8) as model:
        with pytest.raises(PromptTooLong, match=r"context of 8 tokens, got 247 tokens"):
            model.generate("x" * 247)
        out = model.generate("x" * 8, max_tokens=100, ignore_eos=True)
        assert (len(out.tokens), out.finish_reason) == (1, "length")


@pytest.mark.parametrize("name", [*LAW_FIELDS, "min_tokens"])
def test_b095_what_is_asked_reaches_the_chain(name: str) -> None:
    """B095: a documented penalty argument was never passed on.  Right: each parameter of the law changes the law."""
    value = {
        "temperature": 0.5, "top_k": 2, "top_p": 0.5, "min_p": 0.5, "logit_bias": {1: 2.0},
        "allowed_tokens": [0, 1], "banned_tokens": [1], "min_tokens": 9,
    }.get(name, 1.5)
    row, history = [1.0, 2.0, 0.5], History(prompt=[1], output=[1, 0])
    changed = Chain.from_params(SamplingParams(**{name: value}), ends=[2]).distribution(row, history)
    assert not _same(changed, Chain().distribution(row, history))


# --- the rule, once for all -------------------------------------------------------------------------------------------

FLOATS = st.floats() | st.integers(-5, 5) | st.sampled_from([5e-324, -5e-324, 1 + 2**-52, -0.0, 1e308])
INTEGERS = st.integers(-3, 3) | st.integers() | st.sampled_from([2**63, 2**64, 2**64 - 1, -(2**63)])
WRONG = st.sampled_from([True, False, np.True_, "1", "", b"1", "NaN", [1], (), {}, 1j, object()])
BAD_IDS = st.sampled_from([[-1], [2**31], [-(2**63)], [True], [1.0], ["1"], [None], 3, "12", [[]], [()]])
UNIT = FLOATS.filter(lambda value: not 0 <= value <= 1)
OUTSIDE: dict[str, st.SearchStrategy[Any]] = {  # by name, whatever is not in the design's table
    "temperature": FLOATS.filter(lambda value: not 0 <= value < INF) | WRONG | st.none(),
    "top_k": INTEGERS.filter(lambda value: value < -1) | st.floats() | WRONG,
    "top_p": UNIT | WRONG | st.none(),
    "min_p": UNIT | WRONG | st.none(),
    "repetition_penalty": FLOATS.filter(lambda value: not 0 < value < INF) | WRONG | st.none(),
    "frequency_penalty": st.sampled_from([NAN, INF, -INF]) | WRONG | st.none(),
    "presence_penalty": st.sampled_from([NAN, INF, -INF]) | WRONG | st.none(),
    "logit_bias": st.sampled_from([
        {1: NAN}, {1: INF}, {-1: 1.0}, {2**31: 1.0}, {"1": 1.0}, {True: 1.0}, {1: True}, {1: "x"}, {1: None},
        {(): 1.0}, 5, "ab", [(1, 1.0), (1, 2.0)],
    ]),
    "allowed_tokens": BAD_IDS, "banned_tokens": BAD_IDS | st.none(), "stop_tokens": BAD_IDS | st.none(),
    "min_tokens": INTEGERS.filter(lambda value: not 0 <= value <= 256) | st.floats() | WRONG | st.none(),
    "max_tokens": INTEGERS.filter(lambda value: value < 1) | st.floats() | WRONG | st.none(),
    "stop": st.sampled_from(["", [""], ["a", ""], b"a", [b"a"], 5, [5], [None], None, "\ud800", True]),
    "ignore_eos": st.sampled_from([0, 1, "true", None, 1.0, [], np.True_]),
    "seed": INTEGERS.filter(lambda value: not 0 <= value < 2**64) | st.floats() | WRONG,
    "n": INTEGERS.filter(lambda value: value < 1) | st.floats() | WRONG | st.none(),
    "logprobs": INTEGERS.filter(lambda value: value < 0) | st.floats() | WRONG,
}


@pytest.mark.parametrize("name", [field.name for field in fields(SamplingParams)])  # a new field without a row here is an error
@given(data=st.data())
def test_a_value_outside_its_range_is_an_error_that_names_it(name: str, data: st.DataObject) -> None:
    value = data.draw(OUTSIDE[name])
    with pytest.raises((InvalidValue, InvalidType), match=f"{name}|stop string") as caught:
        SamplingParams(**{name: value})
    json.dumps(str(caught.value), allow_nan=False)
    with pytest.raises(NalarError):
        SamplingParams().replace(**{name: value})


NEUTRAL: dict[str, list[Any]] = {
    "temperature": [1, 1.0], "top_k": [0, -1, None], "top_p": [1, 1.0], "min_p": [0, 0.0, -0.0], "repetition_penalty": [1, 1.0],
    "frequency_penalty": [0, 0.0, -0.0], "presence_penalty": [0, 0.0, -0.0], "logit_bias": [{}, ()], "allowed_tokens": [None],
    "banned_tokens": [(), []], "min_tokens": [0], "stop_tokens": [()], "ignore_eos": [True, False],
}
STAGES = [
    Temperature(1), TopK(0), TopK(99), TopP(1), MinP(0), Repetition(1), Frequency(0), Presence(-0.0), Bias({}), Ban([]), MinTokens(0, [1]),
]


@given(
    row=st.lists(st.floats(-1e4, 1e4) | st.just(-INF), min_size=2, max_size=12).filter(lambda row: max(row) > -INF),
    tokens=st.lists(st.integers(0, 12), max_size=6), dtype=st.sampled_from([np.float16, np.float32, np.float64]),
)
def test_a_neutral_value_is_the_exact_identity(row: list[float], tokens: list[int], dtype: Any) -> None:
    array, history = np.array(row, dtype), History(prompt=tokens[:3], output=tokens[3:])
    plain = Chain().distribution(array, history)
    for name, values in NEUTRAL.items():
        for value in values:
            chain = Chain.from_params(SamplingParams(**{name: value}), ends=[1])
            assert str(chain) == "identity", f"{name}={value!r} is dropped"
    for stage in STAGES:
        assert np.array_equal(Chain([stage]).candidates(array, history).logits, array.astype(np.float64)), stage
        assert _same(Chain([stage]).distribution(array, history), plain), stage
