"""What a draw costs: Nalar, its peers and the limit in one interleaved run; ``python benchmarks/row.py [quick]`` writes results.md.

The limit is NumPy's ``max`` over the same rows: one read of the logits.  Rows are taken in turn, 64 of them, so that they come from
memory, or 16, so that they come from the cache; the limit and Nalar alternate, half a turn apart, so that neither finds a row that
the other has just read.  Peers follow in each round on 16 of the rows.  Medians, with the worst row and the mean beside them.
One thread's times are processor times, a batch's are wall times.

transformers: its own processors on a torch row, then softmax and multinomial.  llama.cpp: its chain through llama-cpp-python's
low-level functions on a candidate array that is filled before the clock starts.  Whichever is not installed is left out.
"""

from __future__ import annotations

import gc
import json
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from peers import llama_cpp, transformers  # beside this file
from rows import KINDS

import nalar
from nalar import kernels

VOCABULARIES = (32_000, 49_152, 128_256, 262_144)
CASES = (  # rows, chain, the goal as a multiple of the limit at 128,256 with 64 rows
    ("llm", "temperature(0)", 1.5),
    ("llm", "temperature(0.8)", 2.1),
    ("llm", "temperature(0.8) | top_k(40)", 1.7),
    ("llm", "temperature(0.8) | top_p(0.95)", 2.5),
    ("real", "temperature(0.8) | top_p(0.95)", 2.5),
    ("peaked", "temperature(0.8) | top_p(0.95)", 2.5),
    ("flat", "temperature(0.8) | top_p(0.95)", 6.0),
    ("llm", "temperature(0.8) | top_k(40) | top_p(0.95)", 1.8),
    ("real", "temperature(0.8) | top_k(40) | top_p(0.95)", 1.8),
    ("llm", "temperature(0.8) | min_p(0.05)", 1.6),
    ("llm", "repetition(1.1) | temperature(0.8) | top_k(40) | top_p(0.95)", 2.7),
)
BATCHES = ("temperature(0)", "temperature(0.8)", "temperature(0.8) | top_p(0.95)", "temperature(0.8) | top_k(40) | top_p(0.95)")
DISTINCT = 1000  # ids under the penalty
QUICK = "quick" in sys.argv[1:]
ROUNDS = 3 if QUICK else 8
Row = np.ndarray[Any, np.dtype[np.float32]]


def clock(call: Callable[[], object]) -> float:
    """Microseconds of this thread's processor time: a pause in which the machine ran something else is not counted."""
    start = time.thread_time_ns()
    call()
    return 1e-3 * (time.thread_time_ns() - start)


def watch(call: Callable[[], object]) -> float:
    """Microseconds on the wall, for what more than one thread does."""
    start = time.perf_counter()
    call()
    return 1e6 * (time.perf_counter() - start)


