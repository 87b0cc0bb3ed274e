"""The tree rule: exact on every shape, block and follow in its special cases, and close to the optimum."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction as F  # noqa: N817  it is on every other line
from typing import Any

import numpy as np
import pytest

from nalar import Distribution, Key, Proposal, verify
from nalar.errors import InvalidType, InvalidValue
from nalar.exact import Branches, assert_law, complete, distance, expected, law_of, plain
from nalar.speculative import Tree, verify_tree
from nalar.speculative.laws import Table
from nalar.speculative.randomness import Keyed
from nalar.speculative.rules import RULES
from nalar.speculative.tree import ROOT, Branch, children_of, follow_tree, tree
from nalar.speculative.tree import Branches as Nodes
from speculation import CASE_A, EXAMPLE, MODELS, Model, best_of_set, decisions, penalised, recipe, tenths

KEY = Key(seed=7, position=3)
CASE_B = tenths(6, 2, 1, 1), tenths(3, 4, 2, 1)
Fixed = Callable[[tuple[int, ...], int], tuple[int, ...]]  # prefix, depth → the deterministic children


def top(model: Model, count: int) -> Fixed:
    """The ``count`` most likely tokens of a law, lowest id first among equals."""
    return lambda prefix, depth: tuple(sorted(model(prefix), key=lambda x: (-model(prefix)[x], x))[:count])


def grown(random: Any, draft: Model | None, fixed: Fixed, depth: int, output: tuple[int, ...] = ()) -> tuple[Nodes, list[tuple[int, ...]]]:
    """A tree of ``depth`` levels: at each node the deterministic children, and one drawn from ``draft`` without them."""
    tokens: list[int] = []
    parents: list[int] = []
    laws: list[Table | None] = []
    paths: list[tuple[int, ...]] = [()]

    def add(parent: int, token: int, law: Table | None) -> None:
        tokens.append(token)
        parents.append(parent)
        laws.append(law)
        paths.append((*paths[parent + 1], token))

    def grow(node: int, level: int) -> None:
        if level == depth:
            return
        prefix, first = output + paths[node + 1], len(tokens)
        beside = fixed(prefix, level)
        if draft is not None and len(beside) < len(draft(prefix)):
            rest = {x: q for x, q in draft(prefix).items() if x not in beside}
            law = Table({x: q / sum(rest.values()) for x, q in rest.items()})
            add(node, random.choose(law, "draft", len(tokens)), law)
        for token in beside:
            add(node, token, None)
        for child in range(first, len(tokens)):
            if parents[child] == node:
                grow(child, level + 1)

    grow(ROOT, 0)
    return Nodes(tuple(tokens), tuple(laws), children_of(parents, laws)), paths


Rule = Callable[[Any, Nodes, Any], Branch]


def one_tree(target: Model, draft: Model | None, fixed: Fixed, depth: int, rule: Rule = tree, steps: int = 1, **how: Any) -> Any:
    """A run of ``steps`` tree steps: what they emit."""

    def run(branches: Branches) -> tuple[int, ...]:
        output: tuple[int, ...] = ()
        for _ in range(steps):
            random = branches.at(Key(0, position=len(output)), **how)
            nodes, paths = grown(random, draft, fixed, depth, output)
            node, token = rule([Table(target(output + path)) for path in paths], nodes, random)
            output = (*output, *paths[node + 1], token)
        return output

    return run


def reached(target: Model, draft: Model | None, fixed: Fixed, depth: int, rule: Rule = tree) -> F:
    """E[accepted] of one tree step, which must be exact."""
    law = law_of(one_tree(target, draft, fixed, depth, rule))
    assert distance(complete(law, target, depth + 1), plain(target, depth + 1)) == 0
    return F(expected(law, lambda emitted: len(emitted) - 1))


def none(prefix: tuple[int, ...], depth: int) -> tuple[int, ...]:
    return ()


# --- exact ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", range(len(MODELS)))
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_only_a_sampled_child_is_block(case: int, depth: int) -> None:
    target, draft = MODELS[case]
    paths = itertools.product(range(3), repeat=depth)
    for path in itertools.islice(paths, 9):
        laws = tuple(Table(draft(path[:i])) for i in range(depth))
        nodes = Nodes(path, laws, children_of(range(-1, depth - 1), laws))
        targets = [Table(target(path[:i])) for i in range(depth + 1)]

        def run(branches: Branches, nodes: Nodes = nodes, targets: list[Table] = targets) -> tuple[int, int]:
            node, token = tree(targets, nodes, branches.at(Key(0, position=0)))
            return node + 1, token

        assert law_of(run) == law_of(decisions(RULES["block"], target, draft, path))


@pytest.mark.parametrize("case", range(len(MODELS)))
@pytest.mark.parametrize("count", [1, 2, 3])
def test_only_deterministic_children_reach_what_follow_reaches(case: int, count: int) -> None:
    target, draft = MODELS[case]
    fixed = top(draft, count)
    assert reached(target, None, fixed, 2) == reached(target, None, fixed, 2, follow_tree)


@pytest.mark.parametrize("case", range(len(MODELS)))
@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("beside", ["top", "bottom", "odd", "by prefix"])
def test_any_deterministic_children_beside_a_sampled_one(case: int, depth: int, beside: str) -> None:
    target, draft = MODELS[case]
    fixed: dict[str, Fixed] = {
        "top": top(draft, 1),
        "bottom": lambda prefix, level: top(target, 3)(prefix, level)[2:],
        "odd": lambda prefix, level: (2, 0) if level else (1,),
        "by prefix": lambda prefix, level: (sum(prefix) % 3,) if len(prefix) % 2 else (),
    }
    reached(penalised(target), draft, fixed[beside], depth)


def test_draft_laws_that_lack_tokens_and_one_hot_targets() -> None:
    target: Model = lambda prefix: {1: F(1)} if len(prefix) == 1 else {0: F(1, 2), 1: F(1, 3), 2: F(1, 6)}  # noqa: E731
    draft: Model = lambda prefix: {1: F(1, 5), 3: F(4, 5)}  # noqa: E731
    for fixed in (none, lambda prefix, level: (1,), lambda prefix, level: (0, 4)):
        reached(target, draft, fixed, 2)
    assert reached(target, target, none, 2) == 2


@pytest.mark.parametrize("fixed", [none, top(EXAMPLE[1], 1)])
def test_several_steps_with_their_keys(fixed: Fixed) -> None:
    target, draft = EXAMPLE
    run = one_tree(target, draft, fixed, 2, steps=2)
    assert distance(complete({}, target, 2), {}) == 0
    first_three: dict[tuple[int, ...], F] = {}
    for emitted, chance in complete(law_of(run), target, 4).items():
        first_three[emitted[:4]] = first_three.get(emitted[:4], F(0)) + chance
    assert distance(first_three, plain(target, 4)) == 0


def test_keys_by_position_are_caught() -> None:
    from test_exact import ALL, by_position

    target, draft = EXAMPLE
    run = one_tree(target, draft, none, 2, steps=3, address=by_position(ALL))
    first: dict[tuple[int, ...], F] = {}
    for emitted, chance in complete(law_of(run), target, 4).items():
        first[emitted[:4]] = first.get(emitted[:4], F(0)) + chance
    assert distance(first, plain(target, 4)) > F(1, 50)


# --- how good ---------------------------------------------------------------------------------------------------------


def without(q: dict[int, F], some: tuple[int, ...]) -> dict[int, F]:
    rest = {x: weight for x, weight in q.items() if x not in some}
    return {x: weight / sum(rest.values()) for x, weight in rest.items()}


@pytest.mark.parametrize(
    ("case", "count", "wanted"), [(CASE_A, 1, F(23, 30)), (CASE_A, 2, F(14, 15)), (CASE_B, 1, F(9, 10)), (CASE_B, 2, F(1))]
)
def test_one_level_reaches_the_optimum(case: tuple[Model, Model], count: int, wanted: F) -> None:
    """The greedy draft of Hu et al. (arXiv 2502.18779): the top tokens, and one drawn from the rest."""
    target, draft = case
    fixed = top(draft, count)
    got = reached(target, draft, fixed, 1)
    best, rest = set(fixed((), 0)), without(draft(()), fixed((), 0))
    bound = best_of_set(target(()), lambda some: sum((q for x, q in rest.items() if x in some), F(0)) if best <= some else F(0))
    assert got == wanted == bound


@pytest.mark.parametrize(
    ("levels", "got", "optimum"),
    [
        ((0,), [1.7289500, 1.6811665, 1.9012223], [1.7439, 1.7033, 1.9423]),  # two branches, then chains
        ((1,), [1.5675223, 1.1045455, 1.0880952], [1.5675, 1.1045, 1.0881]),  # a chain, then two branches
        ((0, 1), [2.0, 1.8111111, 1.9806878], [2.0, 1.8111, 1.9976]),
    ],
)
@pytest.mark.parametrize("case", range(len(MODELS)))
def test_two_levels_are_near_the_optimum(case: int, levels: tuple[int, ...], got: list[float], optimum: list[float]) -> None:
    """``levels``: where the top token of the draft stands beside the sampled one.  The optima are the published ones."""
    target, draft = MODELS[case]
    value = float(reached(target, draft, lambda prefix, level: top(draft, 1)(prefix, level) if level in levels else (), 2))
    assert value == pytest.approx(got[case], abs=1e-6)
    assert optimum[case] * 0.978 < value < optimum[case] + 1e-4


def test_a_wrong_update_of_what_is_left_is_caught() -> None:
    """The children's scales without dividing by what the earlier children left; a node that stops as its residual says."""

    def careless(target: Any, drafts: Nodes, random: Any, node: int = ROOT, scale: Any = F(1)) -> Branch | None:
        from nalar.speculative.tree import _shares

        p, y = target[node + 1], drafts.sampled(node)
        for child, carried in _shares(node, scale, p, drafts):
            found = careless(target, drafts, random, child, carried)
            if found is not None:
                return found
        law = Table({}) if y is None else drafts.laws[y]
        assert law is not None
        rest = p.over(law, scale, 1, drafts.fixed(node))
        if node != ROOT and not random.below(rest.total(), rest.total() + (1 - scale), "accept", node):
            return None
        return Branch(node, random.choose(rest if rest.total() else p, "recover", node + 1))

    def parent_as_traversal_port(target: Any, drafts: Nodes, random: Any, node: int = ROOT, scale: Any = F(1)) -> Branch | None:
        from nalar.speculative.tree import _part, _shares

        p, y, left = target[node + 1], drafts.sampled(node), F(1)
        for child, carried in _shares(node, scale, p, drafts):
            found = parent_as_traversal_port(target, drafts, random, child, _part(carried, left))
            if found is not None:
                return found
            left -= carried
        law = Table({}) if y is None else drafts.laws[y]
        assert law is not None
        rest = p.over(law, scale, 1, drafts.fixed(node))
        if node != ROOT and not random.below(rest.total(), 1, "accept", node):  # S instead of S / (S + 1 − s)
            return None
        return Branch(node, random.choose(rest if rest.total() else p, "recover", node + 1))

    target, draft = MODELS[0]
    fixed: Fixed = lambda prefix, level: () if level else top(draft, 1)(prefix, level)  # noqa: E731
    for wrong in (careless, parent_as_traversal_port):
        law = law_of(one_tree(target, draft, fixed, 2, wrong))  # type: ignore[arg-type]
        assert float(distance(complete(law, target, 3), plain(target, 3))) > 1e-3, wrong


