"""What a draft claims: tokens, and for sampled ones the law that each was drawn from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from nalar.checks import INT32_MAX, check_integer
from nalar.distribution import Distribution
from nalar.errors import InvalidType, InvalidValue
from nalar.keys import Key
from nalar.sampling import Sample

__all__ = ["NOTHING", "Proposal"]


@dataclass(frozen=True, slots=True, init=False)
class Proposal:
    """Draft tokens for one step.  Three ways to make one, by what is known of how they were drawn:

    ``Proposal.point(tokens)``: from anywhere (n-grams, an argmax, beam search, another service): no law is claimed, none is needed.
    ``Proposal.sampled(samples)``: Samples drawn with ``keep_law=True`` and the keys ``key.draft(0)``, ``key.draft(1)``, … of this step.
    ``Proposal(tokens, distributions)``: the raw form.  The law of each token is the caller's own claim, and a wrong claim (a draft
    taken greedily, say, with the law it was not drawn from) biases every rule that believes it.

    How many tokens there are may depend on the prefix, the load and the past, never on the drafted tokens themselves: leaving out
    a token *because of* its own probability biases the output by 0.03 to 0.17 in total variation (facts in docs/speculative.md).

    >>> Proposal.point([3, 9, 9])
    Proposal([3, 9, 9])
    >>> Proposal([1], distributions=[Distribution.from_probs([0.25, 0.75])]).laws
    (Distribution(ids=[0, 1], probs=[0.25, 0.75]),)
    """

    tokens: tuple[int, ...]
    laws: tuple[Distribution, ...] | None
    start: Key | None  # the key of the step that the tokens were drawn for; None when unknown

    def __init__(self, tokens: Iterable[int], distributions: Sequence[Distribution] | None = None) -> None:
        self._fill(check_tokens("tokens", tokens), distributions, None)

    @classmethod
    def point(cls, tokens: Iterable[int]) -> Proposal:
        """Tokens without a law; by default verified by ``follow``."""
        return cls(tokens)

    @classmethod
    def sampled(cls, samples: Sequence[Sample]) -> Proposal:
        """Sampled tokens with the laws they were drawn from; by default verified by ``block``.

        Sample i must have been drawn with ``key.draft(i)``, where ``key`` is the sampler's key at the start of the step.

        >>> import nalar
        >>> key = nalar.Key(seed=7, position=4)
        >>> drawn = nalar.sample([0.0, 1.0], nalar.Chain(), key.draft(0), keep_law=True)
        >>> Proposal.sampled([drawn]).start == key
        True
        """
        drawn = list(samples)
        for sample in drawn:
            if not isinstance(sample, Sample):
                raise InvalidType(f"samples must be a list of Samples, got {sample!r}")
            if sample.law is None:
                raise InvalidValue("samples must be drawn with keep_law=True: without its law a drafted token cannot be verified")
        proposal = cls.__new__(cls)
        laws = [sample.law for sample in drawn if sample.law is not None]
        proposal._fill(check_tokens("samples", [sample.token for sample in drawn]), laws, _start_of([sample.key for sample in drawn]))
        return proposal

    def _fill(self, tokens: tuple[int, ...], laws: Sequence[Distribution] | None, start: Key | None) -> None:
        if laws is not None:
            _check_laws(laws, len(tokens))
        object.__setattr__(self, "tokens", tokens)
        object.__setattr__(self, "laws", None if laws is None else tuple(laws))
        object.__setattr__(self, "start", start)

    def __len__(self) -> int:
        return len(self.tokens)

    def __repr__(self) -> str:
        return f"Proposal({list(self.tokens)}{'' if self.laws is None else f', {len(self.laws)} distributions'})"


def check_tokens(name: str, tokens: Any) -> tuple[int, ...]:
    """Draft token ids, in order."""
    if isinstance(tokens, str | bytes) or not isinstance(tokens, Iterable):
        raise InvalidType(f"{name} must be a list of token ids, got {tokens!r}")
    return tuple(check_integer("a draft token", token, 0, INT32_MAX) for token in tokens)


def _check_laws(laws: Any, size: int) -> None:
    if not isinstance(laws, Sequence):
        raise InvalidType(f"distributions must be a list of Distributions, got {laws!r}")
    for law in laws:
        if not isinstance(law, Distribution):
            raise InvalidType(f"distributions must be a list of Distributions (see Distribution.from_probs), got {law!r}")
    if len(laws) != size:
        raise InvalidValue(f"distributions must be one for each of the {size} tokens, got {len(laws)}")


def _start_of(keys: list[Key]) -> Key | None:
    """The key of the step whose draft keys these are."""
    if not keys:
        return None
    first = keys[0]
    if first.position is None:
        raise InvalidValue("samples must be drawn with key.draft(i) of the step's start, got a key without a position")
    start = Key(first.seed, first.sequence, first.position, first.attempt)
    wrong = next((i for i, key in enumerate(keys) if key != start.draft(i)), None)
    if wrong is not None:
        wanted = "samples must be drawn with key.draft(0), key.draft(1), … of one step's start"
        raise InvalidValue(f"{wanted}, got {keys[wrong]} for sample {wrong}")
    return start


NOTHING = Proposal.point(())  # a step without a draft
