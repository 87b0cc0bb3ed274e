"""The kernels in processes of their own: imports, caches, processors, forks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import nalar

SOURCE = Path(nalar.__file__).parent
DRAW = """
import numpy as np, nalar, sys
random = np.random.default_rng(5)
tokens = []
for chain in (
    "temperature(0.8)", "top_p(0.95)", "temperature(0.7) | top_k(40) | top_p(0.9)", "temperature(1.2) | min_p(0.05)", "top_k(700)",
):
    chain = nalar.Chain.parse(chain)
    for seed in range(30):
        row = random.normal(0, random.choice([0.05, 2.0]), 9000).astype(np.float32)
        tokens.append(nalar.sample(row, chain, nalar.Key(seed)).token)
print(tokens)
"""
SHORT = "import numpy as np, nalar; print(nalar.sample(np.arange(5, dtype=np.float32), nalar.Chain.parse('top_k(2)'), nalar.Key(1)).token)"


def run(code: str, source: Path = SOURCE.parent, **environment: str) -> str:
    """What ``code`` prints in a fresh process."""
    return run_both(code, source, **environment)[0]


def run_both(code: str, source: Path = SOURCE.parent, **environment: str) -> tuple[str, str]:
    around = {**os.environ, "PYTHONPATH": str(source), **environment}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=around)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_importing_nalar_imports_no_numba() -> None:
    code = "import sys, nalar; nalar.Chain.parse('top_k(3)'); print({m.split('.')[0] for m in sys.modules} & {'numba', 'llvmlite'})"
    assert run(code) == "set()\n"


def test_other_processors_draw_the_same_tokens(tmp_path: Path) -> None:
    wanted = run(DRAW)
    for name, features in (("generic", ""), ("haswell", "+avx2,+fma")):
        plain = {"NUMBA_CPU_NAME": name, "NUMBA_CPU_FEATURES": features, "NUMBA_CACHE_DIR": str(tmp_path)}
        assert run(DRAW, **plain) == wanted


def test_the_switch_in_the_environment() -> None:
    code = SHORT + "; import sys; print('numba' in sys.modules)"
    assert run(code, NALAR_KERNELS="off").splitlines()[-1] == "False"


def test_a_changed_part_is_compiled_again(tmp_path: Path) -> None:
    """An edit in any kernel file, not only in the one an entry is written in."""
    shutil.copytree(SOURCE, tmp_path / "src" / "nalar")
    part, cache = tmp_path / "src" / "nalar" / "kernels" / "cut.py", str(tmp_path / "cache")
    code = SHORT.replace("nalar.Key(1)).token", "nalar.Key(1)).logprob")
    first = run(code, tmp_path / "src", NUMBA_CACHE_DIR=cache)
    assert run(code, tmp_path / "src", NUMBA_CACHE_DIR=cache) == first
    changed = part.read_text().replace("    if n <= k:\n        return OK\n", "    if n <= k + 99:\n        return OK\n")
    assert changed != part.read_text()
    part.write_text(changed)
    assert run(code, tmp_path / "src", NUMBA_CACHE_DIR=cache) != first


def test_the_cache_is_used(tmp_path: Path) -> None:
    run(SHORT, NUMBA_CACHE_DIR=str(tmp_path))
    code = SHORT + "; from nalar.kernels import thread; print(sum(thread.loaded().run.stats.cache_hits.values()))"
    assert run(code, NUMBA_CACHE_DIR=str(tmp_path)).splitlines()[-1] == "1"


def test_without_a_writable_place_it_works_and_warns_once() -> None:
    printed = run_both(SHORT, HOME="/proc/nowhere", XDG_CACHE_HOME="", NUMBA_CACHE_DIR="")
    assert printed[1].count("cannot keep its compiled kernels") == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_fork_after_threads_were_used() -> None:
    code = """
import os, numpy as np, nalar, warnings
warnings.simplefilter("ignore")
rows = np.random.default_rng(1).normal(0, 1, (8, 4000)).astype(np.float32)
chain, keys = nalar.Chain.parse("top_p(0.9)"), [nalar.Key(i) for i in range(8)]
wanted = nalar.sample_batch(rows, chain, keys, threads=2).tokens.tolist()
child = os.fork()
if child == 0:
    os._exit(0 if nalar.sample_batch(rows, chain, keys, threads=2).tokens.tolist() == wanted else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert run(code).splitlines()[-1] == "0"


def test_memory_does_not_grow_with_the_vocabulary_after_the_first_call() -> None:
    code = """
import numpy as np, nalar, tracemalloc
row = np.random.default_rng(1).normal(0, 2, 200_000).astype(np.float32)
texts = ("temperature(0)", "temperature(0.8)", "top_k(40)", "top_p(0.95)", "min_p(0.05)", "ban([3]) | top_k(900)")
chains = [nalar.Chain.parse(text) for text in texts]
for chain in 2 * chains: nalar.sample(row, chain, nalar.Key(2))
tracemalloc.start()
for chain in chains: nalar.sample(row, chain, nalar.Key(2))
print(tracemalloc.get_traced_memory()[1] < 50_000)
"""
    assert run(code).splitlines()[-1] == "True"
