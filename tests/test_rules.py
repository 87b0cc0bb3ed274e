"""The exact rules, proven: total variation 0 in rational arithmetic, and accepted lengths equal to the published ones."""

from __future__ import annotations

import itertools
from collections import defaultdict
from fractions import Fraction as F  # noqa: N817  it is on every other line
from typing import Any

import pytest

from nalar.exact import assert_law, complete, distance, expected, generation, law_of, one_step, plain
from nalar.speculative.laws import Table
from nalar.speculative.rules import RULES
from speculation import CASE_A, EXAMPLE, GAMMA, MODELS, RAGGED, VECTORS, Model, decisions, optimum, penalised, recipe

EVERY = sorted(RULES)
RATIO = ("block", "token")


def accepted(target: Model, draft: Model, rule: str, length: int, **how: Any) -> F:
    """E[accepted] of one step, which must be exact."""
    law = law_of(one_step(target, draft, RULES[rule], length=length, **how))
    assert distance(complete(law, target, length + 1), plain(target, length + 1)) == 0
    got = expected(law, lambda emitted: len(emitted) - 1)
    assert isinstance(got, F | int)
    return F(got)


# --- the vectors ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", range(len(VECTORS)))
def test_the_recipe_gives_the_tables(case: int) -> None:
    for prefix, laws in VECTORS[case]["tables"].items():
        for model, name in zip(MODELS[case], "pq", strict=True):
            assert list(model(tuple(map(int, prefix))).values()) == [F(value) for value in laws[name]]


@pytest.mark.parametrize("rule", EVERY)
@pytest.mark.parametrize("case", range(len(VECTORS)))
def test_exact_on_every_vector(case: int, rule: str) -> None:
    got = accepted(*MODELS[case], rule, GAMMA)
    if rule in RATIO:
        assert got == F(VECTORS[case]["E_tau"][rule])


@pytest.mark.parametrize("rule", RATIO)
@pytest.mark.parametrize("case", range(len(VECTORS)))
def test_every_drafted_path_is_decided_as_in_the_vectors(case: int, rule: str) -> None:
    for path, told in VECTORS[case]["paths"].items():
        law = law_of(decisions(RULES[rule], *MODELS[case], tuple(map(int, path))))
        wanted: defaultdict[tuple[int, int], F] = defaultdict(F)
        for each in told[rule]:
            for token, share in enumerate(each["next"]):
                wanted[each["tau"], token] += F(each["prob"]) * F(share)
        assert {outcome: chance for outcome, chance in law.items() if chance} == {o: c for o, c in wanted.items() if c}, path


@pytest.mark.parametrize(
    ("length", "token", "block"),
    [(1, "2/3", "2/3"), (2, "10/9", "11/9"), (3, "38/27", "5/3"), (4, "130/81", "166/81"), (5, "422/243", "64/27")],
)
def test_the_motivating_example(length: int, token: str, block: str) -> None:
    assert accepted(*EXAMPLE, "token", length) == F(token)
    assert accepted(*EXAMPLE, "block", length) == F(block)


@pytest.mark.parametrize(("name", "wanted"), [("token", F(3, 5)), ("block", F(3, 5)), ("follow", F(1, 5))])
def test_one_token_is_accepted_as_often_as_the_laws_overlap(name: str, wanted: F) -> None:
    """1 − TV(p, q) for the ratio rules, Σ p·q for follow."""
    assert accepted(*CASE_A, name, 1) == wanted


@pytest.mark.parametrize(
    ("stop", "token", "block"),
    [
        (lambda prefix: bool(prefix) and prefix[-1] == 2, F(4383921187, 3724680960), F(186000713, 155195040)),
        (lambda prefix: max(MODELS[0][1](prefix).values()) < F(1, 2), None, F(534, 595)),
        (lambda prefix: bool(prefix) and MODELS[0][1](prefix[:-1])[prefix[-1]] < F(1, 3), None, F(667329, 520030)),
    ],
)
def test_lengths_that_depend_on_the_prefix(stop: Any, token: F | None, block: F) -> None:
    """A draft may end after a token because of that token; the published lengths."""
    assert accepted(*MODELS[0], "block", GAMMA, stop=stop) == block
    got = accepted(*MODELS[0], "token", GAMMA, stop=stop)
    assert got <= block
    assert token is None or got == token


