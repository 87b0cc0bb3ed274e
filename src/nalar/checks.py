"""Validation in one place: each check returns the plain Python value or raises, naming argument, range and value.

bool is not a number here, NaN is in no range, and nothing is ever clamped.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from typing import Any

from nalar.errors import InvalidType, InvalidValue

__all__ = ["check_choice", "check_flag", "check_ids", "check_integer", "check_number", "check_text"]

INT32_MAX = 2**31 - 1


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
        raise InvalidValue(f"{wanted}, got {value!r}")
    return integer


def check_flag(name: str, value: Any) -> bool:
    """True or False; 0, 1 and strings are not."""
    if not isinstance(value, bool):
        raise InvalidType(f"{name} must be True or False, got {value!r}")
    return value


def check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    """One of a few words."""
    if value not in choices:
        raise InvalidValue(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")


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
        raise InvalidValue(f"{wanted}, got the id {outside}")
    return tuple(sorted(ids))


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
