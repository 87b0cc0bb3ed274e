"""One sequence with memory: keys and history in step, windows that know their place, forks, snapshots, errors that travel."""

from __future__ import annotations

import copy
import inspect
import math
import pickle
from typing import Any

import numpy as np
import pytest

from nalar import Chain, History, Key, NalarError, Sampler, errors, sample
from nalar.errors import BrokenRow, InvalidType, InvalidValue, ParseError
from nalar.stages import Ban, Frequency, MinTokens, Presence, Temperature, TopK

FLAT = np.zeros(40)
ROWS = [np.random.default_rng(n).normal(size=12) for n in range(10)]
CHAIN = Chain([Presence(0.5), Frequency(0.2), Temperature(0.9), TopK(8)])


def drawn(sampler: Sampler, rows: Any) -> list[int]:
    return [sampler.sample(row).token for row in rows]


def test_it_draws_what_sample_draws_with_the_key_of_each_position() -> None:
    sampler, history = Sampler(CHAIN, seed=7, sequence=3, prompt=[1, 5]), History([1, 5])
    for row in ROWS:
        assert sampler.key == Key(7, 3, position=history.position)
        expected = sample(row, CHAIN, Key(7, 3), history, logprobs=2)
        assert sampler.sample(row, logprobs=2) == expected
        history.append(expected.token)
    assert sampler.history.output.tolist() == history.output.tolist()


def test_a_key_without_a_position_has_that_of_each_draw() -> None:
    sampler = Sampler(CHAIN, seed=1)
    assert [sampler.sample(row, key=Key(7)).token for row in ROWS] == drawn(Sampler(CHAIN, seed=7), ROWS)
    assert len({Sampler(Chain(), seed=1, output=[0] * n).sample(FLAT, key=Key(7)).token for n in range(20)}) > 10
    with pytest.raises(InvalidType, match=r"key must be a nalar\.Key, got 7"):
        sampler.sample(FLAT, key=7)  # type: ignore[arg-type]


@pytest.mark.parametrize("draw", ["inverse", "race"])
def test_the_way_to_draw_is_kept_by_forks_and_snapshots(draw: Any) -> None:
    sampler = Sampler(Chain(), seed=7, draw=draw)
    for one in (sampler, Sampler.restore(sampler.snapshot())):
        assert one.sample(FLAT).token == sample(FLAT, Chain(), Key(7, position=0), draw=draw).token
    assert sampler.fork(1).sample(FLAT).token == sample(FLAT, Chain(), Key(7, 1, position=1), draw=draw).token


def test_output_given_at_the_start_counts_for_the_position_and_the_prompt_does_not() -> None:
    sampler = Sampler(Chain([MinTokens(2, [0])]), seed=7, prompt=[9] * 5, output=[3])
    assert sampler.key.position == 1
    assert sampler.distributions([[0.0, 0.0]])[0].ids.tolist() == [1]
    assert Sampler(Chain([Presence(9)]), seed=1, prompt=[0]).distributions([[0.0, 0.0]])[0].prob(0) == 0.5  # output only


def test_preemption_by_ids_goes_on_with_the_same_tokens() -> None:
    whole = Sampler(CHAIN, seed=11, prompt=[2])
    tokens = drawn(whole, ROWS)
    again = Sampler(CHAIN, seed=11, prompt=[2], output=tokens[:4])
    assert drawn(again, ROWS[4:]) == tokens[4:]


def test_step_draws_commits_and_accepts_nothing_without_a_draft() -> None:
    one, two = Sampler(CHAIN, seed=7), Sampler(CHAIN, seed=7)
    for row in ROWS[:4]:
        verdict, expected = one.step(row[None], logprobs=1), two.sample(row, logprobs=1)
        assert (verdict.accepted, verdict.token, verdict.tokens, verdict.samples) == (0, expected.token, (expected.token,), (expected,))
    assert one.history.output.tolist() == two.history.output.tolist()
    for rows in (np.zeros((2, 3)), [], np.zeros(3)):
        with pytest.raises(InvalidValue, match="rows must"):
            one.step(rows)


