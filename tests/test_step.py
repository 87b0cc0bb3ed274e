"""A step on a sampler: the right keys, the draft in every history, only what was emitted committed; and many at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nalar
from nalar import Chain, Proposal, Sampler, kernels, verify
from nalar.candidates import Candidates
from nalar.engines.base import Lease, Work, lend
from nalar.engines.toy import Toy
from nalar.errors import BrokenRow, InvalidType, InvalidValue
from nalar.speculative.verdict import Verdict
from nalar.stages import Context, Stage
from strategies import Case, CoinDropsTop, Remembers, cases
from test_goodness_of_fit import fits, g_test
from test_laws_of_memory import everything, sampler_of, usable

FREQUENCY = Chain.parse("frequency(2.0)")


@dataclass(frozen=True)
class Recorder(Stage):
    """Counts how often each history was shown, and refuses one in which token 3 occurs: a grammar that 3 has broken."""

    seen: Any = None

    def apply(self, candidates: Candidates, context: Context) -> Candidates:
        output = tuple(context.history.output.tolist())
        if 3 in output:
            raise RuntimeError("asked about an impossible past")
        self.seen.append(output)
        return candidates.masked(candidates.ids == 3)

    def __hash__(self) -> int:
        return 0


def sampled(sampler: Sampler, chain: Chain, rows: Any, length: int) -> Proposal:
    """Draft tokens drawn from ``rows`` with the step's draft keys."""
    history, drawn = sampler.history.copy(), []
    for i in range(length):
        drawn.append(nalar.sample(rows[i], chain, sampler.key.draft(i), history, keep_law=True))
        history.append(drawn[-1].token)
    return Proposal.sampled(drawn)


# --- against plain sampling -------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(cases(low=2, own=True), st.booleans(), st.data())
def test_follow_gives_the_tokens_of_no_draft(case: Case, compiled: bool, data: st.DataObject) -> None:
    """For every draft, length and way to draw, with penalties, coins and memories; by the kernels and without them."""
    with kernels.use(compiled):
        check_follow(case, data)


def check_follow(case: Case, data: st.DataObject) -> None:
    usable(case)
    draw = data.draw(st.sampled_from(["inverse", "race"]))
    plain, drafted = sampler_of(case, draw), sampler_of(case, draw)
    while drafted.history.position < len(case.output) + 6:
        size = case.row.size
        length = data.draw(st.integers(0, 3))
        try:
            ahead = plain.fork((case.key.sequence + 1) % 2**32)
            ahead._key = plain._key
            right = [ahead.sample(case.row).token for _ in range(length)]
        except BrokenRow:
            return
        tokens = [x if data.draw(st.booleans()) else data.draw(st.integers(0, size - 1)) for x in right]
        try:
            verdict = drafted.step([case.row] * (length + 1), Proposal.point(tokens))
        except BrokenRow:
            return  # a constraint left nothing along the draft
        assert verdict.samples == tuple(plain.sample(case.row) for _ in verdict.tokens)
        assert everything(drafted) == everything(plain)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("draw", ["inverse", "race"])
@pytest.mark.parametrize("text", ["identity", "temperature(0.8) | top_k(40) | top_p(0.95)", "frequency(0.7) | temperature(1.3)"])
def test_follow_in_a_step_decides_as_the_rule_does(text: str, draw: Any, compiled: bool) -> None:
    """A step samples along the draft; ``rules.follow``, which is proven, looks at the laws of the window."""
    rows = np.random.default_rng(3).normal(0, 3, (4, 300)).astype(np.float32)
    with kernels.use(compiled):
        for seed in range(20):
            right = [Sampler(Chain.parse(text), seed=seed, draw=draw).sample(row).token for row in rows[:1]]
            sampler = Sampler(Chain.parse(text), seed=seed, draw=draw)
            proposal = Proposal.point([*right, 7, 9])
            wanted = verify(sampler.distributions(rows, proposal.tokens), proposal, sampler.key, draw=draw)
            got = sampler.step(rows, proposal)
            assert (got.accepted, got.tokens, got.rule, got.drafted) == (wanted.accepted, wanted.tokens, wanted.rule, wanted.drafted)
            assert [sample.key for sample in got.samples] == [sample.key for sample in wanted.samples]
            np.testing.assert_allclose(got.logprobs, wanted.logprobs, rtol=1e-6, atol=1e-6)


def test_a_step_without_a_draft_is_sample() -> None:
    row = np.linspace(0, 2, 9)
    plain, stepped = Sampler(Chain([]), seed=7), Sampler(Chain([]), seed=7)
    for proposal in (None, Proposal.point([]), Proposal([], [])):
        sample, verdict = plain.sample(row, logprobs=2), stepped.step([row], proposal, logprobs=2)
        assert verdict.samples == (sample,)
        assert (verdict.accepted, verdict.drafted, verdict.bonus) == (0, 0, True)
    assert everything(plain) == everything(stepped)


