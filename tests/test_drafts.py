"""Drafts propose what they say they propose, and change nothing but the number of steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nalar
from nalar import Chain, History, Key, Proposal
from nalar.engines.toy import Toy, ToyVocabulary
from nalar.errors import EngineFull, InvalidType, InvalidValue
from nalar.model import Model
from nalar.speculative import lenient
from nalar.speculative.drafts import Draft, DraftSource, ModelDraft, Ngram, Suffix
from nalar.speculative.drafts.model import check_vocabularies
from nalar.speculative.drafts.ngram import NgramDraft
from nalar.speculative.drafts.suffix import SuffixDraft
from test_goodness_of_fit import g_test

KEY = Key(7, position=0)
TEXTS = st.lists(st.integers(0, 2), max_size=40)
PROMPT = "The river ran to the sea. The rain fell on the "


def proposed(draft: Draft, length: int = 4) -> list[int]:
    return list(draft.propose(History(), KEY, length).tokens)


# --- lookup -----------------------------------------------------------------------------------------------------------


@given(TEXTS, st.integers(1, 4), st.integers(1, 3))
def test_ngram_copies_after_the_most_recent_occurrence(text: list[int], longest: int, shortest: int) -> None:
    longest = max(longest, shortest)
    draft = NgramDraft(longest, shortest)
    draft.observe(text)
    wanted: list[int] = []
    for size in range(longest, shortest - 1, -1):
        places = [i for i in range(len(text) - size) if text[i : i + size] == text[-size:]] if size <= len(text) else []
        if places:
            start = places[-1] + size
            wanted = (text[start:] * 5)[:4]
            break
    assert proposed(draft) == wanted


def longest_repeat(text: list[int]) -> int:
    for size in range(len(text) - 1, 0, -1):
        if any(text[i : i + size] == text[-size:] for i in range(len(text) - size)):
            return size
    return 0


@settings(max_examples=200)
@given(TEXTS)
def test_suffix_finds_the_longest_repeat_and_copies_what_followed_it(text: list[int]) -> None:
    draft = SuffixDraft(1)
    for place, token in enumerate(text):
        draft.observe([token])
        seen = text[: place + 1]
        assert draft.matched == longest_repeat(seen)
        got = proposed(draft)
        if draft.matched:
            followers = [
                (seen[i + draft.matched :] * 9)[: len(got)]
                for i in range(len(seen) - draft.matched)
                if seen[i : i + draft.matched] == seen[-draft.matched :]
            ]
            assert got in followers
        else:
            assert got == []


@given(TEXTS, TEXTS, st.sampled_from([Ngram(), Suffix(least=1)]))
def test_rollback_is_as_if_never_observed(text: list[int], more: list[int], source: Any) -> None:
    draft, fresh = source.begin(None), source.begin(None)
    draft.observe(text)
    draft.observe(more)
    draft.rollback(len(more))
    fresh.observe(text)
    for token in (0, 1, 0, 1, 2):
        assert proposed(draft) == proposed(fresh)
        draft.observe([token])
        fresh.observe([token])


def test_suffix_takes_constant_time_a_token() -> None:
    """At most 2n states and 3n transitions, whatever the text; here the hardest kinds."""
    for text in ([0] * 3000, [i % 7 for i in range(3000)], np.random.default_rng(0).integers(0, 3, 3000).tolist(), [0] * 1500 + [1] * 1500):
        draft = SuffixDraft(2)
        draft.observe(text)
        assert len(draft._states) <= 2 * len(text)
        assert sum(len(state.following) for state in draft._states) <= 3 * len(text)


def test_a_short_match_earns_a_short_draft() -> None:
    draft = Suffix(least=2, length=20).begin(None)
    draft.observe([1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2])
    assert proposed(draft, 20) == [3, 4, 5, 6]
    draft.observe([3, 4])
    assert len(proposed(draft, 20)) == 6


def test_repetition_is_continued() -> None:
    for source in (Ngram(), Suffix(length=8)):
        draft = source.begin(None)
        draft.observe([5, 6, 7] * 3)
        assert proposed(draft, 8) == [5, 6, 7, 5, 6, 7, 5, 6]


# --- a model ----------------------------------------------------------------------------------------------------------


def test_a_model_draft_has_its_chains_law_and_the_steps_keys() -> None:
    engine, chain = Toy(), Chain.parse("temperature(0.7) | top_k(5)")
    draft = ModelDraft(engine, chain).begin(Toy())
    history = History(engine.vocabulary.encode(PROMPT))
    key = Key(3, position=0)
    for _ in range(3):
        proposal = draft.propose(history, key, 3)
        assert proposal.start == key
        assert proposal.laws is not None
        ahead = history.copy()
        for i, (token, law) in enumerate(zip(proposal.tokens, proposal.laws, strict=True)):
            row = Model(Toy()).logits(ahead.tokens.tolist())
            wanted = chain.distribution(row, ahead)
            assert np.array_equal(law.probs, wanted.probs)
            assert token == wanted.draw(key.draft(i))
            ahead.append(token)
        history.append(proposal.tokens[0])
        history.append(65)  # what the target said instead: the draft's cache must forget its own
        key = key.at(history.position)
    draft.close()
    draft.close()
    assert len({engine.open().slot for _ in range(engine.limits.sequences)}) == engine.limits.sequences


def test_a_draft_engine_with_little_context_drafts_less_and_then_nothing() -> None:
    engine = Toy(context=10)
    draft = ModelDraft(engine).begin(Toy())
    for length, wanted in ((6, 5), (9, 2), (10, 1), (11, 0)):
        assert len(draft.propose(History([65] * length), KEY, 8)) == wanted


def test_a_draft_that_finds_no_room_proposes_nothing() -> None:
    engine = Toy(sequences=1)
    taken = engine.open()
    draft = ModelDraft(engine).begin(Toy())
    assert len(draft.propose(History([65]), KEY, 3)) == 0
    engine.close(taken)
    assert len(draft.propose(History([65]), KEY, 3)) == 3


def test_vocabularies_may_differ_in_padding_and_in_nothing_else() -> None:
    plain = ToyVocabulary()
    wider = ToyVocabulary(size=264, pieces=(*plain.pieces, b"", b"", b""))
    assert check_vocabularies(plain, wider) == check_vocabularies(wider, plain) == 261
    other = ToyVocabulary(pieces=(*plain.pieces[:65], b"?", *plain.pieces[66:]))
    with pytest.raises(InvalidValue, match=r"id 65 is b'A' there, b'\?' in the draft"):
        check_vocabularies(plain, other)
    with pytest.raises(InvalidValue, match="end ids"):
        check_vocabularies(plain, ToyVocabulary(ends=frozenset({256})))


def test_a_text_the_draft_does_not_know_is_no_error() -> None:
    draft = ModelDraft(Toy()).begin(Toy())
    assert len(draft.propose(History([65, 400]), KEY, 3)) == 0
    assert len(draft.propose(History([]), KEY, 3)) == 0


# --- in the loop ------------------------------------------------------------------------------------------------------


class Babbler:
    """Proposes random ids."""

    length = 5

    def begin(self, target: Any) -> Any:
        self.random, self.size, self.heard, self.closed = np.random.default_rng(0), target.vocabulary.size, list[int](), False
        return self

    def propose(self, history: History, key: Key, length: int) -> Proposal:
        assert self.heard == history.tokens.tolist()
        return Proposal.point(self.random.integers(0, self.size, self.random.integers(0, length + 1)))

    def observe(self, tokens: Sequence[int]) -> None:
        self.heard.extend(tokens)

    def rollback(self, n: int) -> None:
        raise NotImplementedError

    def close(self) -> None:
        self.closed = True


DRAFTS: list[Any] = ["ngram", "suffix", Suffix(least=1, length=32), Babbler(), ModelDraft(Toy(), Chain.parse("temperature(0)"), 3)]


@pytest.mark.parametrize("draft", DRAFTS, ids=["ngram", "suffix", "least 1", "babbler", "model"])
@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0.0},
        {"temperature": 0.8, "logprobs": 2},
        {"temperature": 0.9, "frequency_penalty": 0.4, "top_p": 0.95, "min_tokens": 20},
        {"stop": ["sea", "cat"], "temperature": 0.8},
        {"ignore_eos": True, "temperature": 1.0, "top_k": 20},
        {"max_tokens": 1},
    ],
    ids=str,
)
def test_follow_gives_the_reply_of_no_draft(draft: Any, fields: dict[str, Any]) -> None:
    asked = {"max_tokens": 60, "seed": 11, **fields}
    model = Model(Toy())
    plain = model.generate(PROMPT, **asked)
    drafted = model.generate(PROMPT, draft=draft, rule="follow", **asked)
    for name in ("text", "tokens", "logprobs", "finish_reason", "raw_logprobs", "top"):
        assert getattr(drafted, name) == getattr(plain, name), name
    assert drafted.stats.emitted == plain.stats.emitted
    assert drafted.stats.steps <= plain.stats.steps
    assert 0 <= drafted.stats.accepted <= min(drafted.stats.drafted, drafted.stats.emitted)
    assert model.generate(PROMPT, **asked).text == plain.text  # the engine holds nothing it should not
    if isinstance(draft, Babbler):
        assert draft.closed


def test_drafts_save_steps_where_text_repeats() -> None:
    model = Model(Toy())
    plain = model.generate(PROMPT, seed=1, temperature=0, max_tokens=120).stats
    for draft in ("ngram", "suffix"):
        assert model.generate(PROMPT, seed=1, temperature=0, max_tokens=120, draft=draft).stats.steps < plain.steps / 3


@pytest.mark.parametrize("rule", [None, "token", "follow"])
def test_a_context_that_fills_up_ends_the_reply_in_the_same_place(rule: Any) -> None:
    for context in (60, 61, 64):
        plain = Model(Toy(context=context)).generate(PROMPT, seed=5, ignore_eos=True)
        drafted = Model(Toy(context=context)).generate(PROMPT, seed=5, ignore_eos=True, draft=Suffix(least=1), rule=rule)
        assert drafted.finish_reason == plain.finish_reason == "length"
        assert len(drafted.tokens) == len(plain.tokens) == context - len(PROMPT) + 1


def test_streams_fold_to_the_reply_and_closing_frees_the_draft() -> None:
    model, draft = Model(Toy()), Babbler()
    whole = model.generate(PROMPT, seed=2, draft=draft)
    assert "".join(model.stream(PROMPT, seed=2, draft=draft)) == whole.text
    stream = model.stream(PROMPT, seed=2, draft=draft)
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert draft.closed


def test_several_replies_are_those_of_no_draft() -> None:
    model = Model(Toy())
    plain = [reply.text for reply in model.generate_n(PROMPT, n=3, seed=4, max_tokens=30)]
    assert [reply.text for reply in model.generate_n(PROMPT, n=3, seed=4, max_tokens=30, draft="suffix")] == plain


def test_traces_are_those_of_no_draft() -> None:
    model = Model(Toy())
    asked: dict[str, Any] = {"seed": 4, "max_tokens": 25, "temperature": 0.8, "top_k": 5, "frequency_penalty": 0.3, "trace": True}
    plain, _ = model.events(model.request(PROMPT, **asked))
    drafted, _ = model.events(model.request(PROMPT, draft="suffix", **asked))
    for mine, theirs in zip(plain, drafted, strict=True):
        assert mine.trace is not None
        assert theirs.trace is not None
        assert [stage.cut for stage in mine.trace.stages] == [stage.cut for stage in theirs.trace.stages]


@pytest.mark.parametrize("rule", [None, "token", "follow"])
def test_a_drafted_reply_has_the_targets_law(rule: Any) -> None:
    """A model draft of another temperature: three tokens, two steps or more; a false alarm once in 1e9."""
    target, model = Chain.parse("top_k(3) | temperature(1.2)"), Model(Toy(context=64))
    draft = ModelDraft(Toy(context=64), Chain.parse("top_k(3) | temperature(0.5)"), 2)
    words: dict[tuple[int, ...], float] = {(): 1.0}
    prompt = tuple(b"The ")
    for _ in range(3):
        following: dict[tuple[int, ...], float] = {}
        for word, chance in words.items():
            law = target.distribution(model.logits([*prompt, *word]))
            following |= {(*word, int(x)): chance * float(p) for x, p in zip(law.ids, law.probs, strict=True)}
        words = following
    seen: Counter[tuple[int, ...]] = Counter()
    for seed in range(1500):
        request = model.request(prompt, chain=target, draft=draft, rule=rule, seed=seed, max_tokens=3, ignore_eos=True)
        seen[tuple(event.token for event in model.events(request)[0])] += 1
    assert set(seen) <= set(words)
    assert g_test([seen[word] for word in words], list(words.values()))


def test_lossy_replies_say_so() -> None:
    model = Model(Toy())
    draft = ModelDraft(Toy(), Chain.parse("temperature(2)"))
    stats = model.generate(PROMPT, seed=3, max_tokens=60, draft=draft, rule=lenient(0.5, budget=2.0)).stats
    assert stats.lossy
    assert 0 < stats.cost <= 2.0
    exact = model.generate(PROMPT, seed=3, max_tokens=60, draft=draft).stats
    assert (exact.lossy, exact.cost) == (False, 0.0)


def test_acceptance_is_conditional_on_being_reached() -> None:
    stats = Model(Toy()).generate(PROMPT, seed=3, temperature=0.8, max_tokens=100, draft="suffix").stats
    assert stats.reached[1:] == stats.passed[: len(stats.reached) - 1] or sum(stats.reached[1:]) <= sum(stats.passed)
    assert stats.accepted == sum(stats.passed)
    assert all(0 <= rate <= 1 for rate in stats.acceptance)


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda m: m.generate(PROMPT, draft="medusa"), InvalidValue, "draft must be one of .*, got .medusa."),
        (lambda m: m.generate(PROMPT, draft=3), InvalidType, "draft must be a name or a draft source"),
        (lambda m: m.generate(PROMPT, draft="suffix", rule="tree"), InvalidValue, "rule must be one of"),
        (lambda m: Ngram(longest=1, shortest=2), InvalidValue, "longest must be an integer >= shortest"),
        (lambda m: Suffix(least=0), InvalidValue, "least must be an integer >= 1"),
        (lambda m: ModelDraft(Toy(), length=-1), InvalidValue, "length must be an integer >= 0"),
        (lambda m: ModelDraft(Toy(), "top_k(3)"), InvalidType, "chain must be a nalar.Chain"),
    ],
)
def test_what_is_refused(call: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        call(Model(Toy()))


def test_sources_are_sources_and_drafts_are_drafts() -> None:
    for source in (Ngram(), Suffix(), ModelDraft(Toy()), Babbler()):
        assert isinstance(source, DraftSource)
        assert isinstance(source.begin(Toy()), Draft)
    assert nalar.load("toy").generate("a", draft="none", max_tokens=1, seed=1).stats.drafted == 0


def test_a_draft_is_closed_when_the_reply_finds_no_sequence() -> None:
    """The draft begins before the reply has its sequence; when there is none, it must still be closed."""
    engine, draft = Toy(sequences=1), Babbler()
    engine.open()
    with pytest.raises(EngineFull):
        Model(engine).generate(PROMPT, seed=1, max_tokens=4, draft=draft)
    assert draft.closed
