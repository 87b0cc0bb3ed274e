"""The bundled model for tests: loaded once a module, and small helpers over its engine."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from nalar.engines.base import Loaded, LoadOptions, Sequence, Work

needs_model = pytest.mark.xdist_group("smollm2")  # never a skip: a suite that passes without the main job is not a pass
STORY = "The old lighthouse keeper wrote a letter every evening, though nobody had answered for years. "


def load_smollm2(**options):
    """SmolLM2 with a small context; ``options`` are those of ``LoadOptions``."""
    from nalar.engines.llama_cpp import load

    return load("smollm2", LoadOptions(**{"context": 1024, "threads": 1, **options}))


@pytest.fixture(scope="module")
def loaded() -> Iterator[Loaded]:
    model = load_smollm2()
    yield model
    model.release()


@pytest.fixture
def engine(loaded):
    """The module's engine; every sequence a test leaves open is closed after it."""
    yield loaded.engine
    for sequence in list(loaded.engine._open.values()):
        loaded.engine.close(sequence)


def rows_of(engine, sequence: Sequence, tokens, rows: int | None = None, chunks: tuple[int, ...] = ()) -> np.ndarray:
    """Teacher-forced rows, copied: after every token, or after the last ``rows``; ``chunks`` are the lengths of the first steps."""
    tokens, parts = list(tokens), []
    for size in (*chunks, len(tokens)):
        part, tokens = tokens[:size], tokens[size:]
        if part:
            wanted = len(part) if rows is None else min(rows, len(part))
            parts.append(np.array(engine.step([Work(sequence, tuple(part), wanted)])[0]))
    return np.concatenate(parts) if rows is None else parts[-1][-rows:]


def fresh_rows(engine, tokens, rows: int | None = None, chunks: tuple[int, ...] = ()) -> np.ndarray:
    """``rows_of`` a sequence opened for it."""
    sequence = engine.open()
    try:
        return rows_of(engine, sequence, tokens, rows, chunks)
    finally:
        engine.close(sequence)
