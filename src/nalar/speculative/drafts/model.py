"""A smaller model as draft: its own chain, its own cache, and samples that come with their laws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from nalar.chain import Chain
from nalar.checks import check_integer
from nalar.engines.base import Engine, Vocabulary, Work
from nalar.engines.base import Sequence as EngineSequence
from nalar.errors import EngineFull, InvalidValue
from nalar.history import History
from nalar.keys import Key
from nalar.sampling import Sample, check_chain, sample
from nalar.speculative.proposal import Proposal

__all__ = ["ModelDraft", "SampledDraft", "check_vocabularies"]

SLICE = 512


@dataclass(frozen=True)
class ModelDraft:
    """``draft=ModelDraft(engine, chain, length=4)``: tokens sampled from another engine with the same vocabulary.

    ``chain``: the draft's own law; it need not be the target's, but is best close to it (a greedy draft gives most of the gain
    away at temperatures above 0).  Vocabularies may differ in their padding: trailing ids of one that the other lacks.
    """

    engine: Engine
    chain: Chain = field(default_factory=Chain)
    length: int = 4

    def __post_init__(self) -> None:
        check_chain(self.chain)
        check_integer("length", self.length, 0)

    def begin(self, target: Engine) -> SampledDraft:
        """A draft for one reply, in a sequence of its own."""
        size = check_vocabularies(target.vocabulary, self.engine.vocabulary)
        return SampledDraft(self.engine, self.chain, size)


class SampledDraft:
    """One sequence of the draft engine.  What it holds is compared with the history each time, so nothing rejected stays in it."""

    def __init__(self, engine: Engine, chain: Chain, size: int) -> None:
        self._engine, self._chain, self._size = engine, chain, size
        self._sequence: EngineSequence | None = None

    def propose(self, history: History, key: Key, length: int) -> Proposal:
        """Up to ``length`` tokens, fewer where the draft's context ends; none where the text has ids that it does not know."""
        tokens = history.tokens.tolist()
        limits = self._engine.limits
        length = min(length, limits.context - len(tokens) + 1)
        if length < 1 or not tokens or not all(0 <= token < self._size for token in tokens):
            return Proposal.point(())
        try:
            return Proposal.sampled(self._drawn(history.copy(), tokens, key, length))
        except EngineFull:  # a draft that finds no room is no reason to fail
            self.close()
            return Proposal.point(())

    def observe(self, tokens: Sequence[int]) -> None:
        """Nothing to note: the history says it all."""

    def rollback(self, n: int) -> None:
        """Nothing to undo: the history says it all."""

    def close(self) -> None:
        """Free the sequence."""
        if self._sequence is not None:
            self._engine.close(self._sequence)
            self._sequence = None

    def _drawn(self, ahead: History, tokens: list[int], key: Key, length: int) -> list[Sample]:
        if self._sequence is None:
            self._sequence = self._engine.open()
        pending, drawn = self._caught_up(self._sequence, tokens), list[Sample]()
        for index in range(length):
            rows = self._engine.step([Work(self._sequence, tuple(pending))])[0]
            drawn.append(sample(rows[-1], self._chain, key.draft(index), ahead, keep_law=True, vocabulary=self._size))
            ahead.append(drawn[-1].token)
            pending = [drawn[-1].token]
        return drawn

    def _caught_up(self, sequence: EngineSequence, tokens: list[int]) -> list[int]:
        """Cut the cache back to what it shares with ``tokens``, feed all but the last few, and return those."""
        held = sequence.tokens
        pairs = enumerate(zip(held, tokens, strict=False))
        shared = min(next((i for i, (mine, theirs) in pairs if mine != theirs), len(held)), len(tokens) - 1)
        if shared < len(held):
            self._engine.truncate(sequence, shared)
        size = min(SLICE, self._engine.limits.step_tokens)
        while len(tokens) - shared > size:
            self._engine.step([Work(sequence, tuple(tokens[shared : shared + size]), rows=0)])
            shared += size
        return tokens[shared:]


def check_vocabularies(target: Vocabulary, draft: Vocabulary) -> int:
    """How many ids the two have in common; an error where an id means different things to them."""
    size = min(target.size, draft.size)
    differing = next((i for i in range(size) if target.pieces[i] != draft.pieces[i]), None)
    if differing is not None:
        meant = f"{target.pieces[differing]!r} there, {draft.pieces[differing]!r} in the draft"
        raise InvalidValue(f"draft must have the target's vocabulary: id {differing} is {meant}")
    if target.ends & set(range(size)) != draft.ends & set(range(size)):
        raise InvalidValue(f"draft must have the target's end ids {sorted(target.ends)}, got {sorted(draft.ends)}")
    return size
