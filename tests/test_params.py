"""What may be asked: every field's default, range and type, and errors that name argument, range and value."""

from __future__ import annotations

import copy
import dataclasses
import math
import pickle
from decimal import Decimal
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nalar import Chain, NalarError, SamplingParams
from nalar.errors import InvalidType, InvalidValue

INF, NAN = math.inf, math.nan
DEFAULTS = {  # the table of the design
    "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0,
    "repetition_penalty": 1.0, "frequency_penalty": 0.0, "presence_penalty": 0.0,
    "logit_bias": (), "allowed_tokens": None, "banned_tokens": (),
    "min_tokens": 0, "max_tokens": 256, "stop": (), "stop_tokens": (), "ignore_eos": False,
    "seed": None, "n": 1, "logprobs": None,
}
UNIT = [0, 1, 0.0, 1.0, 0.5, 5e-324, 1 - 2**-53, np.float32(0.5), np.float16(0.25), np.int64(1), Fraction(1, 2), Decimal("0.5")]
ANY_FINITE = [0, -2, 2.5, 1e308, -1e308, np.float64(-0.5), np.int8(-3)]
IDS = [(), [], [3, 1], (3, 1, 3), {1, 3}, range(4), np.array([3, 1]), np.array([3], np.uint8), [np.int32(3)], [2**31 - 1], {3: "x"}.keys()]
GOOD: dict[str, list[Any]] = {
    "temperature": [0, 0.0, 1, 0.7, 5e-324, 1e300, np.float32(0.5), np.int64(2), np.array(0.5), ml_dtypes.bfloat16(2), Fraction(1, 3)],
    "top_k": [0, 1, -1, None, 10**9, np.int32(5), np.uint8(5), np.int64(-1)],
    "top_p": UNIT,
    "min_p": UNIT,
    "repetition_penalty": [1, 1.3, 0.5, 5e-324, 1e300, np.float16(1.5)],
    "frequency_penalty": ANY_FINITE,
    "presence_penalty": ANY_FINITE,
    "logit_bias": [{}, {5: 1.5}, {5: -INF}, {np.int64(5): np.float32(2)}, {5: 1, 0: -1e308}, ((5, 1.0),), [(5, 1), (2, 2)]],
    "allowed_tokens": [None, *IDS],
    "banned_tokens": IDS,
    "min_tokens": [0, 1, 256, np.int64(3)],
    "max_tokens": [1, 10**9, np.uint64(7)],
    "stop": [(), [], "\n", ["a", "b"], ("a",), {"a"}, "é", "\U0001f600", "\x00", iter(["a"])],
    "stop_tokens": IDS,
    "ignore_eos": [True, False],
    "seed": [None, 0, 7, 2**64 - 1, np.uint64(2**64 - 1)],
    "n": [1, 3, np.int16(2)],
    "logprobs": [None, 0, 5, np.int64(2)],
}
NOT_NUMBERS: list[Any] = [True, False, np.True_, np.bool_(False), "0.5", b"1", np.str_("1"), [0.5], (1,), {}, object(), 1j, math]
NOT_FINITE = [NAN, INF, -INF, np.float32("nan"), np.float64("inf"), 10**400, Decimal("NaN")]
BAD_IDS: list[Any] = [
    5, "12", b"12", 1.0, True, [1.0], ["1"], [None], [True], [np.True_], [[1]], [1, 2.5], object(), [-1], [2**31], [-(2**40)],
]
BAD: dict[str, list[Any]] = {
    "temperature": [None, *NOT_NUMBERS, *NOT_FINITE, -1e-300, -1, np.float32(-0.5)],
    "top_k": [*NOT_NUMBERS, -2, -1.0, 1.5, 5.0, np.float64(5), np.float32(-1), NAN, INF, Fraction(5)],
    "top_p": [None, *NOT_NUMBERS, *NOT_FINITE, -1e-300, 1 + 2**-52, 2],
    "min_p": [None, *NOT_NUMBERS, *NOT_FINITE, -0.1, 1.1],
    "repetition_penalty": [None, *NOT_NUMBERS, *NOT_FINITE, 0, 0.0, -0.0, -1],
    "frequency_penalty": [None, *NOT_NUMBERS, *NOT_FINITE],
    "presence_penalty": [None, *NOT_NUMBERS, *NOT_FINITE],
    "logit_bias": [
        None, 5, "5", b"5", True, [5], {"5": 1.0}, {5.0: 1.0}, {True: 1.0}, {-1: 1.0}, {2**31: 1.0},
        {5: "1"}, {5: True}, {5: None}, {5: NAN}, {5: INF}, {5: np.float64("inf")}, [(5, 1.0), (5, 2.0)], [(5,)], [(5, 1.0, 2.0)],
    ],
    "allowed_tokens": BAD_IDS,
    "banned_tokens": [None, *BAD_IDS],
    "min_tokens": [None, *NOT_NUMBERS, -1, 1.0, NAN, 257],
    "max_tokens": [None, *NOT_NUMBERS, 0, -1, 1.0, INF],
    "stop": [None, 5, b"a", "", [""], ["a", ""], "\ud800", ["a\udfff"], [5], [None], [b"a"], [["a"]], True],
    "stop_tokens": [None, *BAD_IDS],
    "ignore_eos": [None, 0, 1, "true", np.True_, 1.0],
    "seed": [*NOT_NUMBERS, -1, 2**64, 1.0, NAN],
    "n": [None, *NOT_NUMBERS, 0, -1, 1.0],
    "logprobs": [*NOT_NUMBERS, -1, 1.0],
}