# --- what is seen, and what is kept -----------------------------------------------------------------------------------


def test_penalties_see_the_draft_at_each_position() -> None:
    """Frequency 2 on each occurrence; a stale count would let token 0 through again and again."""
    rows = np.array([[3.0, 2.0, 1.5, 1.0]] * 4)
    sampler = Sampler(Chain([*FREQUENCY, nalar.stages.Temperature(0)]), seed=1)
    verdict = sampler.step(rows, Proposal.point([0, 1, 2]))
    assert verdict.tokens == (0, 1, 2, 0)
    assert sampler.history.output.tolist() == [0, 1, 2, 0]
    assert sampler.step(rows, Proposal.point([0, 0, 0])).tokens == (3,)
    assert sampler.history.counts.output.sum() == 5


def test_only_what_was_emitted_is_committed() -> None:
    sampler = Sampler(Chain([Remembers(), nalar.stages.Temperature(0)]), seed=1)
    plain = Sampler(Chain([Remembers(), nalar.stages.Temperature(0)]), seed=1)
    row = [0.0, 1.0, 0.5]
    right = [plain.sample(row).token for _ in range(2)]
    wrong = (right[1] + 1) % 3
    assert sampler.step([row] * 4, Proposal.point([right[0], wrong, right[0]])).accepted == 1
    assert everything(sampler) == everything(plain)


def test_no_stage_meets_an_impossible_past() -> None:
    """A grammar is not asked what follows a token that it forbids."""
    seen: list[tuple[int, ...]] = []
    sampler = Sampler(Chain([Recorder(seen)]), seed=1)
    row = np.array([0.0, 30.0, 0.0, 40.0])
    for rule in (None, "token", "block"):
        seen.clear()
        start = tuple(sampler.history.output.tolist())
        verdict = sampler.step([row] * 4, Proposal.point([1, 3, 0]), rule)
        assert verdict.accepted == 1
        assert 3 not in verdict.tokens
        assert seen == [start, (*start, 1)]


@pytest.mark.parametrize("rule", [None, "token", "block"])
def test_an_error_commits_nothing(rule: Any) -> None:
    sampler = Sampler(Chain([Remembers()]), seed=1, output=[])
    before = everything(sampler)
    for rows, proposal, error in [
        ([[0.0, 99.0], [np.nan, 1.0]], Proposal.point([1]), BrokenRow),
        ([[0.0, 1.0]], Proposal.point([1]), InvalidValue),
        ([[0.0, 1.0]] * 2, Proposal.point([2]), InvalidValue),
        ([[0.0, 1.0]] * 2, Proposal([1], [nalar.Distribution.from_probs([1.0])]), InvalidValue),
        ([[0.0, 1.0]] * 2, [1], InvalidType),
    ]:
        with pytest.raises(error):
            sampler.step(rows, proposal, rule)
        assert everything(sampler) == before


@pytest.mark.parametrize("rule", [None, "token"])
def test_rows_behind_the_place_where_a_step_stops_are_not_looked_at(rule: Any) -> None:
    sampler = Sampler(Chain([]), seed=1)
    rows = [[0.0, 99.0], [0.0, 99.0], [np.nan, 1.0], [np.nan, 1.0]]
    assert sampler.step(rows, Proposal.point([1, 0, 1]), rule).tokens == (1, 1)


def test_padding_is_never_a_draft_token() -> None:
    sampler = Sampler(Chain([]), seed=1, vocabulary=3)
    with pytest.raises(InvalidValue, match=r"a draft token must be an integer in \[0, 2\], got 3"):
        sampler.step(np.zeros((2, 5)), Proposal.point([3]))


def test_logprobs_and_ranks_are_those_of_each_row() -> None:
    rows = np.log([[0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4]])
    hot = Sampler(Chain.parse("temperature(0.5)"), seed=4)
    verdict = hot.step(rows, Proposal.point([0]), logprobs=2)
    for sample, row in zip(verdict.samples, rows, strict=False):
        law = Chain.parse("temperature(0.5)").distribution(row)
        assert sample.logprob == law.logprob(sample.token)
        assert sample.raw_logprob == pytest.approx(row[sample.token])
        assert len(sample.top) == len(sample.raw_top) == 2


def test_a_redraw_does_not_accept_an_old_draft() -> None:
    rows = np.zeros((2, 4))
    sampler = Sampler(Chain([]), seed=1)
    old = sampled(sampler, Chain([]), rows, 1)
    sampler.redraw()
    with pytest.raises(InvalidValue, match="proposal must be drawn for this step"):
        sampler.step(rows, old)
    sampler.step(rows, sampled(sampler, Chain([]), rows, 1))
    with pytest.raises(InvalidValue, match="proposal must be drawn for this step"):
        sampler.step(rows, old)


