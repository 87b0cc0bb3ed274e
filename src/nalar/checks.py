"""Validation in one place: each check returns the plain Python value or raises, naming argument, range and value.

bool is not a number here, NaN is in no range, and nothing is ever clamped.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import numpy as np

from nalar.errors import InvalidType, InvalidValue

__all__ = ["check_bias", "check_choice", "check_flag", "check_ids", "check_integer", "check_number", "check_text"]

INT32_MAX = 2**31 - 1

Word = TypeVar("Word", bound=str)


def check_number(name: str, value: Any, low: float = -math.inf, high: float = math.inf, *, above: bool = False) -> float:
    """A finite number in [low, high], or (low, high] with ``above``."""
    wanted = f"{name} must be {_number_range(low, high, above)}"
    number = _as_float(wanted, value)
    if not math.isfinite(number) or not low <= number <= high or (above and number == low):
        raise InvalidValue(f"{wanted}, got {value!r}")
    return number


def check_integer(name: str, value: Any, low: int, high: int | None = None) -> int:
    """An integer in [low, high]."""
    wanted = f"{name} must be an integer {f'>= {low}' if high is None else f'in [{low}, {high}]'}"
    integer = _as_integer(wanted, value)
    if integer < low or (high is not None and integer > high):
        raise InvalidValue(f"{wanted}, got {_told(integer)}")
    return integer


def check_flag(name: str, value: Any) -> bool:
    """True or False; 0, 1 and strings are not."""
    if not isinstance(value, bool):
        raise InvalidType(f"{name} must be True or False, got {value!r}")
    return value


def check_choice(name: str, value: Any, choices: tuple[Word, ...]) -> Word:
    """One of a few words."""
    if not isinstance(value, str) or value not in choices:
        raise InvalidValue(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")
    return choices[choices.index(value)]


def check_ids(name: str, values: Any, *, low: int = 0) -> tuple[int, ...]:
    """Token ids as a sorted tuple without repeats; a single id or a string is an error."""
    wanted = f"{name} must be a collection of token ids (integers in [{low}, {INT32_MAX}])"
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        raise InvalidType(f"{wanted}, got {values!r}")
    if getattr(values, "ndim", 1) != 1:
        raise InvalidType(f"{wanted}, got {values!r}")
    ids = {_as_integer(wanted, value) for value in values}
    outside = next((token for token in ids if not low <= token <= INT32_MAX), None)
    if outside is not None:
        raise InvalidValue(f"{wanted}, got the id {_told(outside)}")
    return tuple(sorted(ids))


def check_bias(name: str, bias: Any) -> tuple[tuple[int, float], ...]:
    """{id: finite or −inf} as a tuple of pairs sorted by id."""
    pairs = bias.items() if isinstance(bias, Mapping) else bias
    if isinstance(pairs, str | bytes) or not isinstance(pairs, Iterable):
        raise InvalidType(f"{name} must map token ids to numbers, got {bias!r}")
    try:
        listed = [(token, value) for token, value in pairs]
    except (TypeError, ValueError):
        raise InvalidType(f"{name} must map token ids to numbers, got {bias!r}") from None
    checked = {check_integer(f"{name}: a token id", token, 0, INT32_MAX): _check_bias_value(name, token, value) for token, value in listed}
    if len(checked) != len(listed):
        raise InvalidValue(f"{name} must name each token id once, got {bias!r}")
    return tuple(sorted(checked.items()))


def check_text(name: str, value: Any) -> str:
    """A string that can be written as UTF-8, and is not empty."""
    if not isinstance(value, str):
        raise InvalidType(f"{name} must be a string, got {value!r}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidValue(f"{name} must be text that UTF-8 can encode, got {value!r}") from None
    if not value:
        raise InvalidValue(f"{name} must not be empty, got {value!r}")
    return value


def _told(integer: int) -> str:
    """An integer as text; Python refuses to print very long ones."""
    return repr(integer) if integer.bit_length() <= 1000 else f"an integer of {integer.bit_length()} bits"


def _check_bias_value(name: str, token: int, value: Any) -> float:
    if isinstance(value, float | np.floating) and value == -math.inf:
        return -math.inf
    return check_number(f"{name}[{token}] (or -inf)", value)


def _as_float(wanted: str, value: Any) -> float:
    # NumPy's scalars and arrays define __float__ whatever they hold; text would be parsed, and a complex number lose a part.
    if isinstance(value, bool | str | bytes) or not hasattr(value, "__float__") or _kind(value) in {"b", "c", "U", "S"}:
        raise InvalidType(f"{wanted}, got {value!r}")
    try:
        return float(value)
    except OverflowError:
        raise InvalidValue(f"{wanted}, got an integer of {value.bit_length()} bits") from None
    except (TypeError, ValueError):
        raise InvalidType(f"{wanted}, got {value!r}") from None


def _as_integer(wanted: str, value: Any) -> int:
    if isinstance(value, bool) or _kind(value) == "b":
        raise InvalidType(f"{wanted}, got {value!r}")
    try:
        return operator.index(value)
    except TypeError:
        raise InvalidType(f"{wanted}, got {value!r}") from None


def _kind(value: Any) -> str:
    """NumPy's letter for what a scalar or a tensor holds: "b" bool, "c" complex, "U" and "S" text; "" for what has no dtype."""
    dtype = getattr(value, "dtype", None)
    return "b" if str(dtype) == "torch.bool" else str(getattr(dtype, "kind", ""))


def _number_range(low: float, high: float, above: bool) -> str:
    if low == -math.inf and high == math.inf:
        return "a finite number"
    if high == math.inf:
        return f"a finite number {'>' if above else '>='} {low:g}"
    return f"a number in {'(' if above else '['}{low:g}, {high:g}]"
