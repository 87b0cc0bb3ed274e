"""Bias, allowed, banned and minimum-length masks: ids are checked, masks are −inf, an emptied row names its stage."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nalar import Chain, History, Key, NalarError, sample_batch
from nalar.errors import BrokenRow, InvalidType, InvalidValue
from nalar.stages import Allow, Ban, Bias, MinTokens, Temperature, TopK

INF = math.inf
SIZE = 8
ROWS = st.lists(st.sampled_from([-INF, -2.0, 0.0, 0.25, 3.0]), min_size=SIZE, max_size=SIZE).filter(lambda row: max(row) > -INF)
SETS = st.sets(st.integers(0, SIZE - 1))


def logits(row: list[float], stages: Any, history: History | None = None) -> list[float]:
    return Chain(stages if isinstance(stages, list) else [stages]).candidates(row, history).logits.tolist()


def masked(row: list[float], ids: set[int]) -> list[float]:
    return [-INF if token in ids else logit for token, logit in enumerate(row)]


def agrees(row: list[float], stage: Any, expected: list[float], name: str) -> None:
    """The stage gives ``expected``, or refuses in its own name when that leaves nothing."""
    if max(expected) > -INF:
        assert logits(row, stage) == expected
    else:
        with pytest.raises(BrokenRow, match=rf"^{name} left no token to draw\Z") as caught:
            logits(row, stage)
        assert caught.value.stage == name


@given(ROWS, SETS)
def test_ban_masks_its_ids_and_allow_all_others(row: list[float], ids: set[int]) -> None:
    agrees(row, Ban(ids), masked(row, ids), "ban")
    agrees(row, Allow(ids), masked(row, set(range(SIZE)) - ids), "allow")


@given(ROWS, st.dictionaries(st.integers(0, SIZE - 1), st.sampled_from([-INF, -1.5, 0.0, 100.0])))
def test_bias_adds(row: list[float], values: dict[int, float]) -> None:
    agrees(row, Bias(values), [logit + values.get(token, 0.0) for token, logit in enumerate(row)], "bias")


@given(ROWS, SETS, st.integers(0, 4), st.integers(0, 4))
def test_min_tokens_masks_the_ends_while_the_output_is_short(row: list[float], ends: set[int], n: int, emitted: int) -> None:
    history = History(prompt=[1] * 3, output=[2] * emitted)
    expected = masked(row, ends) if emitted < n else row
    if max(expected) > -INF:
        assert logits(row, MinTokens(n, ends), history) == expected


def test_masks_keep_the_tokens_in_place() -> None:
    left = Chain([Ban([1]), Allow([0, 1, 2])]).candidates([0.0, 1.0, 2.0, 3.0])
    assert (left.ids.tolist(), left.logits.tolist()) == ([0, 1, 2, 3], [0.0, -INF, 2.0, -INF])


def test_min_tokens_counts_the_output_only() -> None:
    chain = Chain([MinTokens(2, [0])])
    row = [5.0, 0.0]
    drawable = [chain.distribution(row, History([9] * 50, [1] * length)).ids.tolist() for length in range(4)]
    assert drawable == [[1], [1], [0, 1], [0, 1]]


def test_a_positive_bias_does_not_bring_a_masked_token_back() -> None:
    assert logits([-INF, 0.0], Bias({0: 1000.0})) == [-INF, 0.0]


def test_constraints_after_a_truncation_see_what_is_left() -> None:
    row = [3.0, 2.0, 1.0, 0.0]
    left = Chain([TopK(2), Bias({0: -1.0, 3: 50.0}), Ban([2])]).candidates(row)
    assert (left.ids.tolist(), left.logits.tolist()) == ([0, 1], [2.0, 2.0])
    assert Chain([TopK(3), Allow([1, 3])]).distribution(row).ids.tolist() == [1]
    with pytest.raises(BrokenRow, match=r"^ban left no token"):
        Chain([TopK(1), Ban([0])]).distribution(row)


OUTSIDE = [(Bias({1: 1.0, 4: 1.0}), "bias"), (Allow([0, 4]), "allow"), (Ban([4]), "ban"), (MinTokens(1, [4]), "min_tokens")]


@pytest.mark.parametrize(("stage", "name"), OUTSIDE)
def test_an_id_outside_the_row_s_vocabulary_is_an_error(stage: Any, name: str) -> None:
    with pytest.raises(InvalidValue, match=rf"^{name}: token ids must be in \[0, 3\], the row's vocabulary, got 4"):
        Chain([stage]).distribution(np.zeros(4))
    with pytest.raises(InvalidValue, match=rf"^{name}: "):  # padding ids do not count
        Chain([stage]).distribution(np.zeros(6), vocabulary=4)
    Chain([stage]).distribution(np.zeros(5))


EMPTIED = [
    ("allow([])", "allow"), ("ban([0, 1, 2])", "ban"), ("min_tokens(1, [0, 1, 2])", "min_tokens"),
    ("bias({0: -inf, 1: -inf, 2: -inf})", "bias"),
    ("allow([0]) | ban([0])", "ban"), ("ban([0]) | allow([0])", "allow"), ("top_k(1) | temperature(0) | ban([0])", "ban"),
    ("bias({0: -inf}) | ban([1]) | min_tokens(5, [2])", "min_tokens"), ("allow([2]) | bias({2: -inf})", "bias"),
]


@pytest.mark.parametrize(("text", "name"), EMPTIED)
def test_an_emptied_row_is_an_error_that_names_the_stage(text: str, name: str) -> None:
    with pytest.raises(BrokenRow, match=rf"^{name} left no token to draw\Z") as caught:
        Chain.parse(text).distribution([0.0, 0.0, 0.0])
    assert (caught.value.stage, caught.value.row) == (name, None)


@pytest.mark.parametrize(("text", "name"), EMPTIED)
def test_an_emptied_row_of_a_batch_is_no_token_and_never_token_0(text: str, name: str) -> None:
    chains = [Chain(), Chain.parse(text), Chain()]
    batch = sample_batch(np.zeros((3, 3)), chains, [Key(1, sequence=n) for n in range(3)], errors="return")
    error = batch.errors[1]
    assert batch.tokens[1] == -1
    assert isinstance(error, BrokenRow)
    assert (error.row, error.stage, str(error)) == (1, name, f"row 1: {name} left no token to draw")
    assert (batch.errors[0], batch.errors[2]) == (None, None)
    assert min(batch.tokens[[0, 2]]) >= 0


def test_what_the_row_itself_leaves_empty_is_not_blamed_on_a_stage() -> None:
    with pytest.raises(BrokenRow, match=r"^logits must leave at least one token") as caught:
        Chain([Ban([0])]).distribution([-INF, -INF])
    assert caught.value.stage is None


def test_large_sets_are_exact() -> None:
    size = 100_003
    row = np.zeros(size, np.float32)
    third = range(0, size, 3)
    law = Chain([Allow(third)]).distribution(row)
    assert law.ids.tolist() == list(third)
    assert Chain([Ban(third)]).distribution(row).ids.tolist() == sorted(set(range(size)) - set(third))
    assert law.probs[0] == 1 / len(third)
    assert Chain([Allow([size - 1])]).distribution(row).ids.tolist() == [size - 1]


@pytest.mark.parametrize("top", [0, 7, 8, 9, 15, 16, 63, 64])
def test_allowed_sets_are_exact_at_the_edges_of_a_byte(top: int) -> None:
    assert Chain([Allow([top])]).distribution(np.zeros(100)).ids.tolist() == [top]
    assert Chain([Allow(range(top + 1))]).distribution(np.zeros(100)).ids.tolist() == list(range(top + 1))


def test_allow_masks_after_a_truncation_left_gaps() -> None:
    row = [1.0, 0.0] * 20
    assert Chain([TopK(20), Allow([1, 2, 3, 38])]).distribution(row).ids.tolist() == [2, 38]


def test_masks_come_before_the_temperature_s_limit() -> None:
    assert Chain([Ban([1]), Temperature(0)]).distribution([0.0, 5.0, 0.0]).ids.tolist() == [0]
    assert Chain([Bias({2: 9.0}), Temperature(1e-320)]).distribution([0.0, 5.0, 0.0]).ids.tolist() == [2]


@pytest.mark.parametrize("value", [1e308, -1e308])
def test_a_bias_that_overflows_gives_no_warning(value: float) -> None:
    row = [value, 0.0]
    if value < 0:
        assert logits(row, Bias({0: value})) == [-INF, 0.0]
    else:
        with pytest.raises(BrokenRow, match="bias left a logit of inf"):
            logits(row, Bias({0: value}))


def test_sets_are_kept_sorted_so_that_equal_stages_are_equal() -> None:
    assert Ban([3, 1, 3]) == Ban((1, 3)) == Ban({3, 1})
    assert Allow(np.array([3, 1])) == Allow([1, 3])
    assert Bias({3: 1, 1: 2}) == Bias([(1, 2.0), (3, 1.0)])  # type: ignore[arg-type]
    assert len({Ban([3, 1]), Ban([1, 3]), Allow([1, 3]), MinTokens(0, [1, 3]), MinTokens(0, {3, 1})}) == 3


@pytest.mark.parametrize(
    ("make", "kind", "words"),
    [
        (lambda: Ban(5), InvalidType, "banned ids must be a collection of token ids"), (lambda: Ban([-1]), InvalidValue, "got the id -1"),
        (lambda: Allow("12"), InvalidType, "allowed ids must"), (lambda: Allow([1.0]), InvalidType, "allowed ids must"),
        (lambda: Allow(None), InvalidType, "allowed ids must"), (lambda: Ban([True]), InvalidType, "banned ids must"),
        (lambda: Ban([2**31]), InvalidValue, "got the id 2147483648"),
        (lambda: MinTokens(-1, [0]), InvalidValue, "n must be an integer >= 0, got -1"),
        (lambda: MinTokens(1, 0), InvalidType, "ends must be a collection"),
        (lambda: MinTokens(1.5, [0]), InvalidType, "n must be an integer"),
        (lambda: Bias({0: INF}), InvalidValue, r"bias\[0\] .*got inf"), (lambda: Bias({0: math.nan}), InvalidValue, r"bias\[0\] .*got nan"),
        (lambda: Bias({"0": 1.0}), InvalidType, "bias: a token id must be"),
        (lambda: Bias({-1: 1.0}), InvalidValue, "bias: a token id must be"),
        (lambda: Bias({0: True}), InvalidType, r"bias\[0\]"), (lambda: Bias(3), InvalidType, "bias must map token ids to numbers, got 3"),
        (lambda: Bias([(0, 1.0), (0, 2.0)]), InvalidValue, "bias must name each token id once"),
    ],
)
def test_fields_are_checked(make: Any, kind: type[NalarError], words: str) -> None:
    with pytest.raises(kind, match=words):
        make()