def test_distributions_see_the_draft_before_them_and_commit_nothing() -> None:
    sampler = Sampler(CHAIN, seed=7, prompt=[1], output=[2])
    draft = [3, 3, 4]
    window = sampler.distributions(ROWS[:4], draft)
    assert (len(window), window.draft, len(window.laws)) == (4, (3, 3, 4), 4)
    for n in range(4):
        law = CHAIN.distribution(ROWS[n], History([1], [2, *draft[:n]]))
        assert (window[n].ids.tolist(), window[n].probs.tolist()) == (law.ids.tolist(), law.probs.tolist())
    assert (sampler.history.output.tolist(), sampler.history.counts.ids.tolist()) == ([2], [1, 2])


@pytest.mark.parametrize(
    ("rows", "draft", "words"),
    [
        (np.zeros((2, 3)), [], "rows must hold 1 rows?, one more than the 0 draft tokens, got 2"),
        (np.zeros((1, 3)), [0], "rows must hold 2 rows"),
        (np.zeros((0, 3)), [], "rows must hold"), (np.zeros((2, 3)), [3], r"a draft token must be an integer in \[0, 2\], got 3"),
        (np.zeros((2, 3)), [-1], "a draft token must"), (np.zeros((2, 3)), [0.0], "a draft token must"),
        (np.zeros((2, 3)), [True], "a draft token must"),
    ],
)
def test_a_wrong_window_is_told(rows: Any, draft: Any, words: str) -> None:
    sampler = Sampler(Chain(), seed=1)
    with pytest.raises(NalarError, match=words):
        sampler.distributions(rows, draft)
    assert len(sampler.history) == 0


def test_a_broken_row_in_a_window_or_a_draw_commits_nothing() -> None:
    sampler = Sampler(CHAIN, seed=1, output=[5])
    for ask in (
        lambda: sampler.distributions([ROWS[0], np.full(12, np.nan)], [3]), lambda: sampler.sample(np.full(12, np.nan)),
        lambda: sampler.sample(ROWS[0], logprobs=99), lambda: sampler.step(np.full((1, 12), -np.inf)), lambda: sampler.commit([1, -1]),
        lambda: sampler.commit([1, 2.0]), lambda: sampler.rollback(2),
    ):
        with pytest.raises(NalarError):
            ask()
        assert sampler.history.output.tolist() == [5]
        assert sampler.history.counts.ids.tolist() == [5]


def test_commit_takes_accepted_draft_tokens_and_one_more() -> None:
    for tokens in ([3, 3, 7], [3, 5], [9]):
        sampler = Sampler(Chain(), seed=1)
        sampler.commit(tokens, sampler.distributions(ROWS[:3], [3, 3]))
        assert sampler.history.output.tolist() == tokens


@pytest.mark.parametrize("tokens", [[], [4, 1], [3, 4, 1], [3, 3, 1, 1], [3, 3, 99], [3, 3, -1], [3, 3, 2.0], [99]])
def test_tokens_that_are_not_of_the_window_are_refused(tokens: Any) -> None:
    sampler = Sampler(Chain(), seed=1)
    window = sampler.distributions(ROWS[:3], [3, 3])
    with pytest.raises(NalarError, match="must"):
        sampler.commit(tokens, window)
    assert len(sampler.history) == 0


def test_a_token_that_the_law_cannot_draw_is_refused() -> None:
    sampler = Sampler(Chain([Ban([3])]), seed=1)
    for tokens, draft in (([3], []), ([3, 1], [3]), ([1, 3], [1])):
        with pytest.raises(InvalidValue, match="got 3"):
            sampler.commit(tokens, sampler.distributions(ROWS[: len(draft) + 1], draft))
    sampler.commit([3])  # without a window it is the caller's own
    assert sampler.history.output.tolist() == [3]


