"""Lossy rules: their cost is exactly what they cost, a budget holds, and nobody gets one without asking."""

from __future__ import annotations

from fractions import Fraction as F  # noqa: N817  it is on every other line
from typing import Any

import numpy as np
import pytest

import nalar
from nalar import Chain, Distribution, Key, Proposal, Sampler, verify
from nalar.errors import InvalidType, InvalidValue
from nalar.exact import Branches, complete, distance, expected, generation, law_of, one_step, plain
from nalar.speculative import lenient, relaxed, typical
from nalar.speculative.laws import Table
from nalar.speculative.lossy import Lossy
from nalar.speculative.rules import token
from speculation import CASE_A, MODELS, Model, penalised, recipe

KEY = Key(seed=7, position=0)
RULES: list[Lossy] = [
    lenient(F(9, 10)),  # type: ignore[arg-type]
    lenient(F(1, 2)),  # type: ignore[arg-type]
    lenient(F(3, 10)),  # type: ignore[arg-type]
    typical(0.09, 0.3),
    typical(0.25, 1.0),
    relaxed(2, F(15, 100)),  # type: ignore[arg-type]
    relaxed(3, F(25, 100)),  # type: ignore[arg-type]
    typical(0.09, 0.3, recover="argmax"),
    relaxed(2, F(15, 100), recover="argmax"),  # type: ignore[arg-type]
    relaxed(3, F(25, 100), recover="argmax"),  # type: ignore[arg-type]
]


def first_token(target: Model, draft: Model, rule: Lossy) -> dict[tuple[int, ...], F]:
    """The exact law of the first token of a step with one drafted token."""
    law: dict[tuple[int, ...], F] = {}
    for emitted, chance in law_of(one_step(target, draft, rule, length=1)).items():
        law[emitted[:1]] = law.get(emitted[:1], F(0)) + chance
    return law


def cost_of(target: Model, draft: Model, rule: Lossy) -> F:
    """What the rule says it costs; the same whatever was drafted."""

    def run(branches: Branches) -> Any:
        random = branches.at(KEY)
        p, q = Table(target(())), Table(draft(()))
        return rule([p, p], [random.choose(q, "draft", 0)], [q], random).cost

    (cost,) = law_of(run)
    return F(cost)


# --- the price --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES, ids=str)
@pytest.mark.parametrize("case", [CASE_A, *MODELS])
def test_the_cost_is_the_total_variation_of_the_position(rule: Lossy, case: tuple[Model, Model]) -> None:
    assert distance(first_token(*case, rule), plain(case[0], 1)) == cost_of(*case, rule)


@pytest.mark.parametrize(
    ("rule", "wanted"),
    [
        (RULES[0], F(1, 30)),
        (RULES[1], F(1, 5)),
        (RULES[2], F(1, 3)),
        (RULES[7], F(2, 5)),  # emits the draft's law
        (RULES[8], F(2, 5)),
        (RULES[9], F(1, 5)),
    ],
    ids=str,
)
def test_the_published_prices(rule: Lossy, wanted: F) -> None:
    assert cost_of(*CASE_A, rule) == wanted


@pytest.mark.parametrize(("ours", "theirs"), [(RULES[3], RULES[7]), (RULES[5], RULES[8]), (RULES[6], RULES[9])], ids=str)
@pytest.mark.parametrize("case", [CASE_A, *MODELS])
def test_recovering_from_what_is_left_is_the_cheapest(ours: Lossy, theirs: Lossy, case: tuple[Model, Model]) -> None:
    """For the same acceptance."""
    assert cost_of(*case, ours) <= cost_of(*case, theirs)
    accepted = [expected(law_of(one_step(*case, rule, length=1)), lambda emitted: len(emitted) - 1) for rule in (ours, theirs)]
    assert accepted[0] == accepted[1]


def test_lenience_bounds_every_token() -> None:
    for factor in (F(1, 2), F(3, 4)):
        got = first_token(*CASE_A, lenient(factor))  # type: ignore[arg-type]
        assert all(got[word] <= p / factor for word, p in plain(CASE_A[0], 1).items())


def test_a_lenience_of_one_is_the_token_rule() -> None:
    for case in (CASE_A, *MODELS):
        law = law_of(one_step(*case, lenient(F(1)), length=2))  # type: ignore[arg-type]
        assert law == law_of(one_step(*case, token, length=2))
        assert cost_of(*case, lenient(F(1))) == 0  # type: ignore[arg-type]


def test_a_point_draft_is_the_law_that_draws_nothing_else() -> None:
    target, draft = CASE_A[0], lambda prefix: {3: F(1)}
    assert cost_of(target, draft, lenient(F(1, 2))) == F(1, 10)  # type: ignore[arg-type]
    assert first_token(target, draft, lenient(F(1, 2)))[3,] == F(1, 5)  # type: ignore[arg-type]


# --- the budget -------------------------------------------------------------------------------------------------------


def spending(target: Model, draft: Model, rule: Lossy, tokens: int) -> Any:
    """A generation in which what was spent comes off the budget, step by step: the output and the bill."""

    def run(branches: Branches) -> tuple[tuple[int, ...], F]:
        output: tuple[int, ...] = ()
        spent = F(0)
        while len(output) < tokens:
            random = branches.at(Key(0, position=len(output)))
            drafted: tuple[int, ...] = ()
            for _ in range(2):
                drafted += (random.choose(Table(draft(output + drafted)), "draft", len(drafted)),)
            laws = [Table(target(output + drafted[:i])) for i in range(3)]
            drafts = [Table(draft(output + drafted[:i])) for i in range(2)]
            decision = rule.after(spent)(laws, drafted, drafts, random)  # type: ignore[arg-type]
            output, spent = (*output, *drafted[: decision.accepted], decision.token), spent + decision.cost
        return output[:tokens], spent

    return run


