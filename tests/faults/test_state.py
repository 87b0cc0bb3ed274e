"""STATE: speculation that drops what the request asked for.  Each case is a report of facts/faults.md on another project.

One answer to all: every law of a step sees the drafted prefix, and only what is emitted is committed, up to the first end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import nalar
from faults.saying import Saying
from faults.scripted import END, PROMPT, scripted
from nalar import Chain, Proposal, Sampler
from nalar.candidates import Candidates
from nalar.completion import Stats
from nalar.engines.toy import Toy
from nalar.generate import Speculation
from nalar.model import Model
from nalar.speculative.verdict import Verdict
from nalar.stages import Context, Stage
from test_drafts import Babbler

TEXT = "The river ran to the sea. The rain fell on the "


def ids(model: Model, *pieces: bytes) -> list[int]:
    return [model.engine.vocabulary.id_of(piece) for piece in pieces]  # type: ignore[attr-defined]


def replies(script: list[Any], draft: list[bytes], **asked: Any) -> list[Any]:
    """The reply of ``script`` without a draft, and with ``draft`` proposed at the first step."""
    model = scripted(script)
    said = Saying([ids(model, *draft)])
    law = {} if "chain" in asked else {"temperature": 0}
    return [model.generate(PROMPT, draft=source, **law, **asked) for source in (None, said)]


def assert_same(replies: list[Any]) -> Any:
    plain, drafted = replies
    for name in ("text", "tokens", "logprobs", "finish_reason"):
        assert getattr(drafted, name) == getattr(plain, name), name
    assert drafted.stats.emitted == plain.stats.emitted
    return drafted


# --- the law of each position -----------------------------------------------------------------------------------------


def test_b141_penalties_and_allowed_ids_hold_at_every_position() -> None:
    """vLLM ignored them.  Allowed {1, 2} and a draft that proposes 3; a frequency penalty and a draft that repeats."""
    row = np.array([0.0, 1.0, 0.9, 9.0])
    for rule in (None, "token", "block"):
        sampler = Sampler(Chain.parse("allow([1, 2])"), seed=1)
        for _ in range(20):
            assert set(sampler.step([row] * 3, Proposal.point([3, 3]), rule).tokens) <= {1, 2}
    chain = Chain.parse("frequency(0.5) | temperature(0)")
    plain, drafted = Sampler(chain, seed=1), Sampler(chain, seed=1)
    tokens = drafted.step([row[:3]] * 4, Proposal.point([1, 1, 1])).tokens
    assert tokens == tuple(plain.sample(row[:3]).token for _ in tokens)
    assert tokens == (1, 2)


def test_b142_a_bias_holds_at_every_position() -> None:
    """SGLang with EAGLE: the ban of a token worked for the first token only."""
    model = Model(Toy())
    space = 32
    reply = model.generate(TEXT, seed=1, max_tokens=15, logit_bias={space: -100.0}, draft=Babbler())
    assert space not in reply.tokens
    assert reply.text == model.generate(TEXT, seed=1, max_tokens=15, logit_bias={space: -100.0}).text


@pytest.mark.parametrize("draft", ["ngram", "suffix", Babbler()], ids=["ngram", "suffix", "babbler"])
def test_b144_logprobs_with_a_draft_are_those_without(draft: Any) -> None:
    asked: dict[str, Any] = {"seed": 5, "max_tokens": 40, "temperature": 0.8, "logprobs": 3}
    plain, drafted = Model(Toy()).generate(TEXT, **asked), Model(Toy()).generate(TEXT, draft=draft, **asked)
    for name in ("logprobs", "raw_logprobs", "top", "raw_top"):
        assert getattr(drafted, name) == getattr(plain, name)
    assert all(value != 0.0 for value in drafted.logprobs)


def test_b145_the_prompts_logprobs_do_not_depend_on_the_draft() -> None:
    model = Model(Toy())
    plain, drafted = (model.generate(TEXT, seed=5, max_tokens=9, echo=True, draft=draft) for draft in (None, "suffix"))
    assert plain.prompt_logprobs == drafted.prompt_logprobs
    assert plain.prompt_logprobs is not None


# --- seeds and neighbours ---------------------------------------------------------------------------------------------


def test_b146_a_seed_decides_the_reply_whatever_runs_beside_it() -> None:
    model = Model(Toy())
    first = model.generate(TEXT, seed=7, max_tokens=30, draft="suffix").text
    model.generate("The cat", seed=8, max_tokens=30, draft="ngram")
    assert model.generate(TEXT, seed=7, max_tokens=30, draft="suffix").text == first


def test_b147_each_row_of_a_batch_emits_its_own_token() -> None:
    """vLLM: a row without a seed beside seeded ones; one-hot targets."""
    samplers = [Sampler(Chain([]), seed=seed) for seed in (5, None, 9)]
    hot = [np.where(np.arange(4) == token, 50.0, -np.inf) for token in (1, 2, 3)]
    verdicts = nalar.step_batch(samplers, [[row] * 2 for row in hot], [Proposal.point([token]) for token in (1, 1, 3)])
    assert [verdict.tokens for verdict in verdicts if isinstance(verdict, Verdict)] == [(1, 1), (2,), (3, 3)]


def test_b149_decisions_come_from_what_is_passed_in() -> None:
    """Workers with hidden random state accepted different numbers of tokens."""
    rows = np.random.default_rng(0).normal(0, 1, (4, 9))
    verdicts = []
    for _ in range(2):
        np.random.seed(int.from_bytes(np.random.bytes(4), "little"))
        verdicts.append(Sampler(Chain([]), seed=6).step(rows, Proposal.point([1, 2, 3]), "block"))
    assert verdicts[0] == verdicts[1]


def test_b160_several_greedy_replies_with_a_draft_are_equal() -> None:
    model = Model(Toy())
    texts = {reply.text for reply in model.generate_n(TEXT, n=3, seed=1, temperature=0, max_tokens=40, draft="suffix")}
    assert texts == {model.generate(TEXT, temperature=0, max_tokens=40).text}


# --- ends inside a step -----------------------------------------------------------------------------------------------


def test_b150_an_end_accepted_in_the_middle_ends_the_reply() -> None:
    """[4, end, 8, 9] accepted at once: 8 and 9 are in no id, text, logprob or count."""
    drafted = assert_same(replies([b"four", END, b"eight", b"nine"], [b"four", END, b"eight", b"nine"]))
    assert (drafted.text, drafted.finish_reason, drafted.stats.emitted) == ("four", "stop", 2)
    assert drafted.stats.accepted == 2


@pytest.mark.parametrize(("most", "reason", "count"), [(5, "stop", 2), (3, "stop", 2), (2, "length", 2)])
def test_b151_stop_before_length_in_token_order(most: int, reason: str, count: int) -> None:
    """SGLang looked at the length first, and leaked what came after the stop string."""
    pieces = [b"ten", b"eleven", b"STOP", b"twenty", b"more", b"and more"]
    drafted = assert_same(replies(pieces, pieces, stop="STOP", max_tokens=most))
    assert (drafted.finish_reason, len(drafted.tokens)) == (reason, count)
    assert drafted.stats.emitted == min(most, 3)


def test_b152_with_ignore_eos_an_end_is_a_token_like_any_other() -> None:
    pieces = [b"a", END, b"b", b"c"]
    assert assert_same(replies(pieces, pieces)).text == "a"
    assert assert_same(replies(pieces, pieces, ignore_eos=True, max_tokens=4)).text == "abc"


def test_b154_an_end_that_the_draft_alone_believes_in_ends_nothing() -> None:
    drafted = assert_same(replies([b"a", b"b", b"c", END], [b"a", END, b"c"]))
    assert drafted.text == "abc"


def test_b155_text_ids_and_logprobs_end_at_the_same_token() -> None:
    """Accepted: four times " ha"; stop: " ha ha ha"."""
    pieces = [b"so", b" ha", b" ha", b" ha", b" ha"]
    drafted = assert_same(replies(pieces, pieces, stop=" ha ha ha"))
    assert drafted.text == "so"
    assert len(drafted.tokens) == len(drafted.logprobs) == 1


def test_after_an_end_inside_a_step_the_engine_holds_no_more_than_the_reply() -> None:
    model = scripted([b"four", END, b"eight", b"nine"])
    said = Saying([ids(model, b"four", END, b"eight", b"nine")])
    for draft in (said, None):
        assert model.generate(PROMPT, temperature=0, draft=draft).text == "four"


def test_after_an_end_inside_a_step_the_history_and_the_cache_hold_the_reply_alone() -> None:
    model = scripted([b"four", END, b"eight", b"nine"])
    four, end = ids(model, b"four", END)
    request = model.request(PROMPT, temperature=0, draft=Saying([[four, end, *ids(model, b"eight", b"nine")]]))
    speculation, sequence = Speculation(request, model._host, Stats()), model._host.prefixes.open()
    assert [event.token for event in speculation.step(sequence, PROMPT)] == [four, end]
    assert speculation._sampler.history.output.tolist() == [four, end]
    assert sequence.tokens == [*PROMPT, four]  # the end itself is fed to no one


# --- grammars ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Counting(Stage):
    """A grammar: 0, 1, 2, then the end, 3.  It refuses to be asked anything else, and counts the questions."""

    asked: Any = None

    def apply(self, candidates: Candidates, context: Context) -> Candidates:
        said = context.history.output.tolist()
        assert said == list(range(len(said))), f"asked after the illegal {said}"
        assert 3 not in said, "asked after the grammar had ended"
        self.asked.append(len(said))
        return candidates.masked(candidates.ids != len(said))

    def __hash__(self) -> int:
        return 0


@pytest.mark.parametrize("rule", [None, "token", "block"])
def test_b158_an_illegal_draft_token_is_rejected_once_and_fed_to_no_matcher(rule: Any) -> None:
    asked: list[int] = []
    sampler = Sampler(Chain([Counting(asked)]), seed=1)
    verdict = sampler.step(np.zeros((5, 6)), Proposal.point([0, 5, 1, 2]), rule)
    assert (verdict.accepted, verdict.tokens) == (1, (0, 1))
    assert asked == [0, 1]
    assert sampler.history.output.tolist() == [0, 1]


@pytest.mark.parametrize("rule", [None, "token", "block"])
def test_b156_what_follows_the_end_is_verified_up_to_the_end(rule: Any) -> None:
    """The matcher was asked for masks after its end.  In part: a stage that ends should allow only the end id from there on."""

    @dataclass(frozen=True)
    class Ended(Counting):
        def apply(self, candidates: Candidates, context: Context) -> Candidates:
            if 3 in context.history.output.tolist():
                return candidates.masked(candidates.ids != 3)
            return super().apply(candidates, context)

    asked: list[int] = []
    sampler = Sampler(Chain([Ended(asked)]), seed=1, output=[0, 1, 2])
    verdict = sampler.step(np.zeros((3, 6)), Proposal.point([3, 0]), rule)
    assert verdict.tokens == (3, 3)
    assert asked == [3]


def test_stats_count_what_belongs_to_the_reply() -> None:
    stats = Stats()
    verdict = Sampler(Chain.parse("temperature(0)"), seed=1).step([[0.0, 1.0]] * 4, Proposal.point([1, 1, 1]))
    stats.count(verdict, 2)
    assert (stats.drafted, stats.accepted, stats.emitted, stats.reached, stats.passed) == (3, 2, 2, [1, 1], [1, 1])
