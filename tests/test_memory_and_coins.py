"""Stages with a memory and stages with a coin work everywhere a built-in does: windows, rollbacks, forks, snapshots."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from example_stages import EveryNth, MaybeDropTop, Mirostat
from nalar import Chain, History, Key, Sampler, sample, sample_batch
from nalar.errors import InvalidValue, KeyRequired, MemoryRequired
from nalar.stages import Temperature, TopK

ROW = np.log([0.5, 0.3, 0.2])
ROWS = [np.random.default_rng(n).normal(size=6) * 2 for n in range(12)]
WITH_MEMORY = Chain([EveryNth(3, 4), TopK(5), Mirostat(1.0, 0.5), Temperature(0.9)])
WITH_ALL = Chain([*WITH_MEMORY, MaybeDropTop(0.5)])
CHAINS = [WITH_MEMORY, WITH_ALL, Chain([MaybeDropTop(0.5), Mirostat(1.5), MaybeDropTop(0.3)]), Chain([EveryNth(2, 1)])]


def states(sampler: Sampler) -> Any:
    return sampler.history.latest_states()[0]


def laws(sampler: Sampler, rows: Any, draft: Any = ()) -> list[tuple[list[int], list[float]]]:
    return [(law.ids.tolist(), law.probs.tolist()) for law in sampler.distributions(rows, draft).laws]


def drawn(sampler: Sampler, rows: Any) -> list[int]:
    return [sampler.sample(row).token for row in rows]


# --- memory --------------------------------------------------------------------------------------------------------------


def test_mirostat_moves_mu_as_llama_cpp_does() -> None:
    """p = (.5, .3, .2), μ = 2, τ = 1, η = .1, the first token sampled: {A, B} stay, surprise −log₂ .625, μ becomes 2.032."""
    sampler = Sampler(Chain([Mirostat(1.0)]), seed=1)
    window = sampler.distributions([ROW])
    assert window[0].probs == pytest.approx([0.625, 0.375])
    sampler.commit([0], window)
    assert states(sampler).values[0] == pytest.approx(2.032, abs=5e-4)


def test_a_counter_forces_every_nth_token() -> None:
    assert drawn(Sampler(Chain([EveryNth(3, 5)]), seed=2), ROWS)[2::3] == [5] * 4


def test_initial_sees_the_prompt_without_the_output_and_its_place() -> None:
    seen: list[Any] = []

    class Noting(EveryNth):
        def initial(self, context: Any) -> int:
            seen.append((context.history.tokens.tolist(), context.vocabulary, context.index))
            return 0

    Chain([TopK(2), Noting(9, 0)]).distribution(ROW, History(prompt=[1, 2], output=[0]))
    assert seen == [([1, 2], 3, 1)]


@pytest.mark.parametrize("chain", CHAINS)
def test_a_window_gives_the_laws_of_one_token_at_a_time(chain: Chain) -> None:
    alone, sampler = Sampler(chain, seed=5, prompt=[1]), Sampler(chain, seed=5, prompt=[1])
    one_by_one, draft = [], []
    for row in ROWS[:6]:
        one_by_one += laws(alone, [row])
        draft.append(alone.sample(row).token)
    assert laws(sampler, ROWS[:6], draft[:5]) == one_by_one
    window = sampler.distributions(ROWS[:6], draft[:5])
    sampler.commit(draft, window)
    assert list(sampler.history.log()) == list(alone.history.log())
    assert drawn(sampler, ROWS[6:]) == drawn(alone, ROWS[6:])


@pytest.mark.parametrize("chain", CHAINS)
def test_a_window_commits_nothing_and_a_part_of_it_can_be_committed(chain: Chain) -> None:
    sampler, twin = Sampler(chain, seed=6), Sampler(chain, seed=6)
    draft = drawn(Sampler(chain, seed=6), ROWS[:3])
    window = sampler.distributions(ROWS[:4], draft)
    assert list(sampler.history.log()) == []
    first = draft[0]
    other = int(window[1].ids[-1])
    sampler.commit([first, other], window)
    twin.commit([first], twin.distributions(ROWS[:1]))
    twin.commit([other], twin.distributions(ROWS[1:2]))
    assert list(sampler.history.log()) == list(twin.history.log())


@pytest.mark.parametrize("chain", CHAINS)
@given(kept=st.integers(0, 4), dropped=st.integers(1, 5))
def test_commit_then_rollback_is_as_if_never_committed(chain: Chain, kept: int, dropped: int) -> None:
    sampler, twin = Sampler(chain, seed=3), Sampler(chain, seed=3)
    drawn(twin, ROWS[:kept])
    drawn(sampler, ROWS[: kept + dropped])
    sampler.rollback(dropped)
    assert list(sampler.history.log()) == list(twin.history.log())
    assert laws(sampler, [ROWS[kept]]) == laws(twin, [ROWS[kept]])
    assert drawn(sampler, ROWS[kept:9]) == drawn(twin, ROWS[kept:9])


@pytest.mark.parametrize("chain", CHAINS)
def test_a_fork_shares_the_past_and_not_the_future(chain: Chain) -> None:
    parent = Sampler(chain, seed=4)
    drawn(parent, ROWS[:4])
    past = list(parent.history.log())
    child = parent.fork(1)
    assert list(child.history.log()) == past
    drawn(child, ROWS[4:])
    assert list(parent.history.log()) == past
    twin = Sampler(chain, seed=4)
    drawn(twin, ROWS[:4])
    assert drawn(parent, ROWS[4:]) == drawn(twin, ROWS[4:])


@pytest.mark.parametrize("chain", CHAINS)
def test_a_snapshot_goes_on_elsewhere_as_if_nothing_had_happened(chain: Chain) -> None:
    sampler = Sampler(chain, seed=8, sequence=2, prompt=[1, 1])
    drawn(sampler, ROWS[:4])
    sampler.rollback(1)
    sampler.redraw()
    moved = Sampler.restore(pickle.loads(pickle.dumps(sampler.snapshot())))
    assert (moved.key, list(moved.history.log())) == (sampler.key, list(sampler.history.log()))
    assert drawn(moved, ROWS[3:]) == drawn(sampler, ROWS[3:])
    assert states(moved) == states(sampler)


def test_output_given_as_ids_alone_is_enough_for_a_counter_only() -> None:
    output = [0, 1, 2, 0]
    counter = Sampler(Chain([EveryNth(5, 1)]), seed=1, prompt=[7, 7], output=output)
    assert counter.sample(ROW).token == 1
    assert Chain([EveryNth(5, 1)]).distribution(ROW, History(output=output)).ids.tolist() == [1]
    mirostat = Sampler(Chain([Mirostat(1.0)]), seed=1, output=output)
    law = mirostat.chain.distribution
    for ask in (lambda: mirostat.sample(ROW), lambda: mirostat.distributions([ROW]), lambda: law(ROW, mirostat.history)):
        with pytest.raises(MemoryRequired, match="mirostat must have seen"):
            ask()
    assert mirostat.history.output.tolist() == output
    assert Sampler(Chain([Mirostat(1.0)]), seed=1, prompt=output).sample(ROW).token in (0, 1)


def test_ids_committed_without_their_window_can_be_rolled_back() -> None:
    sampler = Sampler(Chain([Mirostat(1.0)]), seed=1)
    sampler.sample(ROW)
    known = states(sampler)
    sampler.commit([2])
    with pytest.raises(MemoryRequired):
        sampler.sample(ROW)
    sampler.rollback(1)
    assert states(sampler) == known
    sampler.sample(ROW)


def test_an_error_while_observing_commits_nothing() -> None:
    class Failing(EveryNth):
        def observe(self, state: int, token: int, candidates: Any) -> int:
            raise ZeroDivisionError

    sampler = Sampler(Chain([Failing(9, 0)]), seed=1)
    with pytest.raises(ZeroDivisionError):
        sampler.sample(ROW)
    with pytest.raises(ZeroDivisionError):
        sampler.distributions([ROW, ROW], [0])
    assert len(sampler.history) == 0


def test_a_window_refuses_tokens_its_laws_cannot_draw() -> None:
    sampler = Sampler(Chain([Mirostat(1.0)]), seed=1)
    window = sampler.distributions([ROW, ROW], [2])  # token 2 is cut
    assert window[0].prob(2) == 0
    for tokens in ([2], [2, 0], [3], [99]):
        with pytest.raises(InvalidValue):
            sampler.commit(tokens, window)
    assert len(sampler.history) == 0


# --- coins ---------------------------------------------------------------------------------------------------------------


def dropped(chain: Chain, key: Key, history: History | None = None) -> bool:
    return 0 not in chain.distribution(ROW, history, key).ids


def test_a_coin_is_the_key_s_uniform_for_the_stage_s_place() -> None:
    chain = Chain([TopK(3), MaybeDropTop(0.5)])
    for position in range(50):
        key = Key(9, position=position)
        assert dropped(chain, key) == (key.coin(1) < 0.5)


def test_a_draft_token_has_the_coin_of_its_own_position() -> None:
    """Else draft and target, or a token drafted in another step, would go through different laws."""
    chain = Chain([MaybeDropTop(0.5)])
    for start in range(20):
        for index in range(5):
            assert dropped(chain, Key(9, 2, start).draft(index)) == dropped(chain, Key(9, 2, start + index))


def test_two_coins_in_a_chain_differ() -> None:
    chain = Chain([MaybeDropTop(0.5), MaybeDropTop(0.5)])
    sizes = [chain.distribution(ROW, key=Key(3, position=n)).ids.size for n in range(200)]
    assert {size: sizes.count(size) > 20 for size in (1, 2, 3)} == {1: True, 2: True, 3: True}  # one coin would give 1 and 3 only


def test_a_coin_depends_on_position_sequence_and_attempt_and_not_on_batch_or_draw() -> None:
    chain = Chain([MaybeDropTop(0.5)])
    keys = [Key(4, sequence=s, position=p, attempt=a) for s in range(2) for p in range(20) for a in range(2)]
    alone = [dropped(chain, key) for key in keys]
    for threads, draw in ((1, "inverse"), (2, "race")):
        batch = sample_batch([ROW] * len(keys), chain, keys, threads=threads, draw=draw, keep_law=True)  # type: ignore[arg-type]
        assert [0 not in one.law.ids for one in batch.samples] == alone  # type: ignore[union-attr]
    by_word = [[flip for flip, key in zip(alone, keys, strict=True) if getattr(key, word) == 0] for word in ("sequence", "attempt")]
    others = [[flip for flip, key in zip(alone, keys, strict=True) if getattr(key, word) == 1] for word in ("sequence", "attempt")]
    assert all(one != other for one, other in zip(by_word, others, strict=True))
    assert len(set(alone[::2])) == 2


def test_without_a_position_the_coin_is_that_of_the_output_s_length() -> None:
    chain = Chain([MaybeDropTop(0.5)])
    for length in range(30):
        history = History(prompt=[1] * 7, output=[0] * length)
        assert dropped(chain, Key(4), history) == dropped(chain, Key(4, position=length))
        assert sample(ROW, chain, Key(4), history).key == Key(4, position=length)


def test_a_coin_needs_a_key() -> None:
    chain = Chain([MaybeDropTop(0.5)])
    with pytest.raises(KeyRequired, match="key must be given to a chain in which a stage flips a coin, got None"):
        chain.distribution(ROW)
    with pytest.raises(KeyRequired):
        chain.candidates(ROW)
    assert Chain([TopK(2)]).distribution(ROW).ids.size == 2


def test_a_redraw_flips_another_coin_and_a_rollback_the_same() -> None:
    sampler = Sampler(Chain([MaybeDropTop(0.5)]), seed=4)
    first, kept, changed = laws(sampler, [ROW]), [], []
    for _ in range(30):
        sampler.sample(ROW)
        sampler.rollback(1)
        kept.append(laws(sampler, [ROW]) == first)
        sampler.redraw()
        now = laws(sampler, [ROW])
        changed.append(now != first)
        first = now
    assert all(kept)
    assert 5 < sum(changed) < 25


def test_a_coin_along_a_window_is_that_of_each_position() -> None:
    sampler = Sampler(Chain([MaybeDropTop(0.5)]), seed=4, output=[1])
    flips = [0 not in law.ids for law in sampler.distributions([ROW] * 20, [1] * 19).laws]
    assert flips == [Key(4, position=1 + n).coin(0) < 0.5 for n in range(20)]


def test_the_law_given_the_coins_mixes_to_the_intended_one() -> None:
    chain = Chain([MaybeDropTop(0.25)])
    size = 4000
    mean = sum(chain.distribution(ROW, key=Key(1, position=n)).dense(3) for n in range(size)) / size
    intended = 0.75 * np.array([0.5, 0.3, 0.2]) + 0.25 * np.array([0, 0.6, 0.4])
    assert np.abs(mean - intended).max() < 6 * 0.5 / np.sqrt(size)  # six standard errors: a false alarm in 10⁸
