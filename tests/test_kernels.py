"""The kernels equal ``apply``: support and token always, probabilities within rounding.  The cases are in ``kernel_cases``."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kernel_cases
import nalar
from kernel_cases import SIZES, SMALL, Case, check, make_case, make_row
from nalar import kernels, stages

SEEDS = st.integers(0, 2**32)
KEYS = [nalar.Key(seed, position=0) for seed in range(20)]


@settings(max_examples=400, deadline=None)
@given(SEEDS)
def test_a_random_case_equals_apply(seed: int) -> None:
    check(make_case(np.random.default_rng(seed), SMALL))


@settings(max_examples=40, deadline=None)
@given(SEEDS)
def test_a_large_random_case_equals_apply(seed: int) -> None:
    check(make_case(np.random.default_rng(seed), SIZES[-6:]))


@pytest.mark.long
@pytest.mark.parametrize("part", range(20))
def test_hundreds_of_thousands_of_cases(part: int) -> None:
    for seed in range(10_000):
        check(make_case(np.random.default_rng([part, seed, 1]), SMALL))


@pytest.mark.long
def test_thousands_of_large_cases() -> None:
    for seed in range(5_000):
        check(make_case(np.random.default_rng([seed, 2]), SIZES[-6:]))


@settings(max_examples=100, deadline=None)
@given(SEEDS, st.integers(1, 2))
def test_forced_fall_backs_change_nothing(seed: int, level: int) -> None:
    with kernels.force(level):
        check(make_case(np.random.default_rng(seed), SMALL))


def test_fall_backs_are_counted_and_can_be_forced() -> None:
    row = np.random.default_rng(1).normal(0, 2, 3000).astype(np.float32)
    chain = nalar.Chain.parse("temperature(0.8) | top_p(0.9)")
    tokens = []
    for level, name in ((0, "rows"), (1, "double"), (2, "apply")):
        before = kernels.counts()
        with kernels.force(level):
            tokens.append(nalar.sample(row, chain, KEYS[3]).token)
        after = kernels.counts()
        assert after[name] > before[name]
        if level == 0:
            assert (after["double"], after["apply"]) == (before["double"], before["apply"])
    assert len(set(tokens)) == 1


ORDERS = [
    list(order)
    for n in range(1, 5)
    for order in itertools.permutations(["temperature(0.7)", "top_k(3)", "top_p(0.6)", "min_p(0.2)", "bias({1: 1.5, 4: -2.0})"], n)
]


@pytest.mark.parametrize("size", [6, 700, 4000])
def test_every_order_of_up_to_four_stages(size: int) -> None:
    random = np.random.default_rng(size)
    for order in ORDERS:
        row = random.normal(0, 2, size).astype(np.float32)
        check(Case(row, nalar.Chain.parse(" | ".join(order)), nalar.History(), nalar.Key(int(random.integers(2**60))), "inverse"))


def boundary_rows() -> list[Any]:
    """Weights exact in binary, so that cumulative sums hit p exactly."""
    powers = -np.log(2.0) * np.array([1, 2, 3, 4, 5, 6, 7, 7.0])
    return [
        np.zeros(16, np.float32), np.zeros(4096, np.float32), np.zeros(5001, np.float16), np.log([0.5, 0.25, 0.125, 0.125]),
        powers, np.tile(powers, 300), np.repeat([1.0, 0.0], 2048).astype(np.float32), np.repeat([0.0, 1.0], 3000).astype(np.float16),
        np.repeat([50.0, -50.0], 2000).astype(np.float32), np.array([0.0]), np.full(300, -3.4e38, np.float32),
    ]


@pytest.mark.parametrize("p", [0.0, 0.25, 0.5, 0.75, 0.875, 1.0])
@pytest.mark.parametrize("stage", ["top_p({p})", "min_p({p})", "top_p({p}) | temperature(2.0) | top_p({p})", "top_k(7) | top_p({p})"])
def test_rows_on_boundaries(stage: str, p: float) -> None:
    for row in boundary_rows():
        check(Case(row, nalar.Chain.parse(stage.format(p=p)), nalar.History(), KEYS[0], "inverse"))


WORST = {
    "equal": lambda random, size: np.zeros(size),
    "flat": lambda random, size: random.normal(0, 0.05, size),
    "opposed": lambda random, size: random.choice([-50.0, 50.0], size),
    "heavy": lambda random, size: random.normal(0, 4, size),
    "ties": lambda random, size: np.round(random.normal(0, 2, size), 1),
    "sorted": lambda random, size: np.sort(random.normal(0, 1, size)),
}
CHAINS = [
    "temperature(0)", "temperature(0.8)", "top_p(0.95)", "top_p(0.5) | temperature(0.8) | top_k(40)", "min_p(0.01)", "top_k(30000)",
    "top_k(65999)", "top_k(1000) | top_p(0.9)", "temperature(0.8) | top_p(0.9) | min_p(0.1)", "repetition(1.3) | top_p(0.95)",
    "frequency(0.5) | top_k(50) | top_p(0.9)", "top_p(0.999) | presence(1.0)", "min_p(0.05) | repetition(0.5)",
]


@pytest.mark.parametrize("kind", WORST)
@pytest.mark.parametrize("chain", CHAINS)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_worst_cases(kind: str, chain: str, dtype: Any) -> None:
    random = np.random.default_rng(len(kind))
    row = WORST[kind](random, 66_000).astype(dtype)
    history = nalar.History(random.integers(0, 66_000, 1000), random.integers(0, 66_000, 300))
    for number in range(2):
        check(Case(row, nalar.Chain.parse(chain), history, nalar.Key(number), "inverse"))


@pytest.mark.parametrize("text", ["", "top_k(2)", "top_p(0.9)", "temperature(0.5)", "ban([0])", "bias({1: -inf}) | top_k(1)", "allow([2])"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_broken_rows_raise_the_same_errors(text: str, bad: float) -> None:
    chain = nalar.Chain.parse(text or "identity")
    for size, places in ((4, [0]), (4, [0, 1, 2, 3]), (2000, [1999]), (300, [7]), (3, [2])):
        row = np.zeros(size, np.float32)
        row[places] = bad
        check(Case(row, chain, nalar.History(), KEYS[0], "inverse"))


EMPTYING = ["ban([0, 1, 2])", "top_k(1) | ban([0, 1, 2])", "allow([0]) | ban([0])", "temperature(0) | bias({0: -inf})"]


@pytest.mark.parametrize("text", EMPTYING)
def test_emptied_rows_name_their_stage(text: str) -> None:
    check(Case(np.array([3.0, 2.0, 1.0], np.float32), nalar.Chain.parse(text), nalar.History(), KEYS[0], "inverse"))
    with pytest.raises(nalar.NalarError, match="left no token to draw"):
        nalar.sample(np.array([3.0, 2.0, 1.0], np.float32), nalar.Chain.parse(text), KEYS[0])


def test_an_id_outside_the_row_is_the_same_error() -> None:
    check(Case(np.zeros(3, np.float32), nalar.Chain([stages.Ban([3])]), nalar.History(), KEYS[0], "inverse"))


@settings(max_examples=60, deadline=None)
@given(SEEDS)
def test_a_batch_equals_its_rows(seed: int) -> None:
    random = np.random.default_rng(seed)
    cases = [make_case(random, SMALL) for _ in range(random.integers(1, 7))]
    rows, chains, keys, histories = ([getattr(case, name) for case in cases] for name in ("row", "chain", "key", "history"))
    batch = nalar.sample_batch(rows, chains, keys, histories, threads=int(random.integers(1, 4)), errors="return")
    for index, case in enumerate(cases):
        alone: Any = None
        try:
            alone = nalar.sample(case.row, case.chain, case.key, case.history)
        except nalar.NalarError as error:
            alone = error
        if isinstance(alone, nalar.NalarError):
            assert type(batch.errors[index]) is type(alone)
            assert str(alone) in str(batch.errors[index])
        else:
            assert batch.samples[index] == alone


def test_a_block_of_rows_equals_its_rows() -> None:
    random = np.random.default_rng(3)
    chain = nalar.Chain.parse("temperature(0.8) | top_p(0.9)")
    for dtype in (np.float32, np.float64, np.float16):
        block = np.stack([make_row(random, 3000) for _ in range(9)]).astype(dtype)[::2, ::-1]
        block[np.isinf(block)] = 0
        for threads in (1, 2, 9):
            batch = nalar.sample_batch(block, chain, KEYS[: len(block)], threads=threads)
            assert batch.tokens.tolist() == [nalar.sample(row, chain, key).token for row, key in zip(block, KEYS, strict=False)]


def test_many_threads_on_one_row() -> None:
    row = np.random.default_rng(1).normal(0, 2, 20_000).astype(np.float32)
    chain, history = nalar.Chain.parse("repetition(1.3) | temperature(0.9) | top_p(0.9)"), nalar.History(range(500))
    keys = [nalar.Key(seed) for seed in range(60)]
    wanted = [nalar.sample(row, chain, key, history).token for key in keys]
    got: list[list[int]] = []

    def work() -> None:
        got.append([nalar.sample(row, chain, key, history).token for key in keys])

    workers = [threading.Thread(target=work) for _ in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert got == [wanted] * 8


def test_a_law_lives_as_long_as_its_rows() -> None:
    from nalar.engines.base import Lease, lend

    lease = Lease()
    rows = lend(np.random.default_rng(1).normal(0, 1, (1, 5000)).astype(np.float32), lease)  # smaller ones are not borrowed
    law, kept = nalar.Chain.parse("temperature(0.7)").distribution(rows[0]), None
    kept, few = law.hold(), nalar.Chain.parse("top_k(3)").distribution(rows[0])
    wanted = law.prob(3)
    lease.ended = True
    for use in (lambda: law.prob(3), lambda: law.ids, lambda: law.draw(KEYS[0]), law.hold, law.entropy):
        with pytest.raises(nalar.NalarError, match="engine's next call"):
            use()
    assert kept.prob(3) == pytest.approx(wanted)
    assert kept.ids.size == 5000
    assert few.ids.size == 3


def test_a_law_borrows_the_row_until_it_is_worked_out() -> None:
    row = np.zeros(2048, np.float32)
    law = nalar.Chain().distribution(row)
    held = law.hold()
    row[0] = 9
    assert law.prob(0) > 0.9
    assert held.prob(0) == pytest.approx(2.0**-11)
    assert held.probs.tolist() == [2.0**-11] * 2048


def test_a_law_is_of_the_history_it_was_made_with() -> None:
    history = nalar.History(output=[1])
    law = nalar.Chain.parse("presence(1.0) | min_tokens(2, ends=[0])").distribution(np.zeros(4, np.float32), history)
    history.append(2)
    assert law.ids.tolist() == [1, 2, 3]
    assert law.prob(1) < law.prob(2)


def test_a_chain_travels_without_its_addresses() -> None:
    import copy
    import pickle

    chain = nalar.Chain.parse("bias({1: 2.0}) | top_k(2)")
    row = np.array([1.0, 0.0, 0.5], np.float32)
    wanted = nalar.sample(row, chain, KEYS[0]).token
    for twin in (pickle.loads(pickle.dumps(chain)), copy.deepcopy(chain), copy.copy(chain)):
        assert twin == chain
        assert twin._encoded is not chain._encoded
        assert nalar.sample(row, twin, KEYS[0]).token == wanted


def test_another_stage_goes_on_from_what_the_kernels_left() -> None:
    row = np.random.default_rng(1).normal(0, 2, 5000).astype(np.float32)
    before = kernels.counts()["rows"]
    for text in ("top_k(40) | top_p(0.9, mass='original')", "temperature(0.8) | top_p(0.5) | top_p(0.4, mass='original')"):
        check(Case(row, nalar.Chain.parse(text), nalar.History(), KEYS[0], "inverse"))
    assert kernels.counts()["rows"] > before


def test_warmup_names_every_entry() -> None:
    assert [name for name, _ in kernels.warmup()] == ["run", "batch", "sums64", "large"]


def test_a_lazy_law_travels_worked_out() -> None:
    import pickle

    law = nalar.Chain.parse("temperature(0.5)").distribution(np.array([1.0, 2.0, 3.0], np.float32))
    twin = pickle.loads(pickle.dumps(law))
    assert twin.draw(KEYS[0]) == law.draw(KEYS[0])
    assert twin.probs.tolist() == law.probs.tolist()


@pytest.mark.parametrize("dtype", [">f4", "<f8", "f2", np.longdouble])
def test_other_types(dtype: Any) -> None:
    row = np.random.default_rng(1).normal(0, 2, 700).astype(dtype)
    if dtype is np.longdouble:
        with pytest.raises(nalar.NalarError, match="float16, bfloat16, float32 or float64"):
            nalar.sample(row, nalar.Chain(), KEYS[0])
        return
    check(Case(row, nalar.Chain.parse("top_p(0.9)"), nalar.History(), KEYS[0], "inverse"))
    packed = np.zeros(700, np.dtype([("pad", "u1"), ("x", dtype)]))
    packed["x"] = row
    check(Case(packed["x"], nalar.Chain.parse("top_k(9)"), nalar.History(), KEYS[0], "inverse"))


def test_the_switch() -> None:
    row, chain = np.zeros(300, np.float32), nalar.Chain.parse("top_k(3)")
    before = kernels.counts()["rows"]
    with kernels.use(False):
        nalar.sample(row, chain, KEYS[0])
        assert kernels.counts()["rows"] == before
    nalar.sample(row, chain, KEYS[0])
    assert kernels.counts()["rows"] == before + 1


def test_the_helper_finds_a_wrong_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparison itself must be able to fail."""
    case = Case(np.arange(10, dtype=np.float32), nalar.Chain(), nalar.History(), KEYS[0], "inverse")
    real = kernel_cases.outcome
    monkeypatch.setattr(kernel_cases, "outcome", lambda case, on: (-1, *real(case, on)[1:]) if on else real(case, on))
    with pytest.raises(AssertionError, match="token"):
        kernel_cases.check(case)
