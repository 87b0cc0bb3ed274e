"""DRAFT: vocabularies that differ, drafts that do not pay, and numbers that mislead.  Reports of facts/faults.md on other projects."""

from __future__ import annotations

import numpy as np
import pytest

from faults.saying import Saying
from nalar import Chain, Distribution, Key, Proposal, Sampler, verify
from nalar.completion import Stats
from nalar.engines.toy import Toy, ToyVocabulary
from nalar.errors import InvalidValue
from nalar.model import Model
from nalar.sampling import Sample
from nalar.speculative.drafts import ModelDraft, Suffix
from nalar.speculative.drafts.model import check_vocabularies
from nalar.speculative.forecast import best_length, speedup, tokens_per_step
from nalar.speculative.verdict import Verdict
from test_goodness_of_fit import fits

KEY = Key(1, position=0)


def verdict(accepted: int, drafted: int) -> Verdict:
    return Verdict(accepted, tuple(Sample(0, 0.0, KEY) for _ in range(accepted + 1)), drafted)


def test_b061_a_draft_with_another_vocabulary_is_refused_at_set_up() -> None:
    """An app compared the hidden width only."""
    plain = ToyVocabulary()
    engine = Toy()
    engine.vocabulary = ToyVocabulary(pieces=(plain.pieces[1], plain.pieces[0], *plain.pieces[2:]))
    with pytest.raises(InvalidValue, match=r"draft must have the target's vocabulary: id 0 is b'\\x00' there"):
        Model(Toy()).generate("a", seed=1, draft=ModelDraft(engine))


@pytest.mark.parametrize("rule", ["token", "block"])
@pytest.mark.parametrize(("wide", "narrow"), [(152064, 151936), (151936, 152064)])
def test_b062_laws_of_different_width_are_verified_together(rule: str, wide: int, narrow: int) -> None:
    """The same tokenizer, padded differently; ids beyond the shorter have probability 0 there."""
    target = Distribution.from_probs([0.5, 0.3, 0.2], ids=[0, 7, wide - 1])
    draft = Distribution.from_probs([0.2, 0.3, 0.5], ids=[0, 7, narrow - 1])
    tokens = []
    for seed in range(2000):
        key = Key(seed, position=0)
        tokens.append(verify([target] * 2, Proposal([draft.draw(key.draft(0))], [draft]), key, rule).tokens[0])
    assert fits(target, tokens)


def test_b063_what_has_no_counterpart_is_not_id_0() -> None:
    """A missing id was mapped to 0.  Here ids map to themselves or the draft is refused, and a text it cannot read is not drafted for."""
    plain = ToyVocabulary()
    narrow = ToyVocabulary(size=100, pieces=plain.pieces[:100], ends=frozenset())
    assert check_vocabularies(plain, narrow) == 100
    engine = Toy()
    engine.vocabulary = narrow
    draft = ModelDraft(engine).begin(Toy())
    history = Sampler(Chain([]), seed=1, prompt=[65, 200]).history
    assert len(draft.propose(history, KEY, 3)) == 0


def test_b064_arithmetic_says_when_a_draft_does_not_pay() -> None:
    """a = 0.3, k = 5, cost 0.2: 1.43 tokens a step, for twice the cost of one."""
    assert tokens_per_step(0.3, 5) == pytest.approx(1.43, abs=0.005)
    assert speedup(0.3, 5, 0.2) < 1
    assert best_length(0.3, 0.3) == 0


def test_b066_a_draft_of_length_0_is_plain_sampling() -> None:
    row = np.linspace(0, 1, 5)
    plain, empty = Sampler(Chain([]), seed=3), Sampler(Chain([]), seed=3)
    for rule in (None, "follow", "token", "block"):
        assert empty.step([row], Proposal.point([]), rule).samples == (plain.sample(row),)
    model = Model(Toy())
    asked = {"seed": 3, "max_tokens": 30}
    none, zero = model.generate("The ", **asked), model.generate("The ", draft=Suffix(length=0), **asked)  # type: ignore[arg-type]
    assert (zero.text, zero.stats.steps, zero.stats.drafted) == (none.text, none.stats.steps, 0)


def test_b067_a_draft_that_paused_goes_on_where_the_text_is() -> None:
    """After a while at length 0 the draft's state was stale, and acceptance collapsed without a word."""
    engine = Toy()
    draft = ModelDraft(engine, Chain.parse("temperature(0)")).begin(Toy())
    sampler = Sampler(Chain.parse("temperature(0)"), seed=1, prompt=list(b"The river ran to the sea. The "))
    assert len(draft.propose(sampler.history, sampler.key, 2)) == 2
    for _ in range(20):  # nothing is proposed meanwhile
        sampler.sample(Model(Toy()).logits(sampler.history.tokens.tolist()))
    proposal = draft.propose(sampler.history, sampler.key, 3)
    rows = [Model(Toy()).logits([*sampler.history.tokens.tolist(), *proposal.tokens[:i]]) for i in range(4)]
    assert sampler.step(rows, proposal).accepted == 3


def test_b068_what_follows_the_first_rejection_is_not_accepted() -> None:
    """Flags [1, 0, 1] and [1, 1, 1]: 1 + 3 accepted, not 5; 2 + 4 emitted."""
    stats = Stats()
    for accepted in (1, 3):
        stats.count(verdict(accepted, 3), accepted + 1)
    assert (stats.accepted, stats.emitted, stats.drafted) == (4, 6, 6)


def test_b069_no_rate_is_above_1() -> None:
    stats = Stats()
    stats.count(verdict(3, 3), 4)
    assert stats.accepted / stats.drafted == 1.0
    assert stats.acceptance == (1.0, 1.0, 1.0)
    assert stats.emitted == 4


def test_b071_rates_by_position_do_not_depend_on_the_draft_length() -> None:
    """The overall rate falls with the length though nothing became worse."""
    random = np.random.default_rng(0)
    rates = {}
    for length in (2, 8):
        stats = Stats()
        for _ in range(4000):
            missed = np.flatnonzero(random.random(length) > 0.8)
            accepted = int(missed[0]) if missed.size else length
            stats.count(verdict(accepted, length), accepted + 1)
        rates[length] = stats
        assert all(abs(rate - 0.8) < 0.05 for rate in stats.acceptance)
    assert rates[8].accepted / rates[8].drafted < rates[2].accepted / rates[2].drafted - 0.2


def test_b072_what_was_drafted_is_counted_not_estimated() -> None:
    """Lengths 3, 1, 0: 4 drafted."""
    model = Model(Toy())
    said = Saying([[1, 1, 1], [1], []])
    reply = model.generate("The ", seed=1, max_tokens=3, ignore_eos=True, draft=said)
    assert said.lengths[:2] == [2, 1]  # with 3 tokens to go, a draft of 2 and one more is all there is room for
    reply = model.generate("The ", seed=1, max_tokens=9, ignore_eos=True, draft=said)
    assert reply.stats.drafted == 4