# --- on Nalar's laws --------------------------------------------------------------------------------------------------


def some_tree(seed: int) -> tuple[Tree, list[Distribution], Key]:
    """A random tree with its targets; its sampled nodes drawn from their laws."""
    random = np.random.default_rng(seed)
    size, nodes = int(random.integers(2, 7)), int(random.integers(0, 8))
    key = Key(seed, position=int(random.integers(9)))
    tokens: list[int] = []
    parents: list[int] = []
    laws: dict[int, Distribution] = {}
    for _ in range(nodes):
        parent = int(random.integers(-1, len(tokens)))
        siblings = [j for j in range(len(tokens)) if parents[j] == parent]
        free = [x for x in range(size + 1) if x not in {tokens[j] for j in siblings}]
        free = [x for x in free if not any(j in laws and laws[j].prob(x) > 0 for j in siblings)]
        if not free:
            continue
        parents.append(parent)
        if random.random() < 0.5 and not any(j in laws for j in siblings):
            law = laws[len(tokens)] = Distribution.from_probs(np.full(len(free), 1 / len(free)), free)
            tokens.append(law.draw(key.draft(len(tokens))))
        else:
            tokens.append(int(random.choice(free)))
    tree = Tree(tokens, parents, laws)
    return tree, [_some_law(random, size) for _ in range(len(tokens) + 1)], key


