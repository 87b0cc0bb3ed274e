"""Several replies to one prompt, prompt log-probabilities, and the record of what each stage did."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nalar
from nalar.engines.base import Rows, Sequence, Work
from nalar.engines.cells import Cells
from nalar.engines.toy import Toy
from nalar.errors import EngineFull, InvalidValue
from nalar.history import History
from nalar.model import Model
from nalar.trace import trace_row

PROMPT = "The lighthouse "


def one_by_one(model: Model, n: int, **fields: object) -> list[tuple[int, ...]]:
    request = model.request(PROMPT, **fields)  # type: ignore[arg-type]
    replies = []
    for sequence in range(n):
        events, _ = model.events(replace(request, sequence=sequence))
        listed = list(events)
        replies.append(tuple(event.token for event in listed)[: listed[-1].kept])
    return replies


@given(n=st.integers(1, 11), seed=st.integers(0, 2**64 - 1), sequences=st.integers(1, 5))
def test_generate_n_equals_n_runs_with_their_sequence_numbers(n: int, seed: int, sequences: int) -> None:
    with nalar.load("toy", sequences=sequences) as model:
        outs = model.generate_n(PROMPT, n=n, seed=seed, max_tokens=25)
        assert [out.tokens for out in outs] == one_by_one(model, n, seed=seed, max_tokens=25)
        assert outs[0].tokens == model.generate(PROMPT, seed=seed, max_tokens=25).tokens


def test_the_prompt_is_evaluated_once_and_everything_is_freed() -> None:
    with nalar.load("toy") as model:
        fed = []
        step = model.engine.step

        def counting(work):  # type: ignore[no-untyped-def]
            fed.append(sum(len(item.tokens) for item in work))
            return step(work)

        model.engine.step = counting  # type: ignore[method-assign]
        model.generate_n(PROMPT, n=6, seed=1, max_tokens=10, ignore_eos=True)
        assert fed == [len(PROMPT)] + [6] * 9
        assert len([model.engine.open() for _ in range(8)]) == 8


def test_n_may_come_from_the_parameters() -> None:
    with nalar.load("toy") as model:
        assert len(model.generate_n(PROMPT, nalar.SamplingParams(n=3, max_tokens=2))) == 3


def test_a_failing_stage_in_generate_n_frees_everything() -> None:
    with nalar.load("toy") as model:
        with pytest.raises(nalar.NalarError):
            model.generate_n(PROMPT, n=3, banned_tokens=[999], max_tokens=4)
        assert len([model.engine.open() for _ in range(8)]) == 8


class SmallCache(Toy):
    """A toy whose sequences share ``cells``, as llama.cpp's do."""

    def __init__(self, cells: int, **limits: int) -> None:
        super().__init__(**limits)
        self.cells, self.refused = Cells(cells), 0

    def fork(self, sequence: Sequence) -> Sequence:
        twin = super().fork(sequence)
        self.cells.share(sequence.slot, twin.slot)
        return twin

    def truncate(self, sequence: Sequence, length: int) -> None:
        super().truncate(sequence, length)
        self.cells.keep(sequence.slot, length)

    def close(self, sequence: Sequence) -> None:
        if not sequence.closed:
            self.cells.keep(sequence.slot, 0)
        super().close(sequence)

    def step(self, work: list[Work]) -> list[Rows]:
        if not self.cells.fit(sum(len(item.tokens) for item in work)):
            self.refused += 1
            raise EngineFull("the cache is full")
        rows = super().step(work)
        for item in work:
            self.cells.take(item.sequence.slot, len(item.tokens))
        return rows


LONG = {"seed": 3, "max_tokens": 25, "ignore_eos": True}


def test_a_full_cache_makes_replies_wait_and_changes_none() -> None:
    engine = SmallCache(len(PROMPT) + 40)  # one reply needs 24 cells, all six 144
    with Model(engine) as model, nalar.load("toy") as roomy:
        outs = model.generate_n(PROMPT, n=6, **LONG)
        assert [out.tokens for out in outs] == one_by_one(roomy, 6, **LONG)
        assert all(out.stats.emitted == 25 for out in outs)
        assert engine.refused > 0
        assert engine.cells.used() == 0


def test_a_cache_too_small_for_one_reply_is_an_error_that_frees_everything() -> None:
    engine = SmallCache(len(PROMPT) + 10)
    with Model(engine) as model:
        with pytest.raises(EngineFull, match="the cache is full"):
            model.generate_n(PROMPT, n=3, **LONG)
        assert engine.cells.used() == 0
        assert len([engine.open() for _ in range(8)]) == 8