@pytest.mark.parametrize("budget", [0.0, 0.05, 0.25, 1.0])
@pytest.mark.parametrize("rule", [lenient(0.5), relaxed(1, 0.0), typical(0.2, 0.6)], ids=str)
def test_the_output_is_as_near_as_the_budget_says(rule: Lossy, budget: float) -> None:
    target, draft = penalised(recipe(3, 5, 7, 2)), recipe(2, 9, 4, 2)
    limited = type(rule)(**{**vars(rule), "budget": budget})
    law = law_of(spending(target, draft, limited, 3))
    assert max(spent for _, spent in law) <= budget + 1e-12
    emitted: dict[tuple[int, ...], F] = {}
    for (output, _), chance in law.items():
        emitted[output] = emitted.get(output, F(0)) + chance
    bill = expected(law, lambda outcome: outcome[1])
    assert distance(emitted, plain(target, 3)) <= bill + 1e-12 <= budget + 2e-12


def test_without_a_budget_the_bill_still_bounds_the_output() -> None:
    target, draft = MODELS[0]
    law = law_of(spending(target, draft, lenient(0.3), 2))
    emitted: dict[tuple[int, ...], F] = {}
    for (output, _), chance in law.items():
        emitted[output] = emitted.get(output, F(0)) + chance
    assert 0.01 < distance(emitted, plain(target, 2)) <= expected(law, lambda outcome: outcome[1])


def test_no_budget_is_the_exact_rule() -> None:
    for case in MODELS:
        run = generation(*case, lenient(F(1, 2), budget=0), tokens=2, length=2)  # type: ignore[arg-type]
        assert distance(complete(law_of(run), case[0], 2), plain(case[0], 2)) == 0


def test_a_sampler_counts_what_it_spent() -> None:
    rows = np.log([[0.4, 0.3, 0.2, 0.1]] * 3)
    draft = Distribution.from_probs([0.1, 0.2, 0.3, 0.4])
    sampler, costs = Sampler(Chain([]), seed=3), []
    for _ in range(20):
        proposal = Proposal([draft.draw(sampler.key.draft(i)) for i in range(2)], [draft] * 2)
        verdict = sampler.step(rows, proposal, lenient(0.5, budget=0.5))
        costs.append(verdict.cost)
        assert verdict.lossy
    assert sampler.spent == pytest.approx(sum(costs)) == pytest.approx(0.4)
    assert sampler.snapshot().spent == Sampler.restore(sampler.snapshot()).spent == sampler.fork(1).spent == sampler.spent
    assert not sampler.step(rows, proposal).lossy


# --- its name ---------------------------------------------------------------------------------------------------------


def test_a_lossy_verdict_says_so() -> None:
    p, q = Distribution.from_probs([0.4, 0.3, 0.2, 0.1]), Distribution.from_probs([0.1, 0.2, 0.3, 0.4])
    for rule, name in ((lenient(0.5), "lenient"), (typical(0.09, 0.3), "typical"), (relaxed(2, 0.1), "relaxed")):
        verdict = verify([p, p], Proposal([3], [q]), KEY, rule)
        assert (verdict.rule, verdict.lossy) == (name, True)
    for exact in ("follow", "token", "block"):
        verdict = verify([p, p], Proposal([3], [q]), KEY, exact)
        assert (verdict.lossy, verdict.cost) == (False, 0.0)


def test_a_token_the_target_cannot_draw_is_never_kept() -> None:
    p = Distribution.from_probs([0.6, 0.4])
    for rule in (lenient(0.01), typical(0.0, 0.0), relaxed(50, 1.0)):
        for seed in range(30):
            assert verify([p, p], Proposal.point([7]), Key(seed, position=0), rule).accepted == 0


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda: lenient(0), InvalidValue, r"l must be a number in \(0, 1\], got 0"),
        (lambda: lenient(1.5), InvalidValue, r"l must be a number in \(0, 1\], got 1.5"),
        (lambda: lenient("x"), InvalidType, "l must be a number"),
        (lambda: lenient(0.5, budget=-1), InvalidValue, "budget must be a finite number >= 0, got -1"),
        (lambda: lenient(0.5, 0.1), TypeError, "positional"),
        (lambda: typical(-0.1, 0.3), InvalidValue, "epsilon must be a finite number >= 0"),
        (lambda: typical(0.1, float("nan")), InvalidValue, "delta must be a finite number >= 0, got nan"),
        (lambda: relaxed(0, 0.3), InvalidValue, "top_n must be an integer >= 1, got 0"),
        (lambda: relaxed(2, 1.5), InvalidValue, r"delta must be a number in \[0, 1\], got 1.5"),
        (lambda: relaxed(2, 0.5, recover="p"), InvalidValue, "recover must be one of 'residual', 'argmax', got 'p'"),
        (lambda: verify([], Proposal([]), KEY, "lenient"), InvalidValue, "target must hold 1 law"),
    ],
)
def test_what_is_refused(make: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        make()


def test_a_name_alone_is_not_enough() -> None:
    law = Distribution.from_probs([1.0])
    for name in ("lenient", "typical", "relaxed"):
        with pytest.raises(InvalidValue, match="rule must be one of 'follow', 'token', 'block'"):
            nalar.verify([law, law], Proposal([0]), KEY, name)