def _some_law(random: np.random.Generator, size: int) -> Distribution:
    weights = np.exp(random.normal(0, 3, size)) * (random.random(size) < 0.8)
    weights[random.integers(size)] += 0.5
    return Distribution.from_probs(weights / weights.sum())


def exactly(law: Distribution) -> Table:
    return Table({int(x): F(float(p)) for x, p in zip(law.ids, law.probs, strict=True)})


def test_the_same_decision_as_the_reference_for_the_same_uniforms() -> None:
    for seed in range(1500):
        drafts, target, key = some_tree(seed)
        laws = tuple(None if law is None else exactly(law) for law in drafts.laws)
        nodes = Nodes(drafts.tokens, laws, children_of(drafts.parents, laws))
        for name, rule in (("tree", tree), ("follow", follow_tree)):
            verdict = verify_tree(target, drafts, key, name)
            node, token = rule([exactly(law) for law in target], nodes, Keyed(key))
            assert (verdict.nodes[-1] if verdict.nodes else ROOT, verdict.token) == (node, token), (seed, name)
            assert verdict.tokens == (*(drafts.tokens[j] for j in verdict.nodes), token)
            places = [0, *(j + 1 for j in verdict.nodes)]
            assert verdict.logprobs == tuple(target[place].logprob(x) for place, x in zip(places, verdict.tokens, strict=True))


