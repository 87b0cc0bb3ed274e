"""Several branches at once: any deterministic children, and at most one sampled child, at each node.

A tree is three parallel columns, parents before children: ``tokens[j]``, ``parents[j]`` (−1 is the root, the point before the draft),
and ``laws[j]``, the law the token was drawn from, None for a deterministic child.  ``target[0]`` is the law at the root,
``target[j + 1]`` the law after node j.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from nalar.errors import InvalidValue
from nalar.speculative.laws import Law, Laws, Number
from nalar.speculative.randomness import Randomness
from nalar.speculative.rules import remainder

__all__ = ["ROOT", "Branch", "Branches", "check_tree", "children_of", "follow_tree", "tree"]

ROOT = -1
DEEPEST = 256  # a rule calls itself at each level


class Branch(NamedTuple):
    """Where a tree was left: at ``node`` (−1 is the root), with ``token`` drawn there."""

    node: int
    token: int


@dataclass(frozen=True, slots=True)
class Branches:
    """The children of every node, the sampled one first."""

    tokens: tuple[int, ...]
    laws: tuple[Law | None, ...]
    children: tuple[tuple[int, ...], ...]  # [0] are the root's, [j + 1] node j's

    def of(self, node: int) -> tuple[int, ...]:
        """The children of ``node``."""
        return self.children[node + 1]

    def sampled(self, node: int) -> int | None:
        """The sampled child of ``node``, if it has one."""
        return next((child for child in self.of(node) if self.laws[child] is not None), None)

    def fixed(self, node: int) -> list[int]:
        """The tokens of the deterministic children of ``node``."""
        return [self.tokens[child] for child in self.of(node) if self.laws[child] is None]


def follow_tree(target: Laws, drafts: Branches, random: Randomness) -> Branch:
    """Draw from the target at each depth, and descend while the draw is a child: ``follow`` on a tree.

    Optimal where all children are deterministic, and the same tokens as without a draft.
    """
    node, depth = ROOT, 0
    while True:
        drawn = random.choose(target[node + 1], "draw", depth)
        child = next((child for child in drafts.of(node) if drafts.tokens[child] == drawn), None)
        if child is None:
            return Branch(node, drawn)
        node, depth = child, depth + 1


def tree(target: Laws, drafts: Branches, random: Randomness) -> Branch:
    """Hybrid conditional optimal transport.  At a node with target p that carries the scale s (1 at the root):

        m(x) = min(s·p(x), q(x)) outside the deterministic children D;  a = m(y)/q(y) for the sampled child y, drawn from q
        c_y = a;   c_x = s·p(x)·(1 − a)/(1 − Σm) for x in D        what each child may carry
        r = s·p − m outside D,  S = Σ r
        each child v in turn is tried with the scale c_v / (1 − Σ of the c before it)
        if none is accepted: stop here with probability S / (S + 1 − s) (at the root always), with a token from norm(r)

    With only the sampled child it is ``block``; with only D it accepts as often as ``follow``.  Any order of the children is exact that
    depends on nothing below them; the largest share goes first.  On small models E[accepted] is the optimum of the linear
    program or within 2.2 % of it.
    """
    left = _try(ROOT, 1, target, drafts, random)
    assert left is not None
    return left


def _try(node: int, scale: Number, target: Laws, drafts: Branches, random: Randomness) -> Branch | None:
    """The branch on which the draft was left below ``node`` or at it; None where ``node`` is rejected."""
    p, fixed, left = target[node + 1], drafts.fixed(node), 1
    for child, carried in _shares(node, scale, p, drafts):
        share = _part(carried, left)
        found = _try(child, share, target, drafts, random) if share > 0 else None
        if found is not None:
            return found
        left = left - carried
    y = drafts.sampled(node)
    rest = p.over(p, scale, 0, fixed) if y is None else p.over(_law(drafts, y), scale, 1, fixed)
    if node != ROOT and not random.below(rest.total(), rest.total() + (1 - scale), "accept", node):
        return None
    return Branch(node, random.choose(remainder(rest, p), "recover", node + 1))


def _part(carried: Number, left: Number) -> Number:
    """What a child may carry of what the children before it left: at most 1, also after rounding."""
    return carried if left == 1 else min(carried / left, 1) if left > 0 else 0


def _shares(node: int, scale: Number, p: Law, drafts: Branches) -> list[tuple[int, Number]]:
    """Each child with what it may carry, the largest first; the deterministic ones share what the sampled one leaves."""
    children, y = drafts.of(node), drafts.sampled(node)
    carried = {child: scale * p.prob(drafts.tokens[child]) for child in children}
    if y is None:
        return sorted(carried.items(), key=lambda pair: -pair[1])
    q, token = _law(drafts, y), drafts.tokens[y]
    drawn = q.prob(token)
    accept = min(scale * p.prob(token) / drawn, 1)
    beyond = q.over(p, 1, scale)  # [q − s·p]⁺: its total is 1 − Σm, at y it is (1 − a)·q(y), and nothing cancels
    missing = beyond.total()
    open_share = beyond.prob(token) / drawn / missing if missing > 0 else 0
    shares = {child: accept if child == y else carried[child] * open_share for child in children}
    return sorted(shares.items(), key=lambda pair: -pair[1])


def _law(drafts: Branches, node: int) -> Law:
    law = drafts.laws[node]
    assert law is not None
    return law


def children_of(parents: Sequence[int], laws: Sequence[object | None]) -> tuple[tuple[int, ...], ...]:
    """[0] the root's children, [j + 1] node j's; the sampled one first, then the deterministic ones in order."""
    children: list[list[int]] = [[] for _ in range(len(parents) + 1)]
    for node, parent in enumerate(parents):
        children[parent + 1].append(node)
    return tuple(tuple(sorted(nodes, key=lambda node: laws[node] is None)) for nodes in children)


def check_tree(tokens: Sequence[int], parents: Sequence[int], laws: Sequence[Law | None]) -> None:
    """Parents before children, no token twice below one node, one sampled child a node, whose law leaves the others out."""
    if not len(tokens) == len(parents) == len(laws):
        raise InvalidValue(f"tokens, parents and laws must be equally long, got {len(tokens)}, {len(parents)} and {len(laws)}")
    depths: list[int] = []
    for node, parent in enumerate(parents):
        if not ROOT <= parent < node:
            raise InvalidValue(f"parents must come before their children: node {node} must have a parent in [-1, {node - 1}], got {parent}")
        depths.append(1 if parent == ROOT else depths[parent] + 1)
    if max(depths, default=0) > DEEPEST:
        raise InvalidValue(f"a tree must be at most {DEEPEST} deep, got {max(depths)}")
    for nodes in children_of(parents, laws):
        _check_children([tokens[node] for node in nodes], [laws[node] for node in nodes], nodes)


def _check_children(tokens: Sequence[int], laws: Sequence[Law | None], nodes: Iterable[int]) -> None:
    if len(set(tokens)) < len(tokens):
        raise InvalidValue(f"the children of one node must be different tokens, got {list(tokens)} at nodes {list(nodes)}")
    for token, law in zip(tokens[:1], laws[:1], strict=True):
        if law is None:
            return
        if any(other is not None for other in laws[1:]):
            raise InvalidValue(f"a node can have one sampled child, got several among the nodes {list(nodes)}")
        if not law.prob(token) > 0:
            raise InvalidValue(f"a sampled child must have a probability above 0 under its own law, got token {token}")
        shared = [other for other in tokens[1:] if law.prob(other) > 0]
        if shared:
            raise InvalidValue(f"a sampled child's law must leave out its deterministic siblings, got {shared} in it")
