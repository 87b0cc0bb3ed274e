"""What a draft is: something that guesses what comes next.  The whole contract is on this screen.

A good guess makes a step yield more tokens; a bad one costs time, and never changes the law.  How many tokens to propose may
depend on the prefix, the load and the past, never on the proposed tokens' own probabilities.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from nalar.engines.base import Engine
from nalar.history import History
from nalar.keys import Key
from nalar.speculative.proposal import Proposal

__all__ = ["Draft", "DraftSource"]


@runtime_checkable
class Draft(Protocol):
    """The draft of one sequence.  The loop tells it what was emitted; proposed tokens that were rejected never happened.

    ``propose`` gets the history so far, and the key of the step: a sampled token i must be drawn with ``key.draft(i)``, and come with
    the law it was drawn from (``Proposal.sampled``).  Anything else is ``Proposal.point``.
    """

    def propose(self, history: History, key: Key, length: int) -> Proposal: ...  # at most `length` tokens, none is fine
    def observe(self, tokens: Sequence[int]) -> None: ...  # first the prompt, then what each step emitted
    def rollback(self, n: int) -> None: ...  # the last n emitted tokens never happened
    def close(self) -> None: ...  # idempotent


@runtime_checkable
class DraftSource(Protocol):
    """What ``draft=`` takes: makes a Draft for each reply.  ``length``: how many tokens a step proposes at most."""

    length: int

    def begin(self, target: Engine) -> Draft: ...  # checks the vocabularies; raises InvalidValue where they do not fit