def test_a_chain_decides_as_block_does() -> None:
    random = np.random.default_rng(3)
    for seed in range(200):
        laws = [_some_law(random, 4) for _ in range(3)]
        target = [_some_law(random, 4) for _ in range(4)]
        key = Key(seed, position=2)
        proposal = Proposal([law.draw(key.draft(i)) for i, law in enumerate(laws)], laws)
        chain, tree_ = verify(target, proposal, key), verify_tree(target, Tree.chain(proposal), key)
        assert (chain.rule, tree_.rule) == ("block", "tree")
        assert chain.tokens == tree_.tokens
        assert chain.samples == tree_.samples


@pytest.mark.parametrize("draw", ["inverse", "race"])
def test_follow_on_a_tree_gives_the_tokens_of_no_tree(draw: Any) -> None:
    law = Distribution.from_probs([0.4, 0.3, 0.2, 0.1])
    plain_tokens = [law.draw(KEY.at(3 + i), draw) for i in range(4)]
    drafts = Tree([0, 1, 2, 0, 1, 3, 0, 2], [-1, -1, 0, 1, 1, 2, 4, 4])
    verdict = verify_tree([law] * 9, drafts, KEY, "follow", draw=draw)
    assert list(verdict.tokens) == plain_tokens[: len(verdict.tokens)]
    assert drafts.paths[4] == (1, 1)


def test_defaults_and_keys() -> None:
    law = Distribution.from_probs([0.5, 0.5])
    assert verify_tree([law] * 2, Tree([0], [-1]), KEY).rule == "follow"
    sampled = verify_tree([law] * 2, Tree([0], [-1], {0: law}), KEY)
    assert sampled.rule == "tree"
    assert sampled.samples[-1].key == replace(KEY, row=sampled.accepted, purpose="recover")
    assert verify_tree([law], Tree([], []), KEY).tokens == (law.draw(KEY),)


LAW = Distribution.from_probs([0.5, 0.5])


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda: Tree([1, 2], [-1]), InvalidValue, "tokens, parents and laws must be equally long"),
        (lambda: Tree([1, 2], [1, -1]), InvalidValue, r"node 0 must have a parent in \[-1, -1\], got 1"),
        (lambda: Tree([1], [-2]), InvalidValue, "a parent must be an integer >= -1, got -2"),
        (lambda: Tree([1, 1], [-1, -1]), InvalidValue, "the children of one node must be different tokens"),
        (lambda: Tree([0, 1], [-1, -1], {0: LAW, 1: LAW}), InvalidValue, "a node can have one sampled child"),
        (lambda: Tree([0, 1], [-1, -1], {0: LAW}), InvalidValue, r"must leave out its deterministic siblings, got \[1\] in it"),
        (lambda: Tree([5], [-1], {0: LAW}), InvalidValue, "a sampled child must have a probability above 0 under its own law, got token 5"),
        (lambda: Tree([5], [-1], {1: LAW}), InvalidValue, r"a node of laws must be an integer in \[0, 0\], got 1"),
        (lambda: Tree([1], [-1], {0: [0.5, 0.5]}), InvalidType, "laws must be a mapping from node to Distribution"),
        (lambda: Tree([1] * 300, range(-1, 299)), InvalidValue, "a tree must be at most 256 deep, got 300"),
        (lambda: verify_tree([LAW], Tree([1], [-1]), KEY), InvalidValue, "target must hold 2 laws"),
        (lambda: verify_tree([LAW] * 2, Proposal([1]), KEY), InvalidType, "drafts must be a nalar.speculative.Tree"),
        (lambda: verify_tree([LAW] * 2, Tree([1], [-1]), KEY, "block"), InvalidValue, "rule must be one of 'tree', 'follow'"),
        (lambda: verify_tree([LAW] * 2, Tree([1], [-1]), Key(1)), InvalidValue, "key must be the key of the step's start"),
    ],
)
def test_what_is_refused(make: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        make()


def test_assert_law_takes_a_tree() -> None:
    target, draft = recipe(3, 5, 7), recipe(2, 9, 4)
    run = one_tree(target, draft, none, 1)
    assert_law(lambda branches: run(branches)[0], {x[0]: p for x, p in plain(target, 1).items()})