# --- the optimum ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1, 2, 3])
@pytest.mark.parametrize("case", range(len(MODELS)))
def test_block_is_the_optimum_for_one_chain(case: int, length: int) -> None:
    target, draft = MODELS[case]
    block = accepted(target, draft, "block", length)
    assert float(block) == pytest.approx(optimum(target, draft, length, 3), abs=1e-9)
    assert block >= accepted(target, draft, "token", length)


@pytest.mark.parametrize("drafts", [(0, 0, 1), (2, 1, 0), (1, 2, 2)])
def test_follow_is_the_optimum_for_a_draft_without_randomness(drafts: tuple[int, ...]) -> None:
    target, _ = MODELS[1]

    def draft(prefix: tuple[int, ...]) -> dict[int, F]:
        return {drafts[len(prefix)]: F(1)}

    reached = sum(
        (F(1) * _along(target, drafts[:n]) for n in range(1, 4)), F(0)
    )  # E[accepted] = Σ over the nodes of P(the target goes there)
    assert accepted(target, draft, "follow", 3) == reached
    assert float(reached) == pytest.approx(optimum(target, draft, 3, 3), abs=1e-9)
    for rule in RATIO:  # block verification gains nothing here
        assert accepted(target, draft, rule, 3) == reached


def _along(target: Model, tokens: tuple[int, ...]) -> F:
    product = F(1)
    for i, token in enumerate(tokens):
        product *= target(tokens[:i])[token]
    return product


# --- laws of every kind -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [0, 1, 2, 3])
@pytest.mark.parametrize("rule", EVERY)
def test_laws_that_lack_tokens_and_one_hot_laws(rule: str, length: int) -> None:
    accepted(*RAGGED, rule, length)


@pytest.mark.parametrize("rule", EVERY)
def test_equal_laws_accept_everything_or_follow(rule: str) -> None:
    p = recipe(3, 5, 7)
    got = accepted(p, p, rule, 3)
    assert (got == 3) is (rule != "follow")


@pytest.mark.parametrize("rule", EVERY)
def test_chains_of_four(rule: str) -> None:
    accepted(recipe(1, 4, 6, 2), recipe(8, 3, 5, 2), rule, 4)


@pytest.mark.parametrize("rule", EVERY)
def test_penalties_see_the_draft(rule: str) -> None:
    accepted(penalised(MODELS[0][0]), MODELS[0][1], rule, 3)


@pytest.mark.parametrize("rule", EVERY)
@pytest.mark.parametrize("length", [1, 2, 3])
def test_several_steps_with_their_keys(rule: str, length: int) -> None:
    target, draft = penalised(recipe(3, 5, 7, 2)), recipe(2, 9, 4, 2)
    tokens = 3 if length == 3 else 4
    assert_law(generation(target, draft, RULES[rule], tokens=tokens, length=length), plain(target, tokens))


@pytest.mark.parametrize("rule", EVERY)
def test_several_steps_whose_lengths_depend_on_the_prefix(rule: str) -> None:
    target, draft = EXAMPLE
    stop = lambda prefix: bool(prefix) and prefix[-1] == 1  # noqa: E731
    assert_law(generation(target, draft, RULES[rule], tokens=4, length=2, stop=stop), plain(target, 4))


def test_a_token_the_target_cannot_draw_is_never_accepted() -> None:
    for rule in EVERY:
        law = law_of(decisions(RULES[rule], *RAGGED, (3, 1)))
        assert {taken for taken, _ in law} == {0}


def test_token_and_block_agree_on_one_token() -> None:
    for x in range(4):
        laws = [law_of(decisions(RULES[rule], *CASE_A, (x,))) for rule in RATIO]
        assert laws[0] == laws[1]


def test_the_pieces_of_a_law() -> None:
    p, q = Table({0: F(1, 2), 2: F(1, 2)}), Table({0: F(1, 4), 1: F(3, 4)})
    assert p.over(q) == Table({0: F(1, 4), 2: F(1, 2)})
    assert p.over(q, 1, 1, without=[2]).total() == F(1, 4)
    assert q.over(p, 1, F(1, 2)).total() == F(3, 4)
    assert list(itertools.chain(*(part.tolist() for part in p.arrays()))) == [0, 2, F(1, 2), F(1, 2)]
