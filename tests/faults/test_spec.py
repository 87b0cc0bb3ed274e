"""SPEC: speculation that is not lossless.  Each case is a report of facts/faults.md on another project.

The general answer is in test_rules.py and test_exact.py: every rule is proven exact, and every mistake below is caught there.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from faults.saying import Saying
from nalar import Chain, Distribution, Key, Proposal, Sampler, sample, verify
from nalar.engines.toy import Toy
from nalar.errors import InvalidValue
from nalar.exact import Monitor
from nalar.model import Model
from nalar.speculative import Tree, verify_tree
from nalar.speculative.laws import Sparse
from nalar.speculative.rules import RULES
from test_drafts import PROMPT, Babbler
from test_goodness_of_fit import fits
from test_verify import Fixed

KEYS = [Key(seed, position=0) for seed in range(3000)]
RATIO = pytest.mark.parametrize("rule", ["token", "block"])


def law(*probs: float) -> Distribution:
    return Distribution.from_probs(probs)


def firsts(target: Distribution, draft: Any, rule: Any) -> list[int]:
    """The first token that each key's step emits; ``draft(key)`` is its proposal."""
    return [verify([target] * 2, draft(key), key, rule).tokens[0] for key in KEYS]


@RATIO
def test_b161_a_draft_the_target_cannot_draw_is_always_rejected(rule: str) -> None:
    """transformers counted matches wrongly and accepted everything."""
    verdicts = [verify([law(0.0, 1.0)] * 2, Proposal([0], [law(1.0, 0.0)]), key, rule) for key in KEYS[:200]]
    assert {verdict.tokens for verdict in verdicts} == {(1,)}


@RATIO
def test_b163_a_truncated_draft_comes_with_its_truncated_law(rule: str) -> None:
    """transformers drew from the top 2 and reported the law of all 3.  Here token and law come from one Sample."""
    chain = Chain.parse("top_k(2)")
    target = law(1 / 3, 1 / 3, 1 / 3)

    def draft(key: Key) -> Proposal:
        return Proposal.sampled([sample([2.0, 1.0, 0.0], chain, key.draft(0), keep_law=True)])

    assert [q.ids.tolist() for q in draft(KEYS[0]).laws or ()] == [[0, 1]]
    assert fits(target, firsts(target, draft, rule))


@pytest.mark.parametrize("rule", ["follow", "token", "block"])
def test_b165_greedy_with_a_draft_is_greedy_without(rule: str) -> None:
    """A tutorial drafted the argmax and took soft ratios; at temperature 0 the target is one token before any ratio."""
    chain, row = Chain.parse("temperature(0)"), [0.0, 3.0, 1.0]
    plain = Sampler(chain, seed=1)
    for seed, drafted in enumerate(([1, 1], [0, 1], [2, 0])):
        sampler = Sampler(chain, seed=seed)
        tokens = sampler.step([row] * 3, Proposal.point(drafted), rule).tokens
        assert set(tokens) == {plain.sample(row).token}


@pytest.mark.parametrize("rule", ["follow", "token", "block"])
def test_b166_a_more_likely_token_of_the_draft_is_not_the_targets_best(rule: str) -> None:
    """p(a) = 0.3 > q(a) = 0.2, p(b) = 0.5: greedy emits b."""
    greedy = Chain.parse("temperature(0)").distribution(np.log([0.3, 0.5, 0.2]))
    draft = Proposal([0], [law(0.2, 0.4, 0.4)])
    assert {verify([greedy] * 2, draft, key, rule).tokens for key in KEYS[:100]} == {(1,)}


@pytest.mark.parametrize("rule", ["follow", "token", "block"])
def test_b168_a_candidate_of_a_beam_search_is_no_sample(rule: str) -> None:
    """It is accepted with p, not with min(1, p/q)."""
    target = law(0.3, 0.7)
    accepted = [verify([target] * 2, Proposal.point([0]), key, rule).accepted for key in KEYS]
    assert abs(np.mean(accepted) - 0.3) < 6 * np.sqrt(0.21 / len(KEYS))
    assert fits(target, firsts(target, lambda key: Proposal.point([0]), rule))


