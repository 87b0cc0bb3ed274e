"""Logits are read in any dtype and layout, borrowed and never written; broken rows are named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nalar import Chain, Key, NalarError, Sampler, sample, sample_batch
from nalar.errors import BrokenRow, InvalidType, InvalidValue
from nalar.rows import as_float64, as_row, split_rows

INF, NAN = np.inf, np.nan
VALUES = [0.0, -1.5, 2.0, -INF, 0.25, 1.0]  # exact in every dtype
DTYPES = ["float16", "float32", "float64", ">f2", ">f4", ">f8", "<f4", ml_dtypes.bfloat16]


def read(logits: Any, vocabulary: int | None = None) -> list[float]:
    return as_float64(as_row(logits, vocabulary)).tolist()


def spread(values: Any, dtype: Any) -> dict[str, Any]:
    """The same row in every memory layout."""
    row = np.array(values, dtype)
    wide = np.zeros(2 * row.size, dtype)
    wide[::2] = row
    table = np.zeros((3, row.size), dtype)
    table[1] = row
    fixed = row.copy()
    fixed.flags.writeable = False
    unaligned = np.zeros(row.nbytes + 1, np.uint8)[1:].view(dtype)
    unaligned[:] = row
    return {
        "contiguous": row, "strided": wide[::2], "reversed": row[::-1].copy()[::-1], "row of a table": table[1],
        "column of a Fortran table": np.asfortranarray(table)[1], "column": np.ascontiguousarray(table.T)[:, 1], "read-only": fixed,
        "unaligned": unaligned,
    }


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_and_layout_reads_the_same_and_is_not_written(dtype: Any) -> None:
    expected = Chain().distribution(VALUES)
    for layout, row in spread(VALUES, dtype).items():
        before = row.tobytes()
        assert read(row) == VALUES, layout
        law = Chain.parse("temperature(1) | top_k(4) | top_p(0.9)").distribution(row)
        assert Chain().distribution(row).probs.tolist() == expected.probs.tolist()
        assert sample(row, Chain.parse("bias({0: 1}) | ban([1])"), Key(1), logprobs=2).token in (0, 2, 4, 5)
        assert law.ids.dtype == np.int32
        assert row.tobytes() == before, layout


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_row_is_a_view_and_not_a_copy(dtype: Any) -> None:
    for layout, row in spread(VALUES, dtype).items():
        assert np.shares_memory(as_row(row).view(np.uint8) if row.flags.c_contiguous else as_row(row), row), layout


def test_bfloat16_has_its_own_numbers() -> None:
    bits = np.array([0x3F80, 0x3F81, 0xC000, 0xFF80, 0x0001, 0x7F7F], np.uint16)  # sign, 8 bits of exponent, 7 of fraction
    expected = [1.0, 1.0078125, -2.0, -INF, 2.0**-133, (2 - 2**-7) * 2.0**127]
    assert read(bits.view(ml_dtypes.bfloat16)) == expected


def test_a_memory_map_is_read_in_place(tmp_path: Path) -> None:
    path = tmp_path / "row.bin"
    np.array(VALUES, np.float32).tofile(path)
    row = np.memmap(path, np.float32, "r")
    assert np.shares_memory(as_row(row), row)
    assert read(row) == VALUES


def test_lists_of_numbers_are_rows() -> None:
    assert read([0, 1, -2]) == [0.0, 1.0, -2.0]
    assert read((0.5, -INF)) == [0.5, -INF]
    assert read([np.float32(0.5), 1]) == [0.5, 1.0]


@pytest.mark.parametrize(
    ("logits", "kind", "words"),
    [
        (np.zeros(3, np.int64), InvalidType, "int64"),
        (np.zeros(3, np.uint16), InvalidType, "uint16"),
        (np.zeros(3, np.bool_), InvalidType, "bool"),
        (np.zeros(3, np.complex64), InvalidType, "complex64"),
        (np.array([0.0, None], object), InvalidType, "object"),
        (np.array(["0.5"]), InvalidType, "<U3"),
        (np.array(0.5), InvalidValue, r"shape \[\]"),
        (np.zeros((1, 3)), InvalidValue, r"shape \[1, 3\]"),
        (np.zeros((2, 3, 4)), InvalidValue, r"shape \[2, 3, 4\]"),
        (np.zeros(0), InvalidValue, "empty row"),
        ([], InvalidValue, "empty row"),
        ([[0.0, 1.0]], InvalidValue, r"shape \[1, 2\]"),
        ([0.0, "1"], InvalidType, "got a list of"),
        ([0.0, None], InvalidType, "numbers"),
        ([True, False], InvalidType, "bool"),
        ([0.0, True], InvalidType, "bool"),
        ([1j], InvalidType, "complex"),
        ([[0.0], [0.0, 1.0]], InvalidType, "unequal"),
        ([2**70], InvalidType, "object"),
        (5.0, InvalidType, "float"),
        (None, InvalidType, "NoneType"),
        ("0.5", InvalidType, "str"),
        ({0: 1.0}, InvalidType, "dict"),
    ],
    ids=lambda value: repr(value)[:30],
)
def test_what_is_not_a_row_is_refused(logits: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words) as caught:
        Chain().distribution(logits)
    assert isinstance(caught.value, NalarError)
    assert str(caught.value).startswith("logits must")


@pytest.mark.skipif(np.dtype(np.longdouble).itemsize == 8, reason="long double is double here")
def test_long_double_is_refused() -> None:
    with pytest.raises(InvalidType, match=r"float16, bfloat16, float32 or float64, got (float128|float96|longdouble)"):
        Chain().distribution(np.zeros(3, np.longdouble))


def test_a_masked_array_is_refused_rather_than_read_past_its_mask() -> None:
    with pytest.raises(InvalidType, match="mask"):
        Chain().distribution(np.ma.array([1.0, 2.0], mask=[False, True]))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
@pytest.mark.parametrize("bad", [NAN, INF])
@pytest.mark.parametrize("chain", ["identity", "ban([3])", "allow([0])", "top_k(1)", "temperature(0)"])
def test_nan_and_inf_below_the_vocabulary_break_the_row_even_where_banned(dtype: Any, bad: float, chain: str) -> None:
    row = np.array([5.0, 1.0, -INF, bad, 0.0], dtype)
    with pytest.raises(BrokenRow, match=f"got {bad} at token 3") as caught:
        Chain.parse(chain).distribution(row)
    assert (caught.value.row, caught.value.stage) == (None, None)


def test_a_signalling_nan_breaks_the_row_like_a_quiet_one() -> None:
    for row in (np.array([0, 0x7F800001], np.uint32).view(np.float32), np.array([0, 0x7F81], np.uint16).view(ml_dtypes.bfloat16)):
        with pytest.raises(BrokenRow, match="nan at token 1"):
            Chain().distribution(row)


def test_the_first_broken_token_is_named() -> None:
    with pytest.raises(BrokenRow, match="got inf at token 1"):
        Chain().distribution([0.0, INF, NAN])
    with pytest.raises(BrokenRow, match="got nan at token 1"):
        Chain().distribution([0.0, NAN, INF])


def test_a_row_of_minus_inf_leaves_nothing() -> None:
    with pytest.raises(BrokenRow, match="at least one token, got -inf at all 3"):
        Chain().distribution([-INF] * 3)
    assert Chain().distribution([-INF, -1e308, -INF]).ids.tolist() == [1]


def test_a_batch_names_the_broken_row() -> None:
    rows = np.zeros((3, 4))
    rows[2, 1] = NAN
    with pytest.raises(BrokenRow, match="row 2: logits must be finite or -inf, got nan at token 1") as caught:
        sample_batch(rows, Chain(), [Key(1)] * 3)
    assert caught.value.row == 2


@pytest.mark.parametrize("padding", [NAN, INF, -INF, 1e300])
def test_padding_ids_may_hold_anything(padding: float) -> None:
    row = np.array([0.0, 1.0, 0.0, padding, padding])
    law = Chain().distribution(row, vocabulary=3)
    assert law.probs.tolist() == Chain().distribution(row[:3]).probs.tolist()
    drawn = sample(row, Chain(), Key(3), vocabulary=3, logprobs=3)
    assert drawn.raw_logprob == sample(row[:3].copy(), Chain(), Key(3), logprobs=3).raw_logprob
    assert len(drawn.raw_top) == 3


@pytest.mark.parametrize("vocabulary", [0, -1, 4, 2**40])
def test_a_vocabulary_beyond_the_row_is_refused(vocabulary: int) -> None:
    with pytest.raises(InvalidValue, match=rf"vocabulary must be an integer in \[1, 3\].*got {vocabulary}"):
        Chain().distribution([0.0, 0.0, 0.0], vocabulary=vocabulary)


@pytest.mark.parametrize("vocabulary", [2.0, "2", True, [2]])
def test_a_vocabulary_that_is_no_integer_is_refused(vocabulary: Any) -> None:
    with pytest.raises(InvalidType, match="vocabulary must be an integer"):
        Chain().distribution([0.0, 0.0, 0.0], vocabulary=vocabulary)
    assert Chain().distribution([0.0, 0.0, 0.0], vocabulary=np.int64(2)).ids.tolist() == [0, 1]  # type: ignore[arg-type]


def test_rows_come_as_a_table_or_a_list() -> None:
    table = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert [row.tolist() for row in split_rows(table)] == table.tolist()
    assert all(np.shares_memory(row, table) for row in split_rows(table))
    ragged = split_rows([np.zeros(2, np.float16), [0.0, 1.0, 2.0]])
    assert [as_row(row).size for row in ragged] == [2, 3]
    with pytest.raises(InvalidValue, match=r"rows must be .*got shape \[3\]"):
        split_rows(table[0])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_way_to_give_rows_takes_every_dtype(dtype: Any) -> None:
    table, keys = np.array([VALUES, VALUES], dtype), [Key(1), Key(2)]
    expected = [sample(VALUES, Chain(), key).token for key in keys]
    for rows in (table, list(table), np.asfortranarray(table)):
        assert sample_batch(rows, Chain(), keys).tokens.tolist() == expected
    assert Sampler(Chain(), seed=1).step(table[:1]).token == expected[0]
    assert Sampler(Chain(), seed=1).step([table[0]]).token == expected[0]
    laws = Sampler(Chain(), seed=1).distributions(table, [0]).laws
    assert [law.probs.tolist() for law in laws] == [Chain().distribution(VALUES).probs.tolist()] * 2


@pytest.mark.parametrize("row", [[1.7e308, -1.7e308, 0.0], [-1.7e308, -1e308], [1e-320, 0.0]])
def test_extreme_logits_are_a_law_without_a_warning(row: list[float]) -> None:
    drawn = sample(np.array(row), Chain(), Key(1), logprobs=len(row))
    shifted = [value - max(row) for value in row]
    assert drawn.token in [token for token, gap in enumerate(shifted) if gap > -746]


@given(st.lists(st.floats(-50, 50, width=16) | st.just(-INF), min_size=1, max_size=30).filter(lambda row: max(row) > -INF))
def test_the_dtype_does_not_change_the_law(row: list[float]) -> None:
    expected = Chain().distribution(row)
    for dtype in (np.float16, np.float32, ">f4"):
        law = Chain().distribution(np.array(row, dtype))
        assert law.ids.tolist() == expected.ids.tolist()
        assert law.probs.tolist() == expected.probs.tolist()