class Busy:
    """How much of the machine others used while this ran, from /proc/stat."""

    def __init__(self) -> None:
        self.start = self.read()

    @staticmethod
    def read() -> tuple[float, float, float]:
        ticks = [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        used = sum(ticks) - ticks[3] - ticks[4]
        mine = resource.getrusage(resource.RUSAGE_SELF)
        return used / 100, sum(ticks) / 100, mine.ru_utime + mine.ru_stime

    def __str__(self) -> str:
        used, everything, mine = (now - then for now, then in zip(self.read(), self.start, strict=True))
        return f"{100 * max(used - mine, 0) / max(everything, 1e-9):.0f} %"


def measure(kind: str, text: str, vocabulary: int, count: int) -> dict[str, Any]:
    """One line of the table."""
    rows, chain, random = KINDS[kind](vocabulary, count), nalar.Chain.parse(text), np.random.default_rng(1)
    history = nalar.History(prompt=random.choice(vocabulary, DISTINCT, replace=False)) if "repetition" in text else None
    seen = [] if history is None else history.prompt.tolist()
    others = {"llama.cpp": llama_cpp(text, seen, vocabulary), "transformers": transformers(text, seen)}
    times: dict[str, list[float]] = {"limit": [], "nalar": [], **{name: [] for name, peer in others.items() if peer}}
    for row in rows[:8]:
        nalar.sample(row, chain, nalar.Key(1), history)
    before = kernels.counts()
    gc.collect()
    gc.disable()
    for turn in range(ROUNDS):
        for index, row in enumerate(rows):
            far, key = rows[(index + count // 2) % count], nalar.Key(turn, sequence=index)
            times["limit"].append(clock(row.max))
            times["nalar"].append(clock(lambda far=far, key=key: nalar.sample(far, chain, key, history)))  # type: ignore[misc]
        for name, peer in others.items():
            if peer is not None and turn < 2:
                times[name] += [peer(row) for row in rows[:16]]
    gc.enable()
    after = kernels.counts()
    redone = {name: after[name] - before[name] for name in ("double", "apply", "large")}
    about = {"kind": kind, "chain": text, "vocabulary": vocabulary, "rows": count}
    return {**about, "times": times, "redone": redone, "draws": len(times["nalar"])}


def line(found: dict[str, Any], goal: float | None) -> str:
    times = found["times"]
    limit, ours = statistics.median(times["limit"]), statistics.median(times["nalar"])
    mean = statistics.fmean(times["nalar"]) / statistics.fmean(times["limit"])
    low, high = np.percentile(times["nalar"], [10, 90])
    peers = [
        f"{statistics.median(times[name]):,.0f} ({statistics.median(times[name]) / ours:,.1f})" if times.get(name) else "–"
        for name in ("llama.cpp", "transformers")
    ]
    redone = ", ".join(f"{name} {100 * n / found['draws']:.0f} %" for name, n in found["redone"].items() if n) or "–"
    return (
        f"| {found['vocabulary']:,} | {found['rows']} | {found['kind']} | `{found['chain'].replace('|', '→')}` "
        f"| {limit:.1f} | {ours:.1f} ({low:.0f}–{high:.0f}) | **{ours / limit:.2f}** | {mean:.2f} | {max(times['nalar']):.0f} "
        f"| {goal or ''} | {' | '.join(peers)} | {redone} |"
    )


def table() -> Iterator[str]:
    yield "| vocabulary | rows | kind | chain | limit µs | Nalar µs (p10–p90) | × limit | mean × | worst µs | goal × | llama.cpp µs (÷ Nalar) | transformers µs (÷ Nalar) | redone |"  # noqa: E501
    yield "|" + " --- |" * 13
    for vocabulary in (128_256,) if QUICK else VOCABULARIES:
        for count in (64, 16):
            for kind, text, goal in CASES:
                if kind in KINDS:
                    yield line(measure(kind, text, vocabulary, count), goal if (vocabulary, count) == (128_256, 64) else None)


def batches() -> Iterator[str]:
    yield "| vocabulary | rows | chain | limit µs a row | one thread µs a row | × limit | two threads µs a row | rows a second, two ÷ one |"
    yield "|" + " --- |" * 8
    for vocabulary in (128_256,) if QUICK else VOCABULARIES:
        rows = np.stack(KINDS["llm"](vocabulary, 256 if vocabulary <= 128_256 else 64))
        for size in (1, 16, 64, 256):
            for text in BATCHES:
                if size <= len(rows):
                    yield batch_line(rows[:size], text, vocabulary, rows)


def batch_line(rows: Row, text: str, vocabulary: int, others: Row) -> str:
    """Between two calls other rows are read, so that a small batch does not find its own in the cache."""
    chain, keys, size = nalar.Chain.parse(text), [nalar.Key(7, sequence=index) for index in range(len(rows))], len(rows)
    limit, one, two = [], [], []
    for _ in range(max(ROUNDS, 256 // size if not QUICK else 8)):
        others[:16].max()
        limit.append(watch(lambda: [row.max() for row in rows]) / size)
        others[:16].max()
        one.append(watch(lambda: nalar.sample_batch(rows, chain, keys)) / size)
        others[:16].max()
        two.append(watch(lambda: nalar.sample_batch(rows, chain, keys, threads=2)) / size)
    middle = [statistics.median(times) for times in (limit, one, two)]
    return (
        f"| {vocabulary:,} | {size} | `{text.replace('|', '→')}` | {middle[0]:.1f} | {middle[1]:.1f} | {middle[1] / middle[0]:.2f} "
        f"| {middle[2]:.1f} "
        f"| {middle[1] / middle[2]:.2f} |"
    )


def growth() -> Iterator[str]:
    """Small rows: what the Python around a kernel costs.  And the history's length."""
    yield "| vocabulary | distinct ids in the history | chain | µs |"
    yield "| --- | --- | --- | --- |"
    for vocabulary, ids, text in (
        (64, 0, "temperature(0)"), (64, 0, "temperature(0.8)"), (64, 0, "temperature(0.8) | top_k(40) | top_p(0.95)"),
        *((128_256, n, "repetition(1.1) | temperature(0.8) | top_k(40)") for n in (1, 10, 100, 1_000, 10_000, 100_000)),
    ):
        row, chain = KINDS["llm"](vocabulary, 1)[0], nalar.Chain.parse(text)
        history = nalar.History(prompt=range(ids))
        times = [clock(lambda: nalar.sample(row, chain, nalar.Key(1), history)) for _ in range(400)]  # noqa: B023
        yield f"| {vocabulary:,} | {ids:,} | `{text.replace('|', '→')}` | {statistics.median(times):.1f} |"


STARTS = {
    "import nalar": "import nalar",
    "to the first token": "import numpy as np, nalar\n"
    "nalar.sample(np.arange(9000, dtype=np.float32), nalar.Chain.parse('top_k(40) | top_p(0.9)'), nalar.Key(1))",
    "warm-up of everything": "from nalar import kernels; kernels.warmup()",
}
PEAK = """
import json, resource, numpy as np, nalar
row = np.random.default_rng(1).normal(0, 2, 128_256).astype(np.float32)
nalar.sample(row[:300], nalar.Chain.parse('top_p(0.9)'), nalar.Key(1))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for text in ('temperature(0.8)', 'top_k(40)', 'top_p(0.95)', 'top_p(0.95) | top_k(70000)'):
    nalar.sample(row, nalar.Chain.parse(text), nalar.Key(1))
    print(text, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024, 'MiB')
"""


def starts(cache: str) -> Iterator[str]:
    """Processes of their own, with an empty cache and then with a full one."""
    for state in ("cold", "warm"):
        for name, code in STARTS.items():
            begin = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], check=True, env=_environment(cache), stderr=subprocess.DEVNULL)
            yield f"- {name}, {state} cache: {time.perf_counter() - begin:.2f} s (the whole process)"
    done = subprocess.run([sys.executable, "-c", PEAK], check=True, env=_environment(cache), capture_output=True, text=True)
    yield "- memory that a thread's first rows of 128,256 logits added, in turn: " + "; ".join(done.stdout.strip().split("\n"))


def _environment(cache: str) -> dict[str, str]:
    import os

    return {**os.environ, "NUMBA_CACHE_DIR": cache, "PYTHONPATH": str(Path(nalar.__file__).parent.parent)}


def versions() -> str:
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for name in ("numpy", "numba", "torch", "transformers", "llama-cpp-python"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    names = [text.split(":")[1].strip() for text in Path("/proc/cpuinfo").read_text().split("\n") if text.startswith("model name")]
    return f"{names[0]}, {len(names)} virtual cores, Python {platform.python_version()}, {json.dumps(found)[1:-1]}"


def main() -> None:
    import tempfile

    kernels.warmup()
    out = Path(__file__).parent / "results.md"
    parts = [("One row, one thread", table), ("Batches", batches), ("Small rows, long histories", growth)]
    text = [f"# What a draw costs\n\n{versions()}; {time.strftime('%Y-%m-%d %H:%M')}. Printed by `python benchmarks/row.py`.\n\n{__doc__}"]
    for title, lines in parts:
        busy, body = Busy(), []
        for entry in lines():
            print(entry, flush=True)
            body.append(entry)
        text.append(f"## {title}\n\nOther processes took {busy} of the machine meanwhile.\n\n" + "\n".join(body) + "\n")
    with tempfile.TemporaryDirectory() as cache:
        text.append("## Start-up and memory\n\n" + "\n".join(starts(cache)) + "\n")
    out.write_text("\n".join(text))


if __name__ == "__main__":
    main()