def test_more_replies_than_tokens_in_a_step() -> None:
    with Model(Toy(step_tokens=3)) as model, nalar.load("toy") as roomy:
        assert [out.tokens for out in model.generate_n(PROMPT, n=7, **LONG)] == one_by_one(roomy, 7, **LONG)


@pytest.mark.parametrize("others", [1, 2, 3])
def test_other_open_streams_leave_room_for_every_reply(others: int) -> None:
    with nalar.load("toy", sequences=4) as model, nalar.load("toy") as roomy:
        streams = [model.stream(f"{PROMPT}{i}", **LONG) for i in range(others)]
        begun = [next(stream) for stream in streams]
        assert [out.tokens for out in model.generate_n(PROMPT, n=3, **LONG)] == one_by_one(roomy, 3, **LONG)
        ended = [first + "".join(stream) for first, stream in zip(begun, streams, strict=True)]
        assert ended == [roomy.generate(f"{PROMPT}{i}", **LONG).text for i in range(others)]


@pytest.mark.parametrize("max_tokens", [1, 2, 9])
def test_every_reply_says_how_long_it_took(max_tokens: int) -> None:
    with nalar.load("toy") as model:
        for out in model.generate_n(PROMPT, n=3, seed=1, max_tokens=max_tokens):
            assert out.stats.seconds >= out.stats.prompt_seconds > 0


def test_n_stays_within_the_numbers_of_sequences() -> None:
    with nalar.load("toy") as model, pytest.raises(InvalidValue, match="n must be an integer in"):
        model.generate_n(PROMPT, n=2**32 + 1, max_tokens=1)


def log_softmax(row: np.ndarray) -> list[float]:
    values = [float(value) for value in row]
    greatest = max(values)
    total = greatest + math.log(math.fsum(math.exp(value - greatest) for value in values))
    return [value - total for value in values]


def test_prompt_logprobs_are_those_of_the_row_before_each_token() -> None:
    with nalar.load("toy") as model:
        out = model.generate(PROMPT * 9, echo=True, logprobs=3, seed=1, max_tokens=2)
        ids = list((PROMPT * 9).encode())
        told = out.prompt_logprobs
        assert told is not None
        assert [token.token for token in told] == ids
        assert told[0].logprob is None
        for place in (1, 2, 63, 64, 65, 100, len(ids) - 1):
            expected = log_softmax(model.logits(ids[:place]))
            assert told[place].logprob == pytest.approx(expected[ids[place]], rel=1e-12)
            order = sorted(range(len(expected)), key=lambda token: (-expected[token], token))
            assert [best.token for best in told[place].top] == order[:3]
            assert told[place].rank == order.index(ids[place]) + 1


def test_both_views_are_reported_and_named() -> None:
    with nalar.load("toy") as model:
        out = model.generate(PROMPT, logprobs=4, seed=1, max_tokens=6, temperature=0.5, top_k=2)
        assert out.raw_logprobs is not None
        assert out.top is not None
        assert out.raw_top is not None
        for place, token in enumerate(out.tokens):
            raw = log_softmax(model.logits(list(PROMPT.encode()) + list(out.tokens[:place])))
            assert out.raw_logprobs[place] == pytest.approx(raw[token], rel=1e-12)
            best = sorted(range(len(raw)), key=lambda other: (-raw[other], other))[:2]
            halves = [math.exp(raw[other] / 0.5) for other in best]
            assert out.logprobs[place] == pytest.approx(math.log(halves[best.index(token)] / sum(halves)), rel=1e-9)
            assert [entry.token for entry in out.top[place]] == best
            assert len(out.raw_top[place]) == 4


def test_a_trace_says_who_was_cut_by_which_stage() -> None:
    row = np.log([0.4, 0.3, 0.2, 0.1])
    trace = trace_row(row, nalar.Chain.parse("ban([1]) | top_k(2)"), History())
    ban, top_k = trace.stages
    assert (ban.before, ban.after, ban.cut) == (4, 3, (1,))
    assert ban.mass == pytest.approx(0.7)
    assert (top_k.before, top_k.after, top_k.cut) == (3, 2, (3,))
    assert top_k.mass == pytest.approx(0.6 / 0.7)
    assert top_k.entropy_after == pytest.approx(-(2 / 3) * math.log(2 / 3) - (1 / 3) * math.log(1 / 3))
    assert trace.cut_by() == {1: "ban([1])", 3: "top_k(2)"}
    assert trace.law.ids.tolist() == [0, 2]
