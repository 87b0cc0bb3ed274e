"""The stages a chain is made of, by family; ``Stage`` is the base of yours.  Imported when first asked for."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nalar.stages.base import Context, Memory, Stage
    from nalar.stages.constraints import Allow, Ban, Bias, MinTokens
    from nalar.stages.penalties import Frequency, Presence, Repetition
    from nalar.stages.temperature import Temperature
    from nalar.stages.truncation import MinP, TopK, TopP

__all__ = [
    "Allow", "Ban", "Bias", "Context", "Frequency", "Memory", "MinP", "MinTokens", "Presence", "Repetition", "Stage",
    "Temperature", "TopK", "TopP",
]

BASES = {"Context": "base", "Memory": "base", "Stage": "base"}
BUILT_IN = {
    "allow": "constraints:Allow",
    "ban": "constraints:Ban",
    "min_tokens": "constraints:MinTokens",
    "bias": "constraints:Bias",
    "repetition": "penalties:Repetition",
    "frequency": "penalties:Frequency",
    "presence": "penalties:Presence",
    "temperature": "temperature:Temperature",
    "top_k": "truncation:TopK",
    "top_p": "truncation:TopP",
    "min_p": "truncation:MinP",
}
MODULES = BASES | {path.split(":")[1]: path.split(":")[0] for path in BUILT_IN.values()}


def built_in(name: str) -> type[Stage]:
    """The built-in stage that is written ``name`` in a chain's text."""
    stage: type[Stage] = getattr(import_module(__name__), BUILT_IN[name].split(":")[1])
    return stage


def __getattr__(name: str) -> Any:
    if name not in MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{MODULES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