def pairs(table: dict[str, list[Any]]) -> list[Any]:
    return [pytest.param(name, value, id=f"{name}-{index}") for name, values in table.items() for index, value in enumerate(values)]


def test_the_tables_here_cover_every_field() -> None:
    names = [field.name for field in dataclasses.fields(SamplingParams)]
    assert names == list(DEFAULTS) == list(GOOD) == list(BAD)


@pytest.mark.parametrize("name", DEFAULTS)
def test_the_default_is_the_documented_one(name: str) -> None:
    value = getattr(SamplingParams(), name)
    assert value == DEFAULTS[name]
    assert type(value) is type(DEFAULTS[name])


def test_defaults_are_neutral() -> None:
    assert Chain.from_params(SamplingParams()) == Chain([])
    assert repr(SamplingParams()) == "SamplingParams()"


@pytest.mark.parametrize(("name", "value"), pairs(GOOD))
def test_a_value_in_range_is_taken(name: str, value: Any) -> None:
    params = SamplingParams(**{name: value})
    assert isinstance(hash(params), int)
    assert pickle.loads(pickle.dumps(params)) == copy.copy(params) == params


@pytest.mark.parametrize(("name", "value"), pairs(BAD))
def test_a_value_outside_is_an_error_that_names_the_argument(name: str, value: Any) -> None:
    with pytest.raises(NalarError) as caught:
        SamplingParams(**{name: value})
    assert isinstance(caught.value, ValueError | TypeError)
    text = str(caught.value)
    assert name.removesuffix("_tokens") in text or name in text
    assert "must" in text
    assert "got" in text


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("top_p", 1.3, "top_p must be a number in [0, 1], got 1.3"),
        ("temperature", -0.5, "temperature must be a finite number >= 0, got -0.5"),
        ("temperature", NAN, "temperature must be a finite number >= 0, got nan"),
        ("repetition_penalty", 0, "repetition_penalty must be a finite number > 0, got 0"),
        ("presence_penalty", "1", "presence_penalty must be a finite number, got '1'"),
        ("top_k", -2, "top_k must be an integer >= 0, got -2"),
        ("seed", 2**64, "seed must be an integer in [0, 18446744073709551615], got 18446744073709551616"),
        ("max_tokens", 0, "max_tokens must be an integer >= 1, got 0"),
        ("ignore_eos", 1, "ignore_eos must be True or False, got 1"),
    ],
)
def test_the_message_names_argument_range_and_value(name: str, value: Any, message: str) -> None:
    with pytest.raises(NalarError) as caught:
        SamplingParams(**{name: value})
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (InvalidType, {"top_p": "1"}), (InvalidType, {"n": True}), (InvalidType, {"stop": 3}),
        (InvalidValue, {"top_p": 2}), (InvalidValue, {"n": 0}),
    ],
)
def test_a_wrong_type_is_a_type_error_and_a_wrong_value_a_value_error(kind: type[Exception], fields: dict[str, Any]) -> None:
    with pytest.raises(kind):
        SamplingParams(**fields)


@pytest.mark.parametrize("value", [np.array(True), np.array("0.5"), np.array([0.5]), np.complex64(0.5)], ids=repr)
def test_an_array_or_complex_number_is_not_a_number(value: Any) -> None:
    with pytest.raises(InvalidType, match="temperature must be a finite number"):
        SamplingParams(temperature=value)


def test_ids_in_a_zero_dimensional_array_are_refused() -> None:
    with pytest.raises(InvalidType, match="banned_tokens must be a collection"):
        SamplingParams(banned_tokens=np.array(5))  # type: ignore[arg-type]