# --- the law ----------------------------------------------------------------------------------------------------------


TARGET = np.log([[0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4], [0.25] * 4])
DRAFT = np.log([[0.1, 0.2, 0.3, 0.4], [0.3, 0.3, 0.2, 0.2], [0.4, 0.3, 0.2, 0.1]])
SEQUENCES = 4000


def emitted(rule: Any, length: int, tokens: int, chain: Chain, seed: int) -> tuple[int, ...]:
    """Some steps on fixed rows whose row depends on the position."""
    sampler = Sampler(chain, seed=seed)
    while sampler.history.position < tokens:
        rows = [TARGET[(sampler.history.position + i) % 3] for i in range(length + 1)]
        drafts = [DRAFT[(sampler.history.position + i) % 3] for i in range(length)]
        proposal = sampled(sampler, chain, drafts, length) if rule in ("token", "block") else Proposal.point([0, 3, 1][:length])
        sampler.step(rows, proposal, rule)
    return tuple(sampler.history.output.tolist()[:tokens])


@pytest.mark.parametrize("rule", [None, "token", "block"])
@pytest.mark.parametrize("text", ["", "frequency(0.7) | top_k(3)"])
def test_a_drafted_step_has_the_targets_law(rule: Any, text: str) -> None:
    """Three tokens over two steps or more; a false alarm once in 1e9."""
    chain = Chain.parse(text or "identity")
    law: dict[tuple[int, ...], float] = {(): 1.0}
    for position in range(3):
        law = {
            (*word, int(x)): chance * p
            for word, chance in law.items()
            for x, p in zip(*_law(chain, TARGET[position], word), strict=True)
        }
    words = sorted(law)
    index = {word: place for place, word in enumerate(words)}
    counts = np.bincount([index[emitted(rule, 2, 3, chain, seed)] for seed in range(SEQUENCES)], minlength=len(words))
    assert g_test(counts, [law[word] for word in words])


def _law(chain: Chain, row: Any, word: tuple[int, ...]) -> tuple[Any, Any]:
    law = chain.distribution(row, nalar.History([], word))
    return law.ids, law.probs


def test_coins_of_the_target_belong_to_positions() -> None:
    """Whether a token was drafted or drawn, the stage's coin at its position is the same."""
    row = np.log([0.4, 0.3, 0.2, 0.1])
    chain = Chain([CoinDropsTop()])
    for seed in range(50):
        plain, stepped = Sampler(chain, seed=seed), Sampler(chain, seed=seed)
        window = stepped.distributions([row] * 4, [1, 2, 3])
        for i in range(4):
            law = chain.distribution(row, key=plain.key.at(i))
            assert law.ids.tolist() == window[i].ids.tolist()
    tokens = [emitted("block", 2, 1, chain, seed)[0] for seed in range(SEQUENCES)]
    dropped = np.array([0.0, 0.3, 0.2, 0.1]) / 0.6
    mixed = 0.5 * np.array([0.4, 0.3, 0.2, 0.1]) + 0.5 * dropped
    assert fits(nalar.Distribution.from_probs(mixed), tokens)


# --- on an engine -----------------------------------------------------------------------------------------------------


def toy_text(draft: Any, seed: int, count: int, rule: Any = None, temperature: float = 0.8) -> list[int]:
    """``count`` tokens of the toy, each step drafting what ``draft`` says, with rejected tokens taken back."""
    engine = Toy()
    prompt = engine.vocabulary.encode("The cat sat by the ")
    sequence = engine.open()
    engine.step([Work(sequence, tuple(prompt[:-1]), 0)])
    sampler = Sampler(Chain.parse(f"temperature({temperature})"), seed=seed, prompt=prompt, vocabulary=261)
    pending = prompt[-1]
    while sampler.history.position < count:
        proposal = draft(sampler)
        rows = engine.step([Work(sequence, (pending, *proposal.tokens), len(proposal) + 1)])[0]
        verdict = sampler.step(np.array(rows), proposal, rule)
        engine.truncate(sequence, len(prompt) + sampler.history.position - 1)
        pending = verdict.token
    return sampler.history.output.tolist()[:count]


def lookup(length: int) -> Any:
    """What followed the last two tokens the last time they occurred."""

    def draft(sampler: Sampler) -> Proposal:
        tokens = sampler.history.tokens.tolist()
        for place in range(len(tokens) - 3, -1, -1):
            if tokens[place : place + 2] == tokens[-2:]:
                return Proposal.point(tokens[place + 2 : place + 2 + length])
        return Proposal.point([])

    return draft


