"""Reading logits: any dtype and layout as one NumPy view of the row, borrowed, never written.

NumPy arrays and torch CPU tensors pass without a copy; bfloat16 travels as its raw 16 bits, since NumPy has no such type.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt

from nalar.checks import check_integer
from nalar.errors import BrokenRow, InvalidType, InvalidValue

__all__ = ["as_float64", "as_row", "check_row", "split_rows"]

FloatRow = npt.NDArray[Any]  # float16, float32 or float64, or uint16 holding bfloat16


def as_row(logits: Any, vocabulary: int | None = None) -> FloatRow:
    """One row of logits as a 1-D view in its own dtype, cut to the first ``vocabulary`` ids."""
    row = _as_array(logits)
    if row.ndim != 1:
        raise InvalidValue(f"logits must be one row, an array of shape [vocabulary], got shape {list(row.shape)}")
    return _cut(row, vocabulary)


def split_rows(rows: Any) -> list[Any]:
    """The rows of a 2-D array, as they are, or of a list whose rows may differ in dtype and length."""
    if isinstance(rows, list | tuple):
        return list(rows)
    array = _as_array(rows)
    if array.ndim != 2:
        raise InvalidValue(f"rows must be an array of shape [rows, vocabulary] or a list of rows, got shape {list(array.shape)}")
    return [rows[index] for index in range(len(array))]


def as_float64(row: FloatRow) -> npt.NDArray[np.float64]:
    """The row's values in double precision, a copy that the caller owns."""
    if row.dtype == np.uint16:  # bfloat16 is the upper half of a float32
        row = (row.astype(np.uint32) << np.uint32(16)).view(np.float32)
    with np.errstate(invalid="ignore"):  # a signalling NaN is reported with the others
        return np.array(row, np.float64, subok=False)


def check_row(values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """The values of a row that defines a distribution: no NaN, no +inf, not all −inf; else a BrokenRow naming the first id."""
    greatest = values.max()  # carries NaN
    if not greatest < np.inf:
        token = int(np.argmax(~(values < np.inf)))
        raise BrokenRow(f"logits must be finite or -inf, got {values[token]} at token {token}")
    if greatest == -np.inf:
        raise BrokenRow(f"logits must leave at least one token, got -inf at all {values.size}")
    return values


def _cut(row: FloatRow, vocabulary: int | None) -> FloatRow:
    if row.size == 0:
        raise InvalidValue("logits must hold at least one token, got an empty row")
    return row if vocabulary is None else row[: check_integer("vocabulary", vocabulary, 1, row.size)]


def _as_array(logits: Any) -> FloatRow:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(logits, torch.Tensor):
        return _from_torch(torch, logits)
    if isinstance(logits, list | tuple):
        return _from_numbers(logits)
    if not isinstance(logits, np.ndarray):
        raise InvalidType(f"logits must be a NumPy array or a torch CPU tensor, got {type(logits).__name__}")
    if isinstance(logits, np.ma.MaskedArray):
        raise InvalidType("logits must not be a masked array, got one: write -inf where a token is masked")
    if logits.dtype.name == "bfloat16":  # the ml_dtypes extension type
        return logits.view(np.uint16)
    if logits.dtype.kind != "f" or logits.dtype.itemsize > 8:
        raise InvalidType(f"logits must be float16, bfloat16, float32 or float64, got {logits.dtype}")
    return logits


def _from_numbers(numbers: Any) -> FloatRow:
    """A plain list of numbers; bool and nested arrays of other types are refused by their dtype."""
    try:
        array = np.asarray(numbers)
    except (TypeError, ValueError):
        raise InvalidType("logits must be numbers, got a list of unequal or mixed parts") from None
    if array.dtype.kind not in "fi" or array.dtype.itemsize > 8:
        raise InvalidType(f"logits must be numbers, got a list of {array.dtype}")
    if any(isinstance(number, bool | np.bool_) for number in numbers):
        raise InvalidType("logits must be numbers, got a list with a bool")
    return array.astype(np.float64, copy=False)


def _from_torch(torch: Any, tensor: Any) -> FloatRow:
    if tensor.device.type != "cpu":
        raise InvalidType(f"logits must be on the CPU, got a tensor on {tensor.device}: pass logits.cpu()")
    if tensor.requires_grad:
        raise InvalidType("logits must not require grad, got a tensor that does: pass logits.detach()")
    if tensor.layout is not torch.strided:
        raise InvalidType(f"logits must be a dense tensor, got layout {tensor.layout}")
    if tensor.is_conj() or tensor.is_neg():
        raise InvalidType("logits must not be a conjugate or negative view, got one: pass logits.resolve_conj().resolve_neg()")
    if tensor.dtype is torch.bfloat16:
        bits: FloatRow = tensor.view(torch.int16).numpy().view(np.uint16)
        return bits
    if tensor.dtype not in (torch.float16, torch.float32, torch.float64):
        raise InvalidType(f"logits must be float16, bfloat16, float32 or float64, got {tensor.dtype}")
    array: FloatRow = tensor.numpy()
    return array
