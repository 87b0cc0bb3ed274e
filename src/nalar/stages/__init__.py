"""The stages a chain is made of, by family; ``Stage`` is the base of yours."""

from nalar.stages.base import Context, Memory, Stage
from nalar.stages.constraints import Allow, Ban, Bias, MinTokens
from nalar.stages.penalties import Frequency, Presence, Repetition
from nalar.stages.temperature import Temperature
from nalar.stages.truncation import MinP, TopK, TopP

__all__ = [
    "Allow", "Ban", "Bias", "Context", "Frequency", "Memory", "MinP", "MinTokens", "Presence", "Repetition", "Stage",
    "Temperature", "TopK", "TopP",
]

BUILT_IN: dict[str, type[Stage]] = {  # by the name in a chain's text
    stage.name: stage for stage in (Allow, Ban, MinTokens, Bias, Repetition, Frequency, Presence, Temperature, TopK, TopP, MinP)
}