@pytest.mark.parametrize("length", [1, 3, 8])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_on_the_toy_follow_is_bit_equal_to_no_draft(length: int, temperature: float) -> None:
    for seed in range(3):
        plain = toy_text(lambda sampler: Proposal.point([]), seed, 80, temperature=temperature)
        assert toy_text(lookup(length), seed, 80, temperature=temperature) == plain
        assert toy_text(lambda sampler: Proposal.point([7] * length), seed, 80, temperature=temperature) == plain


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("rule", ["follow", "token", "block"])
def test_a_sampled_draft_outlives_the_rows_it_was_drawn_from(rule: str, compiled: bool) -> None:
    """A draft engine's rows are gone at its next call; so are the target's, but a step has verified by then."""
    target, draft = np.random.default_rng(5).normal(0, 2, (2, 4, 5000)).astype(np.float32)
    chain = Chain.parse("temperature(0.9)")
    with kernels.use(compiled):
        for seed in range(10):
            safe, lent = Sampler(chain, seed=seed), Sampler(chain, seed=seed)
            wanted = safe.step(target, sampled(safe, chain, draft, 3), rule)
            drawn = []
            for i in range(3):
                lease, own = Lease(), np.array(draft[i : i + 1])
                drawn.append(nalar.sample(lend(own, lease)[0], chain, lent.key.draft(i), keep_law=True))
                lease.ended, own[:] = True, np.nan
            lease, own = Lease(), np.array(target)
            verdict = lent.step(lend(own, lease), Proposal.sampled(drawn), rule)
            lease.ended, own[:] = True, np.nan
            assert verdict == wanted
            assert lent.step(target[:1]) == safe.step(target[:1])


# --- many at once -----------------------------------------------------------------------------------------------------


def trio() -> list[Sampler]:
    return [Sampler(Chain([]), seed=5, sequence=i) for i in range(3)]


@pytest.mark.parametrize("form", ["blocks", "list of rows", "array"])
def test_a_batch_equals_its_sequences_one_by_one(form: str) -> None:
    proposals = [Proposal.point([0, 1]), None, Proposal.point([2])]
    blocks = [TARGET[:3], TARGET[:1], TARGET[1:3]]
    flat = np.concatenate(blocks)
    rows: Any = {"blocks": blocks, "list of rows": list(flat), "array": flat}[form]
    batch, alone = trio(), trio()
    got = nalar.step_batch(batch, rows, proposals)
    wanted = [sampler.step(block, proposal) for sampler, block, proposal in zip(alone, blocks, proposals, strict=True)]
    assert got == wanted
    assert [everything(sampler) for sampler in batch] == [everything(sampler) for sampler in alone]


def test_a_users_exception_fails_its_sequence_only() -> None:
    samplers = trio()
    samplers[1].chain = Chain([Recorder(None)])  # raises AttributeError
    rows = [TARGET[:2], TARGET[:2], np.full((2, 4), np.nan)]
    got = nalar.step_batch(samplers, rows, [Proposal.point([1])] * 3)
    assert isinstance(got[0], Verdict)
    assert isinstance(got[1], AttributeError)
    assert got[1].__notes__ == ["in sequence 1"]
    assert isinstance(got[2], BrokenRow)
    assert str(got[2]).startswith("row 2: ")
    assert [sampler.history.position for sampler in samplers] == [len(got[0].tokens), 0, 0]
    with pytest.raises(AttributeError):
        nalar.step_batch(samplers, rows, [Proposal.point([1])] * 3, errors="raise")


def test_rules_one_for_all_or_one_each() -> None:
    rows = [TARGET[:2]] * 3
    drafts = [Proposal.point([1])] * 3
    got = nalar.step_batch(trio(), rows, drafts, rules=["token", None, "block"])
    assert [verdict.rule for verdict in got if isinstance(verdict, Verdict)] == ["token", "follow", "block"]
    assert {verdict.rule for verdict in nalar.step_batch(trio(), rows, drafts, rules="token") if isinstance(verdict, Verdict)} == {"token"}


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda s: nalar.step_batch([s, s], [TARGET[:1]] * 2), InvalidValue, "samplers must be different"),
        (lambda s: nalar.step_batch([s, 3], [TARGET[:1]] * 2), InvalidType, "samplers must be a list of nalar.Samplers"),
        (lambda s: nalar.step_batch([s], TARGET), InvalidValue, "rows must hold 1 rows for these proposals, or one block"),
        (lambda s: nalar.step_batch([s], [TARGET[:1]], [None, None]), InvalidValue, "proposals must be a list with one entry for"),
        (lambda s: nalar.step_batch([s], [TARGET[:1]], errors="ignore"), InvalidValue, "errors must be one of"),
    ],
)
def test_what_a_batch_refuses(call: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        call(Sampler(Chain([]), seed=1))


def test_an_empty_batch() -> None:
    assert nalar.step_batch([], []) == []