def test_numbers_are_stored_as_plain_python_values() -> None:
    params = SamplingParams(
        temperature=np.float32(0.5), top_k=np.int64(3), stop_tokens=np.array([9, 2]),
        logit_bias={np.int32(4): np.float32(-INF), 2: np.float64(-INF)},
    )
    assert [type(value) for value in (params.temperature, params.top_k)] == [float, int]
    assert params.stop_tokens == (2, 9)
    assert params.logit_bias == ((2, -INF), (4, -INF))
    assert {type(part) for pair in params.logit_bias for part in pair} == {int, float}


@pytest.mark.parametrize("value", [-1, None, 0, np.int64(-1)])
def test_minus_one_and_none_read_as_no_top_k(value: Any) -> None:
    assert SamplingParams(top_k=value).top_k == 0
    assert SamplingParams(top_k=value) == SamplingParams()


def test_ids_and_biases_are_sorted_so_that_equal_requests_are_equal() -> None:
    one = SamplingParams(banned_tokens=[5, 1, 5], allowed_tokens={7, 2}, logit_bias={9: 1.0, 3: 2.0})
    two = SamplingParams(banned_tokens=(1, 5), allowed_tokens=[2, 7, 7], logit_bias=[(3, 2), (9, 1)])
    assert one == two
    assert hash(one) == hash(two)
    assert one.logit_bias == ((3, 2.0), (9, 1.0))


def test_an_empty_allowed_set_is_not_no_set() -> None:
    assert SamplingParams(allowed_tokens=()).allowed_tokens == ()
    assert SamplingParams(allowed_tokens=()) != SamplingParams()


def test_stop_strings_keep_their_order_and_lose_their_repeats() -> None:
    assert SamplingParams(stop=["b", "a", "b"]).stop == ("b", "a")
    assert SamplingParams(stop="ab").stop == ("ab",)


def test_min_tokens_beyond_max_tokens_is_refused() -> None:
    assert SamplingParams(min_tokens=8, max_tokens=8).min_tokens == 8
    with pytest.raises(InvalidValue, match=r"min_tokens must be an integer in \[0, max_tokens = 8\], got 9"):
        SamplingParams(min_tokens=9, max_tokens=8)


@pytest.mark.parametrize("ask", [lambda: SamplingParams(temprature=0.5), lambda: SamplingParams().replace(temprature=0.5)])
def test_an_unknown_name_is_an_error_that_lists_the_known_ones(ask: Any) -> None:
    with pytest.raises(InvalidType) as caught:
        ask()
    assert "'temprature'" in str(caught.value)
    assert all(name in str(caught.value) for name in DEFAULTS)


@pytest.mark.parametrize("name", ["seed", "top_k", "n", "banned_tokens"])
def test_an_integer_too_long_to_print_is_told_by_its_length(name: str) -> None:
    huge: Any = -(10**5000)
    with pytest.raises(InvalidValue, match=r"got .*an integer of 16610 bits"):
        SamplingParams(**{name: [huge] if name == "banned_tokens" else huge})


def test_a_value_without_a_name_is_refused() -> None:
    with pytest.raises(TypeError):
        SamplingParams(0.8)  # type: ignore[misc]


def test_params_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        SamplingParams().top_k = 5  # type: ignore[misc]
    with pytest.raises((AttributeError, TypeError)):
        SamplingParams().tempature = 5  # type: ignore[attr-defined]


def test_replace_checks_the_new_values_and_leaves_the_old_object() -> None:
    params = SamplingParams(top_k=40, top_p=0.5)
    assert params.replace(top_p=0.9) == SamplingParams(top_k=40, top_p=0.9)
    assert params.top_p == 0.5
    with pytest.raises(InvalidValue, match="top_p"):
        params.replace(top_p=1.5)


def test_repr_tells_what_differs_from_the_defaults() -> None:
    params = SamplingParams(temperature=0.8, stop="x", seed=0)
    assert repr(params) == "SamplingParams(temperature=0.8, stop=('x',), seed=0)"
    assert eval(repr(params)) == params


@given(st.floats(allow_nan=True, allow_infinity=True))
def test_a_probability_is_taken_exactly_where_it_is_in_range(value: float) -> None:
    for name in ("top_p", "min_p"):
        if 0 <= value <= 1:
            assert getattr(SamplingParams(**{name: value}), name) == value
        else:
            with pytest.raises(InvalidValue):
                SamplingParams(**{name: value})


@given(st.integers(-(2**70), 2**70))
def test_a_seed_is_64_bits_without_a_sign(value: int) -> None:
    if 0 <= value < 2**64:
        assert SamplingParams(seed=value).seed == value
    else:
        with pytest.raises(InvalidValue, match="seed"):
            SamplingParams(seed=value)
