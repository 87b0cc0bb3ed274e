"""Verification of a drafted tree on Nalar's laws."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nalar.checks import check_choice, check_integer
from nalar.distribution import Distribution, Draw, check_draw
from nalar.errors import InvalidType, InvalidValue
from nalar.keys import Key
from nalar.sampling import Sample
from nalar.speculative.laws import Sparse
from nalar.speculative.proposal import Proposal, check_tokens
from nalar.speculative.randomness import Keyed, address
from nalar.speculative.tree import ROOT, Branches, check_tree, children_of, follow_tree, tree
from nalar.speculative.verdict import Verdict
from nalar.speculative.verifier import check_key

__all__ = ["Tree", "TreeVerdict", "verify_tree"]


@dataclass(frozen=True, slots=True, init=False)
class Tree:
    """Draft tokens that branch: ``tokens[j]`` is a child of node ``parents[j]``, −1 for the root; parents come before children.

    ``laws``: {node: Distribution} for the sampled nodes, at most one below each parent.  A sampled node's law leaves out its
    deterministic siblings, and node j is drawn with ``key.draft(j)`` of the step's key.  All other nodes may come from anywhere.

    >>> Tree([5, 6, 7], parents=[-1, -1, 0]).paths
    ((5,), (6,), (5, 7))
    """

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    laws: tuple[Distribution | None, ...]

    def __init__(self, tokens: Iterable[int], parents: Iterable[int], laws: Mapping[int, Distribution] | None = None) -> None:
        ids = check_tokens("tokens", tokens)
        above = tuple(check_integer("a parent", parent, ROOT) for parent in parents)
        for node, law in (laws or {}).items():
            check_integer("a node of laws", node, 0, len(ids) - 1)
            if not isinstance(law, Distribution):
                raise InvalidType(f"laws must be a mapping from node to Distribution, got {law!r} at node {node}")
        listed = tuple((laws or {}).get(node) for node in range(len(ids)))
        check_tree(ids, above, [None if law is None else Sparse.of(law) for law in listed])
        object.__setattr__(self, "tokens", ids)
        object.__setattr__(self, "parents", above)
        object.__setattr__(self, "laws", listed)

    @classmethod
    def chain(cls, proposal: Proposal) -> Tree:
        """A proposal as a tree without branches."""
        laws = dict(enumerate(proposal.laws or ()))
        return cls(proposal.tokens, range(-1, len(proposal) - 1), laws)

    @property
    def paths(self) -> tuple[tuple[int, ...], ...]:
        """For each node the draft tokens that lead to it, its own included."""
        paths: list[tuple[int, ...]] = [()]
        for token, parent in zip(self.tokens, self.parents, strict=True):
            paths.append((*paths[parent + 1], token))
        return tuple(paths[1:])

    def nodes_to(self, node: int) -> tuple[int, ...]:
        """The nodes from the root's child down to ``node``."""
        nodes: list[int] = []
        while node != ROOT:
            nodes.append(node)
            node = self.parents[node]
        return tuple(reversed(nodes))

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True, slots=True)
class TreeVerdict(Verdict):
    """A verdict, with the accepted ``nodes`` from the root down: what an engine keeps of the tree."""

    nodes: tuple[int, ...] = ()


def verify_tree(target: Sequence[Distribution], drafts: Tree, key: Key, rule: str | None = None, *, draw: Draw = "inverse") -> TreeVerdict:
    """Decide which path of ``drafts`` stands.

    ``target``: n + 1 Distributions for n nodes; ``target[0]`` at the root, ``target[j + 1]`` after node j.  ``rule``: "tree" (any
    deterministic children beside one sampled child, the default where a node was sampled) or "follow" (the target's own draws,
    the default otherwise).

    >>> p = Distribution.from_probs([0.5, 0.3, 0.2])
    >>> verify_tree([p, p, p], Tree([0, 1], parents=[-1, -1]), Key(seed=7, position=0)).tokens
    (2,)
    """
    if not isinstance(drafts, Tree):
        raise InvalidType(f"drafts must be a nalar.speculative.Tree, got {drafts!r}")
    _check_target(target, len(drafts))
    if rule is not None:
        check_choice("rule", rule, ("tree", "follow"))
    chosen = rule or ("tree" if any(law is not None for law in drafts.laws) else "follow")
    laws = tuple(None if law is None else Sparse.of(law) for law in drafts.laws)
    branches = Branches(drafts.tokens, laws, children_of(drafts.parents, laws))
    random = Keyed(check_key(key, Proposal(())), check_draw(draw))
    node, token = (tree if chosen == "tree" else follow_tree)([Sparse.of(law) for law in target], branches, random)
    nodes = drafts.nodes_to(node)
    keys = [address(key, "draw", depth) for depth in range(len(nodes) + 1)]
    if chosen == "tree":
        keys = [*(address(key, "accept", each) for each in nodes), address(key, "recover", node + 1)]
    emitted = [*(drafts.tokens[each] for each in nodes), token]
    places = [0, *(each + 1 for each in nodes)]
    samples = tuple(Sample(x, target[place].logprob(x), drawn) for x, place, drawn in zip(emitted, places, keys, strict=True))
    return TreeVerdict(len(nodes), samples, len(drafts), chosen, nodes=nodes)


def _check_target(target: Any, nodes: int) -> None:
    if len(target) != nodes + 1:
        raise InvalidValue(f"target must hold {nodes + 1} laws, one at the root and one after each node, got {len(target)}")
    for law in target:
        if not isinstance(law, Distribution):
            raise InvalidType(f"target must be a list of Distributions, got {law!r} in it")
