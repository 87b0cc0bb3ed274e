"""What is asked: the sampling parameters of one request, validated where they are written down."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from nalar.checks import check_bias, check_flag, check_ids, check_integer, check_number, check_text
from nalar.errors import InvalidType, InvalidValue

__all__ = ["SamplingParams"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """The parameters of one request.  Frozen, hashable; a value outside its range is an error, never a clamp, and so is an
    unknown name.

    | field | range | neutral | what it does |
    | --- | --- | --- | --- |
    | ``temperature`` | finite, ≥ 0 | 1 | divides the logits; 0 is greedy |
    | ``top_k`` | integer ≥ 0 (−1 and None read as 0) | 0 | keeps the k most likely tokens |
    | ``top_p`` | [0, 1] | 1 | keeps the most likely tokens that together reach p; 0 keeps the most likely one |
    | ``min_p`` | [0, 1] | 0 | keeps tokens at least min_p times as likely as the most likely |
    | ``repetition_penalty`` | finite, > 0 | 1 | divides positive and multiplies other logits of ids seen in prompt or output |
    | ``frequency_penalty``, ``presence_penalty`` | finite | 0 | subtracted per occurrence, or once, for ids in the output |
    | ``logit_bias`` | {id: finite or −inf} | {} | added to logits |
    | ``allowed_tokens``, ``banned_tokens`` | ids | None, () | hard masks |
    | ``min_tokens``, ``max_tokens`` | integers ≥ 0, ≥ 1 | 0, none | output tokens before the reply may end, and at most |
    | ``stop``, ``stop_tokens``, ``ignore_eos`` | strings; ids; flag | (), (), False | what ends a reply |
    | ``seed``, ``n``, ``logprobs`` | [0, 2⁶⁴) or None; ≥ 1; None or ≥ 0 | None, 1, None | randomness, replies, reporting |

    >>> SamplingParams(temperature=0.8, top_k=40)
    SamplingParams(temperature=0.8, top_k=40)
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    logit_bias: Mapping[int, float] | tuple[tuple[int, float], ...] = ()
    allowed_tokens: Iterable[int] | None = None
    banned_tokens: Iterable[int] = ()
    min_tokens: int = 0
    max_tokens: int = 256
    stop: str | Iterable[str] = ()
    stop_tokens: Iterable[int] = ()
    ignore_eos: bool = False
    seed: int | None = None
    n: int = 1
    logprobs: int | None = None

    def __new__(cls, *positional: Any, **named: Any) -> SamplingParams:
        """An unknown name is a mistake of the caller's, and told as one."""
        if positional:
            raise InvalidType(f"sampling parameters must be given by name, got {positional[0]!r}")
        unknown = [name for name in named if name not in cls.__dataclass_fields__]
        if unknown:
            known = ", ".join(cls.__dataclass_fields__)
            raise InvalidType(f"a sampling parameter must be one of {known}, got {', '.join(map(repr, unknown))}")
        return object.__new__(cls)

    def __post_init__(self) -> None:
        for name, value in self._checked().items():
            object.__setattr__(self, name, value)
        if self.min_tokens > self.max_tokens:
            raise InvalidValue(f"min_tokens must be an integer in [0, max_tokens = {self.max_tokens}], got {self.min_tokens}")

    def _checked(self) -> dict[str, Any]:
        return {
            "temperature": check_number("temperature", self.temperature, 0),
            "top_k": _check_top_k(self.top_k),
            "top_p": check_number("top_p", self.top_p, 0, 1),
            "min_p": check_number("min_p", self.min_p, 0, 1),
            "repetition_penalty": check_number("repetition_penalty", self.repetition_penalty, 0, above=True),
            "frequency_penalty": check_number("frequency_penalty", self.frequency_penalty),
            "presence_penalty": check_number("presence_penalty", self.presence_penalty),
            "logit_bias": check_bias("logit_bias", self.logit_bias),
            "allowed_tokens": None if self.allowed_tokens is None else check_ids("allowed_tokens", self.allowed_tokens),
            "banned_tokens": check_ids("banned_tokens", self.banned_tokens),
            "min_tokens": check_integer("min_tokens", self.min_tokens, 0),
            "max_tokens": check_integer("max_tokens", self.max_tokens, 1),
            "stop": _check_stop(self.stop),
            "stop_tokens": check_ids("stop_tokens", self.stop_tokens),
            "ignore_eos": check_flag("ignore_eos", self.ignore_eos),
            "seed": None if self.seed is None else check_integer("seed", self.seed, 0, 2**64 - 1),
            "n": check_integer("n", self.n, 1),
            "logprobs": None if self.logprobs is None else check_integer("logprobs", self.logprobs, 0),
        }

    def replace(self, **changes: Any) -> SamplingParams:
        """These parameters with ``changes``.

        >>> SamplingParams(top_k=40).replace(top_p=0.9)
        SamplingParams(top_k=40, top_p=0.9)
        """
        return SamplingParams(**{field.name: getattr(self, field.name) for field in fields(self)} | changes)

    def __repr__(self) -> str:
        told = ((field.name, getattr(self, field.name), field.default) for field in fields(self))
        return f"SamplingParams({', '.join(f'{name}={value!r}' for name, value, default in told if value != default)})"


def _check_top_k(value: Any) -> int:
    """−1 and None are how several engines write "off"; both read as 0."""
    if value is None or (isinstance(value, int | np.integer) and value == -1):
        return 0
    return check_integer("top_k", value, 0)


def _check_stop(stop: Any) -> tuple[str, ...]:
    """One string or several, in the order given, without repeats."""
    if isinstance(stop, str):
        stop = (stop,)
    if isinstance(stop, bytes) or not isinstance(stop, Iterable):
        raise InvalidType(f"stop must be a string or a collection of strings, got {stop!r}")
    return tuple(dict.fromkeys(check_text("a stop string", value) for value in stop))