CHANGES = [
    lambda s: s.sample(FLAT), lambda s: s.commit([1]), lambda s: s.rollback(1), lambda s: (s.sample(FLAT), s.rollback(1)),
    lambda s: s.redraw(),
]


@pytest.mark.parametrize("change", CHANGES)
def test_a_stale_window_is_refused(change: Any) -> None:
    sampler = Sampler(Chain(), seed=1, output=[5])
    window = sampler.distributions([FLAT])
    change(sampler)
    before = sampler.history.output.tolist()
    with pytest.raises(InvalidValue, match="window must belong to this point of the history"):
        sampler.commit([1], window)
    assert sampler.history.output.tolist() == before


def test_a_window_of_another_sampler_is_refused() -> None:
    one, two = Sampler(CHAIN, seed=1, prompt=[1]), Sampler(CHAIN, seed=1, prompt=[2])
    with pytest.raises(InvalidValue, match="window must belong"):
        two.commit([1], one.distributions([FLAT]))
    fork = one.fork(1)
    one.commit([1])
    fork.commit([2])
    with pytest.raises(InvalidValue, match="window must belong"):
        fork.commit([1], one.distributions([FLAT]))


def test_a_window_stays_good_while_others_are_made() -> None:
    sampler = Sampler(CHAIN, seed=1)
    first = sampler.distributions([FLAT, FLAT], [3])
    sampler.distributions([FLAT, FLAT], [4])
    sampler.commit([3, 5], first)
    assert sampler.history.output.tolist() == [3, 5]


def test_a_rollback_draws_the_same_again_and_a_redraw_does_not() -> None:
    sampler = Sampler(Chain(), seed=7)
    first = drawn(sampler, [FLAT] * 6)
    sampler.rollback(6)
    assert drawn(sampler, [FLAT] * 6) == first
    sampler.rollback(6)
    sampler.redraw()
    assert (sampler.key, sampler.seed) == (Key(7, position=0, attempt=1), 7)
    second = drawn(sampler, [FLAT] * 6)
    assert second != first
    assert second == [sample(FLAT, Chain(), Key(7, position=n, attempt=1)).token for n in range(6)]
    sampler.rollback(6)
    assert sampler.key.attempt == 1  # never decreases
    assert (sampler.fork(1).key.attempt, Sampler.restore(sampler.snapshot()).key.attempt) == (1, 1)


def test_the_rewind_of_traps_md_is_unbiased() -> None:
    """p = (.5, .3, .2); token 0, once drawn, is found banned: the law must become (.6, .4), not (.8, .2) by the same uniform."""
    row, size, hits, total = np.log([0.5, 0.3, 0.2]), 3000, 0, 0
    for seed in range(size):
        sampler = Sampler(Chain(), seed=seed)
        if sampler.sample(row).token == 0:
            sampler.rollback(1)
            sampler.redraw()
            sampler.chain = Chain([Ban([0])])
            total, hits = total + 1, hits + (sampler.sample(row).token == 1)
    assert abs(hits / total - 0.6) < 6 * math.sqrt(0.24 / total)


def test_forks_draw_apart_with_the_same_seed() -> None:
    parent = Sampler(Chain(), seed=7, prompt=[1])
    drawn(parent, [FLAT] * 3)
    forks = [parent.fork(n) for n in (1, 2)]
    assert {(fork.seed, fork.key.sequence, fork.key.position) for fork in forks} == {(7, 1, 3), (7, 2, 3)}
    futures = [tuple(drawn(one, [FLAT] * 8)) for one in (parent, *forks)]
    assert len(set(futures)) == 3
    assert futures[1] == tuple(sample(FLAT, Chain(), Key(7, 1, position=n)).token for n in range(3, 11))
    with pytest.raises(InvalidValue, match="sequence must differ from this sampler's"):
        parent.fork(0)
    for bad in (-1, 2**32, True, 1.0):
        with pytest.raises(NalarError, match="sequence must"):
            parent.fork(bad)  # type: ignore[arg-type]