@pytest.mark.parametrize("sampled", [False, True])
def test_b169_two_candidates_for_one_slot(sampled: bool) -> None:
    """EAGLE's rule is right for deterministic candidates and was read as wrong: here the tree says which are which."""
    target = law(0.5, 0.3, 0.2)

    def tree(key: Key) -> Tree:
        rest = Distribution.from_probs([0.5, 0.5], ids=[0, 2])
        return Tree([rest.draw(key.draft(0)), 1], [-1, -1], {0: rest}) if sampled else Tree([0, 1], [-1, -1])

    verdicts = [verify_tree([target] * 3, tree(key), key) for key in KEYS]
    assert {verdict.rule for verdict in verdicts} == {"tree" if sampled else "follow"}
    assert fits(target, [verdict.tokens[0] for verdict in verdicts])


def test_b170_a_distribution_test_ships() -> None:
    """EAGLE's authors had said that no quality test was needed.  ``Monitor`` is one for production."""
    target, wrong = law(0.5, 0.3, 0.2), law(0.6, 0.3, 0.1)
    good, bad = Monitor(), Monitor()
    for key in KEYS[:1500]:
        good.observe(target, target.draw(key))
        bad.observe(target, wrong.draw(key))
    assert (good.alarm, bad.alarm) == (False, True)


@RATIO
def test_b171_uniforms_are_drawn_and_zero_accepts_nothing_impossible(rule: str) -> None:
    """An accelerator path replaced the uniform by 0.0, which accepts everything."""
    target, draft = law(0.1, 0.9), law(0.9, 0.1)
    accepted = [verify([target] * 2, Proposal([0], [draft]), key, rule).accepted for key in KEYS]
    assert abs(np.mean(accepted) - 1 / 9) < 6 * np.sqrt(8 / 81 / len(KEYS))
    never = RULES[rule]([Sparse.of(law(0.0, 1.0))] * 2, (0,), [Sparse.of(draft)], Fixed(0.0))
    assert never[:2] == (0, 1)


@pytest.mark.parametrize("rule", [None, "token", "block"])
def test_b173_the_target_is_the_processed_law(rule: Any) -> None:
    """vLLM compared target probabilities from before temperature and top-p."""
    chain, row = Chain.parse("temperature(0.1) | top_p(0.95)"), np.log([0.3, 0.28, 0.22, 0.2])
    wanted = chain.distribution(row)
    tokens = []
    for key in KEYS:
        sampler = Sampler(chain, seed=key.seed)
        proposal = Proposal([wanted.draw(sampler.key.draft(0))], [wanted])
        tokens.append(sampler.step([row] * 2, proposal, rule).tokens[0])
    assert fits(wanted, tokens)


@RATIO
def test_b174_a_step_ends_with_a_recovered_token_or_with_a_bonus(rule: str) -> None:
    """Never both: the bonus after all, the recovered one after a rejection, from what the draft left."""
    target, after, draft = law(0.2, 0.8, 0.0), law(0.0, 0.0, 1.0), law(0.8, 0.2, 0.0)
    for key in KEYS[:300]:
        verdict = verify([target, after], Proposal([0], [draft]), key, rule)
        assert verdict.tokens in ((0, 2), (1,))
        assert verdict.bonus is (verdict.tokens == (0, 2))


@pytest.mark.parametrize("bonus", [0, 7])
@pytest.mark.parametrize("rule", ["follow", "token", "block"])
def test_b175_the_place_after_the_draft_is_compared_with_nothing(rule: str, bonus: int) -> None:
    """A filler id 0 behind the draft acted as a draft token."""
    hot = [Distribution.from_probs([1.0], ids=[token]) for token in (3, 4, bonus)]
    assert verify(hot, Proposal.point([3, 4]), KEYS[0], rule).tokens == (3, 4, bonus)


