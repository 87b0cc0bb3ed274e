"""Torch tensors on the CPU are read in place; every other kind of tensor is refused with what to do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from nalar import Chain, Key, Sampler, sample, sample_batch
from nalar.errors import BrokenRow, InvalidType, InvalidValue
from nalar.rows import as_float64, as_row, split_rows

torch: Any = pytest.importorskip("torch")

VALUES = [0.0, -1.5, 2.0, float("-inf"), 0.25, 1.0]  # exact in every dtype
DTYPES = ["float16", "bfloat16", "float32", "float64"]


def bits(tensor: Any) -> bytes:
    """The raw bytes of a tensor; NumPy has no bfloat16."""
    return bytes(tensor.contiguous().view(torch.uint8).numpy())


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_tensor_is_read_in_place_and_not_written(dtype: str) -> None:
    tensor = torch.tensor(VALUES, dtype=getattr(torch, dtype))
    before, row = bits(tensor), as_row(tensor)
    assert np.shares_memory(row, tensor.view(torch.int16 if tensor.element_size() == 2 else tensor.dtype).numpy())
    assert as_float64(row).tolist() == VALUES
    assert sample(tensor, Chain.parse("bias({0: 3}) | temperature(0.5) | top_k(3)"), Key(1), logprobs=2).token in (0, 2, 5)
    assert Sampler(Chain(), seed=1).sample(tensor).token in (0, 1, 2, 4, 5)
    assert bits(tensor) == before


@pytest.mark.parametrize("dtype", DTYPES)
def test_strided_tensors_and_rows_of_tables_are_read_in_place(dtype: str) -> None:
    table = torch.zeros((3, 12), dtype=getattr(torch, dtype))
    table[1, ::2] = torch.tensor(VALUES, dtype=table.dtype)
    assert as_float64(as_row(table[1, ::2])).tolist() == VALUES
    assert as_float64(as_row(table.t()[::2, 1])).tolist() == VALUES
    assert [as_float64(as_row(row)).tolist() for row in split_rows(table)][1][::2] == VALUES
    alias = as_row(table[1, ::2])
    table[1, 0] = 7.0
    assert as_float64(alias)[0] == 7.0  # borrowed, not copied


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_batch_may_be_a_tensor_or_a_list_of_tensors(dtype: str) -> None:
    table, keys = torch.zeros((2, 5), dtype=getattr(torch, dtype)), [Key(1), Key(2)]
    assert Sampler(Chain(), seed=1).step(table[:1]).token == sample(table[0], Chain(), Key(1)).token
    assert len(Sampler(Chain(), seed=1).distributions(table, [0])) == 2
    assert sample_batch(table, Chain(), keys).tokens.tolist() == sample_batch(list(table), Chain(), keys).tokens.tolist()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: torch.zeros(3, requires_grad=True), "requires? grad.*detach"),
        (lambda: torch.zeros(3, requires_grad=True) * 2, "requires? grad.*detach"),
        (lambda: torch.nn.Parameter(torch.zeros(3)), "requires? grad.*detach"),
        (lambda: torch.zeros(3, device="meta"), "on the CPU, got a tensor on meta"),
        (lambda: torch.zeros(3).to_sparse(), "dense tensor, got layout torch.sparse_coo"),
        (lambda: torch.zeros(3, dtype=torch.complex64).conj(), "conjugate"),
        (lambda: torch.zeros(3, dtype=torch.complex64).conj().imag, "negative view"),
        (lambda: torch.zeros(3, dtype=torch.complex64), "got torch.complex64"),
        (lambda: torch.zeros(3, dtype=torch.int64), "got torch.int64"),
        (lambda: torch.zeros(3, dtype=torch.bool), "got torch.bool"),
        (lambda: torch.zeros(3, dtype=torch.float8_e4m3fn), "got torch.float8_e4m3fn"),
    ],
)
def test_other_tensors_are_refused_with_what_to_do(make: Any, words: str) -> None:
    with pytest.raises(InvalidType, match=words):
        as_row(make())
    with pytest.raises(InvalidType, match=words):
        sample(make(), Chain(), Key(1))


@pytest.mark.parametrize("make", [lambda: torch.zeros(()), lambda: torch.zeros((1, 3)), lambda: torch.zeros(0)])
def test_shapes_that_are_not_a_row_are_refused(make: Any) -> None:
    with pytest.raises(InvalidValue, match="logits must"):
        as_row(make())


@pytest.mark.parametrize("dtype", DTYPES)
def test_broken_tensors_are_named(dtype: str) -> None:
    tensor = torch.tensor([0.0, float("nan"), 1.0], dtype=getattr(torch, dtype))
    with pytest.raises(BrokenRow, match="nan at token 1"):
        Chain().distribution(tensor)
    assert Chain().distribution(tensor, vocabulary=1).ids.tolist() == [0]


def test_a_tensor_in_inference_mode_is_read() -> None:
    with torch.inference_mode():
        assert as_float64(as_row(torch.tensor(VALUES))).tolist() == VALUES


def test_ids_may_be_tensors() -> None:
    from nalar import History, SamplingParams

    assert History(prompt=torch.tensor([1, 5, 5])).prompt.tolist() == [1, 5, 5]
    assert SamplingParams(stop_tokens=torch.tensor([3, 1])).stop_tokens == (1, 3)
