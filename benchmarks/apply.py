"""What a chain costs when its stages' own ``apply`` runs it: ``python benchmarks/apply.py`` prints the table.

The yardstick is NumPy's ``max`` over the same row: one pass over the logits, the least that any sampler must do.  Every
number is a median, in microseconds; rows change from run to run of the loop, so that no cache keeps an answer.
"""

from __future__ import annotations

import itertools
import platform
import statistics
import sys
import time
from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

import nalar

VOCABULARIES = (32_000, 49_152, 128_256, 262_144)
CHAINS = (
    "identity",
    "temperature(0.8)",
    "top_k(40) | temperature(0.8) | top_p(0.95)",
    "temperature(0.8) | top_p(0.95)",
    "temperature(0.8) | min_p(0.05)",
    "repetition(1.1) | temperature(0.8) | top_k(40) | top_p(0.95)",
)
ROWS = 8  # different rows in turn
SECONDS = 0.4  # spent on each number, after one warm-up


def logits(vocabulary: int) -> list[npt.NDArray[np.float32]]:
    """Rows with the shape of a language model's: a bulk near zero and a few ids far above it."""
    random = np.random.default_rng(vocabulary)
    rows = random.normal(0.0, 2.0, (ROWS, vocabulary)).astype(np.float32)
    likely = random.integers(0, vocabulary, (ROWS, 50))
    np.put_along_axis(rows, likely, random.normal(12.0, 3.0, likely.shape).astype(np.float32), axis=1)
    return list(rows)


def median(call: Callable[[npt.NDArray[np.float32]], object], rows: list[npt.NDArray[np.float32]]) -> float:
    """Median microseconds of ``call`` over the rows in turn."""
    call(rows[0])
    times: list[float] = []
    for row in itertools.cycle(rows):
        start = time.perf_counter()
        call(row)
        times.append(time.perf_counter() - start)
        if sum(times) > SECONDS and len(times) >= 5:
            return 1e6 * statistics.median(times)
    raise AssertionError("unreachable: the rows never end")


def lines(vocabulary: int) -> Iterator[str]:
    rows = logits(vocabulary)
    history = nalar.History(prompt=range(100), output=range(50, 150))
    key = nalar.Key(seed=7)
    least = median(lambda row: row.max(), rows)
    yield f"{vocabulary:>9,}  {'numpy max':<62}{least:>10,.0f}{'1.0':>8}"
    for text in CHAINS:
        chain = nalar.Chain.parse(text)
        law = median(lambda row, chain=chain: chain.distribution(row, history), rows)  # type: ignore[misc]
        drawn = median(lambda row, chain=chain: nalar.sample(row, chain, key=key, history=history), rows)  # type: ignore[misc]
        yield f"{'':>9}  {text:<62}{law:>10,.0f}{law / least:>8,.1f}{drawn:>10,.0f}"


def main() -> None:
    print(f"Python {platform.python_version()}, NumPy {np.__version__}, {platform.machine()}; medians in microseconds a row\n")
    print(f"{'vocabulary':>10} {'chain':<62}{'law':>10}{'/ max':>8}{'sample':>10}")
    for vocabulary in VOCABULARIES:
        for line in lines(vocabulary):
            print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