def test_a_snapshot_is_a_value_that_pickles() -> None:
    sampler = Sampler(CHAIN, seed=7, sequence=2, prompt=[1], draw="race", vocabulary=11)
    drawn(sampler, ROWS[:3])
    snapshot = sampler.snapshot()
    assert pickle.loads(pickle.dumps(snapshot)) == snapshot == copy.deepcopy(snapshot)
    moved = Sampler.restore(pickle.loads(pickle.dumps(snapshot)))
    later = drawn(sampler, ROWS[3:])
    assert drawn(moved, ROWS[3:]) == later
    assert drawn(Sampler.restore(snapshot), ROWS[3:]) == later  # taken once, restored twice
    assert moved.history.prompt.tolist() == [1]
    assert moved.vocabulary == 11


def test_a_seed_is_echoed_and_none_is_fresh_entropy() -> None:
    assert Sampler(Chain(), seed=0).seed == 0
    seeds = [Sampler(Chain()).seed for _ in range(20)]
    assert len(set(seeds)) == 20
    fresh = Sampler(Chain())
    assert drawn(Sampler(Chain(), seed=fresh.seed), [FLAT] * 5) == drawn(fresh, [FLAT] * 5)


def test_what_is_no_snapshot_or_window_is_refused_by_name() -> None:
    with pytest.raises(InvalidType, match=r"snapshot must be what sampler\.snapshot\(\) gave, got 3"):
        Sampler.restore(3)  # type: ignore[arg-type]
    with pytest.raises(InvalidType, match=r"window must be what sampler\.distributions.* gave, got 3"):
        Sampler(Chain(), seed=1).commit([1], 3)  # type: ignore[arg-type]


def test_padding_is_never_drawn() -> None:
    sampler = Sampler(Chain(), seed=1, vocabulary=2)
    padded = np.array([0.0, 0.0, 99.0, np.nan])
    assert set(drawn(sampler, [padded] * 20)) == {0, 1}
    assert sampler.distributions(padded[None])[0].ids.tolist() == [0, 1]
    with pytest.raises(InvalidValue, match=r"a draft token must be an integer in \[0, 1\], got 2"):
        sampler.distributions([padded, padded], [2])


@pytest.mark.parametrize(
    ("fields", "kind", "words"),
    [
        ({"chain": "top_k(4)"}, InvalidType, "chain must be a nalar.Chain"), ({"seed": -1}, InvalidValue, "seed must be an integer in"),
        ({"seed": 1.5}, InvalidType, "seed must"), ({"sequence": 2**32}, InvalidValue, "sequence must"),
        ({"draw": "x"}, InvalidValue, "draw must be one of"),
        ({"vocabulary": 0}, InvalidValue, "vocabulary must"), ({"prompt": "1"}, InvalidType, "prompt must"),
        ({"output": [0.5]}, InvalidType, "output must"),
    ],
)
def test_a_wrong_argument_is_told_by_name(fields: dict[str, Any], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        Sampler(**({"chain": Chain()} | fields))


SPECIAL = {
    ParseError: ParseError("a problem", "top_k(", 7), BrokenRow: BrokenRow("a problem", row=3, stage="ban"),
}
TREE = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, NalarError)]


@pytest.mark.parametrize("kind", TREE)
def test_every_error_travels_between_processes(kind: type[NalarError]) -> None:
    error = SPECIAL.get(kind) or kind("a problem")
    error.add_note("in row 3")
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert type(twin) is kind
        assert (str(twin), twin.args, twin.__dict__) == (str(error), error.args, error.__dict__)
    assert kind is NalarError or issubclass(kind, ValueError | TypeError | RuntimeError | ImportError)


def test_what_the_special_errors_know_travels_too() -> None:
    row = pickle.loads(pickle.dumps(BrokenRow("a problem", stage="ban").at(3)))
    assert (row.row, row.stage, row.problem, str(row)) == (3, "ban", "a problem", "row 3: a problem")
    parse = pickle.loads(pickle.dumps(SPECIAL[ParseError]))
    assert (parse.text, parse.column) == ("top_k(", 7)