@RATIO
@pytest.mark.parametrize("step", [0.0, 1.0, -1.0])
def test_b177_equal_laws_up_to_rounding_never_fall_back_to_uniform(rule: str, step: float) -> None:
    """The residual is empty, or one unit in the last place; a uniform fallback would emit ids that the target cannot draw."""
    p = Distribution.from_probs([0.5, 0.5], ids=[3, 9])
    q = Distribution.from_probs(np.nextafter(p.probs, p.probs + step), ids=[3, 9])
    for uniform in (0.0, 0.5, 1 - 2.0**-53):
        decision = RULES[rule]([Sparse.of(p)] * 2, (9,), [Sparse.of(q)], Fixed(uniform))
        assert decision.token in (3, 9)


def test_b178_a_seed_repeats_a_drafted_reply_and_its_temperature_counts() -> None:
    model = Model(Toy())
    drafted = [model.generate(PROMPT, seed=1, temperature=0.5, max_tokens=40, draft="suffix").text for _ in range(2)]
    assert drafted[0] == drafted[1] == model.generate(PROMPT, seed=1, temperature=0.5, max_tokens=40).text
    assert drafted[0] != model.generate(PROMPT, seed=1, temperature=1.5, max_tokens=40, draft="suffix").text


def test_b179_identical_logits_give_identical_ids() -> None:
    """What a model's own batching does to its logits is another matter (docs/randomness.md)."""
    rows = np.random.default_rng(0).normal(0, 2, (4, 50))
    for text in ("temperature(0)", "temperature(0.9) | top_p(0.9)"):
        plain = Sampler(Chain.parse(text), seed=3)
        right = [plain.sample(row).token for row in rows]
        drafted = Sampler(Chain.parse(text), seed=3)
        assert list(drafted.step(rows, Proposal.point(right[:3])).tokens) == right


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_b181_a_draft_of_random_ids_changes_nothing(temperature: float) -> None:
    """llama.cpp: accuracy fell from 93 to 62 % with a drafter, whose ids were not verified."""
    model = Model(Toy())
    plain = model.generate(PROMPT, seed=4, temperature=temperature, max_tokens=60)
    babbled = model.generate(PROMPT, seed=4, temperature=temperature, max_tokens=60, draft=Babbler())
    assert babbled.text == plain.text
    assert babbled.stats.accepted <= babbled.stats.drafted / 10


@RATIO
def test_b182_a_greedy_draft_has_a_one_hot_law(rule: str) -> None:
    """llama.cpp's greedy path returned no probabilities, so that nothing could be drafted."""
    from nalar import sample

    def draft(key: Key) -> Proposal:
        return Proposal.sampled([sample([0.0, 2.0, 1.0], Chain.parse("temperature(0)"), key.draft(0), keep_law=True)])

    target = law(0.2, 0.5, 0.3)
    assert [q.probs.tolist() for q in draft(KEYS[0]).laws or ()] == [[1.0]]
    assert fits(target, firsts(target, draft, rule))


def test_b183_a_reply_with_a_draft_reads_like_one_without() -> None:
    """vLLM and llama.cpp: nonsense words, and the start token over and over at temperature 0."""
    model = Model(Toy())
    for temperature in (0.0, 0.7):
        for draft in ("ngram", "suffix"):
            asked = {"seed": 2, "temperature": temperature, "max_tokens": 80}
            assert model.generate(PROMPT, draft=draft, **asked).text == model.generate(PROMPT, **asked).text  # type: ignore[arg-type]


def test_b164_outputs_with_and_without_a_draft_have_one_law() -> None:
    """transformers: "functional problems" with sampling, no more is told.  See also test_drafts.py, with a draft model."""
    target, draft = law(0.5, 0.3, 0.2), law(0.1, 0.1, 0.8)
    for rule in ("follow", "token", "block"):
        tokens = firsts(target, lambda key: Proposal([draft.draw(key.draft(0))], [draft]), rule)
        assert fits(target, tokens)


def test_a_law_the_token_was_not_drawn_from_is_refused_where_it_shows() -> None:
    model = Model(Toy())
    with pytest.raises(InvalidValue, match="draft law must give its own token a probability above 0"):
        model.generate(PROMPT, seed=1, draft=Saying([[65]], laws=[Distribution.from_probs([1.0], ids=[66])]))
