"""Verification on Nalar's laws: which draft tokens stand, and the token after them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from nalar.checks import INT32_MAX, check_choice, check_integer
from nalar.distribution import Distribution, Draw, check_draw
from nalar.errors import InvalidType, InvalidValue
from nalar.keys import Key
from nalar.sampling import Sample
from nalar.speculative.laws import Law, Laws, Sparse
from nalar.speculative.lossy import Lossy
from nalar.speculative.proposal import Proposal
from nalar.speculative.randomness import Keyed, address
from nalar.speculative.rules import RULES, Decision
from nalar.speculative.verdict import Verdict

__all__ = ["RuleLike", "check_key", "check_proposal", "check_rule", "check_target", "decide", "describe", "verify"]

RuleLike = str | Lossy | None
Describe = Callable[[int, int, Key], Sample]  # place in the step, token, key → its Sample


def verify(
    target: Sequence[Distribution], proposal: Proposal, key: Key, rule: RuleLike = None, *,
    draw: Draw = "inverse", vocabulary: int | None = None,
) -> Verdict:
    """Decide how much of ``proposal`` stands: for researchers; a loop calls ``Sampler.step``, which has the right keys and laws.

    ``target``: k + 1 Distributions for k draft tokens, ``target[i]`` after the first i of them (a Window will do).  ``key``: its position
    is the step's start.  ``rule``: "follow", "token", "block", or a lossy rule by its own name; None is ``follow`` for tokens without
    laws and ``block`` with laws.  An empty proposal is always one plain draw.  ``draw``: how ``follow`` draws.  ``vocabulary``: how
    many ids there are; a draft id beyond is an error.

    Raises InvalidValue where a draft law gives its own token probability 0, for then it was not drawn from that law.

    >>> p, q = Distribution.from_probs([0.25, 0.75]), Distribution.from_probs([0.75, 0.25])
    >>> verdict = verify([p, p, p], Proposal([0, 1], [q, q]), Key(seed=7, position=0))
    >>> verdict.accepted, verdict.tokens
    (2, (0, 1, 0))
    """
    check_target(target, check_proposal(proposal))
    if vocabulary is not None:
        for token in proposal.tokens:
            check_integer("a draft token", token, 0, vocabulary - 1)
    decision, name = decide([Sparse.of(law) for law in target], proposal, key, rule, draw)

    def told(place: int, token: int, key: Key) -> Sample:
        return Sample(token, target[place].logprob(token), key)

    return describe(decision, name, proposal, key, told)


def decide(
    target: Laws, proposal: Proposal, key: Key, rule: RuleLike, draw: Draw = "inverse"
) -> tuple[Decision, str | Lossy]:
    """The decision, and the rule that made it."""
    chosen = check_rule(rule, proposal)
    random = Keyed(check_key(key, proposal), check_draw(draw))
    return (chosen if isinstance(chosen, Lossy) else RULES[chosen])(target, proposal.tokens, _drafts(proposal), random), chosen


def describe(decision: Decision, rule: str | Lossy, proposal: Proposal, key: Key, told: Describe) -> Verdict:
    """The verdict of a decision; ``told`` makes the Sample of each emitted token."""
    tokens = (*proposal.tokens[: decision.accepted], decision.token)
    follows, last = rule == "follow", decision.accepted
    keys = [address(key, "draw" if follows else "recover" if i == last else "accept", i) for i in range(last + 1)]
    samples = tuple(told(i, token, drawn) for i, (token, drawn) in enumerate(zip(tokens, keys, strict=True)))
    lossy = isinstance(rule, Lossy)
    return Verdict(decision.accepted, samples, len(proposal), rule.name if isinstance(rule, Lossy) else rule, float(decision.cost), lossy)


def check_target(target: Any, proposal: Proposal) -> None:
    """One Distribution more than draft tokens."""
    if not hasattr(target, "__len__") or not hasattr(target, "__getitem__"):
        raise InvalidType(f"target must be a list of Distributions, got {target!r}")
    if len(target) != len(proposal) + 1:
        raise InvalidValue(f"target must hold {len(proposal) + 1} laws, one more than the {len(proposal)} draft tokens, got {len(target)}")
    for law in target:
        if not isinstance(law, Distribution):
            raise InvalidType(f"target must be a list of Distributions, got {law!r} in it")


def check_proposal(proposal: Any) -> Proposal:
    """A proposal whose laws can have drawn its tokens."""
    if not isinstance(proposal, Proposal):
        raise InvalidType(f"proposal must be a nalar.Proposal, got {proposal!r}")
    for token, law in zip(proposal.tokens, proposal.laws or (), strict=False):
        if not law.prob(token) > 0:
            raise InvalidValue(f"a draft law must give its own token a probability above 0, got 0 for token {token}")
    return proposal


def check_key(key: Any, proposal: Proposal) -> Key:
    """The key of a step's start, and the one that the proposal was drawn for."""
    if not isinstance(key, Key):
        raise InvalidType(f"key must be a nalar.Key, got {key!r}")
    if key.position is None or key.purpose != "draw" or key.row:
        raise InvalidValue(f"key must be the key of the step's start, with a position, got {key!r}")
    if proposal.start is not None and proposal.start != key:
        raise InvalidValue(f"proposal must be drawn for this step, with the draft keys of {key!r}, got those of {proposal.start!r}")
    return key


def check_rule(rule: RuleLike, proposal: Proposal) -> str | Lossy:
    """The rule in force: the default where none is named; an empty draft leaves nothing to verify, so it is one plain draw."""
    if rule is not None and not isinstance(rule, Lossy):
        if not isinstance(rule, str):
            raise InvalidType(f"rule must be a name or a lossy rule such as nalar.speculative.lenient(0.5), got {rule!r}")
        check_choice("rule", rule, tuple(RULES))
    if not proposal.tokens:
        return "follow"
    return ("follow" if proposal.laws is None else "block") if rule is None else rule


def _drafts(proposal: Proposal) -> list[Law]:
    """The laws the tokens were drawn from; a token without one was all its law could draw."""
    if proposal.laws is None:
        return [Sparse.point(min(token, INT32_MAX)) for token in proposal.tokens]
    return [Sparse.of(law) for law in proposal.laws]
