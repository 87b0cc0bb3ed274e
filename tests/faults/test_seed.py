"""SEED: seeds and reproducibility.

Rule: a counter-based stream keyed by (seed, sequence, position); no seed is fresh entropy; a seed never changes T; n > 1 gives
distinct streams.  Each case is a report of facts/faults.md on another engine, with the value that the report calls right.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nalar
from faults.laws import uniforms
from nalar import Chain, History, Key, Sampler, SamplingParams, sample
from nalar.completion import Completion, fold
from nalar.distribution import DRAWS, Draw
from nalar.errors import BrokenRow, InvalidValue
from nalar.generate import Request
from strategies import Case, cases

FLAT = np.zeros(8)
WIDE = {"temperature": 1e6, "ignore_eos": True, "max_tokens": 20}  # 261 ids, all nearly equal: two replies agree once in 261²⁰


def drawn_in_new_process(seed: int | None) -> dict[str, Any]:
    """Tokens of a process of its own, with other threads drawing all the while."""
    script = f"""
import json, threading, numpy as np, nalar
from nalar.stages import Temperature
rows, done = np.zeros((4, 300)), threading.Event()
def noise():
    while not done.is_set(): nalar.sample_batch(rows, nalar.Chain(), [nalar.Key(i) for i in range(4)], threads=2)
threads = [threading.Thread(target=noise) for _ in range(2)]
for thread in threads: thread.start()
told = {{}}
for draw in ("inverse", "race"):
    sampler = nalar.Sampler(nalar.Chain([Temperature(0.5)]), seed={seed}, draw=draw)
    told[draw] = [sampler.sample(np.sin(np.arange(300.0))).token for _ in range(20)]
with nalar.load("toy") as model: told["reply"] = model.generate("The ", temperature=0.5, seed={seed}, max_tokens=20).text
done.set()
print(json.dumps(told))
"""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "random"}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, timeout=60, env=env)
    told: dict[str, Any] = json.loads(done.stdout)
    return told


@pytest.mark.parametrize("draw", DRAWS, ids="B017-greedy-{}".format)
def test_a_seed_does_nothing_at_temperature_0(draw: Draw) -> None:
    """Ollama's documentation told users to set T = 0 and a seed, and it changed nothing.  Right: equal for all seeds, the argmax."""
    row, greedy = [0.0, 2.0, 1.99], Chain.from_params(SamplingParams(temperature=0))
    assert {sample(row, greedy, Key(seed), draw=draw).token for seed in range(1, 11)} == {1}
    with nalar.load("toy") as model:
        assert len({model.generate("The ", temperature=0, seed=seed, max_tokens=20).text for seed in range(1, 11)}) == 1


@pytest.mark.parametrize("draw", DRAWS, ids="B018-seed-is-not-greedy-{}".format)
def test_a_seed_does_not_change_the_law(draw: Draw) -> None:
    """Ollama: giving a seed silently made decoding greedy.  Right: several ids; 50 equal ones out of 8 have chance 8⁻⁴⁹."""
    assert len({sample(FLAT, Chain(), Key(seed), draw=draw).token for seed in range(1, 51)}) > 1
    with nalar.load("toy") as model:
        asked = {"temperature": 0.7, "top_p": 0.9}
        assert model.request("The ", seed=5, **asked).chain == model.request("The ", **asked).chain
        assert len({model.generate("The ", seed=seed, **WIDE).text for seed in range(5)}) == 5


@pytest.mark.parametrize("seed", [123], ids=["B019-two-processes"])
def test_the_same_seed_twice(seed: int) -> None:
    """vLLM, asked most often: how to get the same output twice.  Right: equal, in fresh processes, with threads running."""
    first, second = drawn_in_new_process(seed), drawn_in_new_process(seed)
    assert first == second
    sampler = Sampler(Chain.parse("temperature(0.5)"), seed)
    assert first["inverse"] == [sampler.sample(np.sin(np.arange(300.0))).token for _ in range(20)]


@pytest.mark.parametrize("seed", [None], ids=["B026-no-seed-two-processes"])
def test_no_seed_is_fresh_entropy(seed: None) -> None:
    """1bit-MONSTER: rand() without srand(), so every process gave the same text.  Right: different (two seeds agree once in 2⁶⁴)."""
    first, second = drawn_in_new_process(seed), drawn_in_new_process(seed)
    assert all(first[draw] != second[draw] for draw in DRAWS)
    with nalar.load("toy") as model:
        replies = [model.generate("The ", **WIDE) for _ in range(3)]
    assert len({reply.seed for reply in replies}) == len({reply.text for reply in replies}) == 3


def replies(n: int, **asked: Any) -> list[tuple[int, ...]]:
    with nalar.load("toy") as model:
        return [tuple(drawn.token for drawn in reply.samples) for reply in model.generate_n("The ", n=n, **WIDE, **asked)]


@pytest.mark.parametrize(
    ("seed", "n"), [pytest.param(1, 4, id="B021-four-different"), pytest.param(1, 10, id="B022-seed-with-n-10")]
)
def test_n_replies_of_one_seed(seed: int, n: int) -> None:
    """vLLM: n > 1 with a seed gave n equal replies; Together refused it.  Right: n different ones, reproducible, the first 2 of n the
    same as n = 2."""
    drawn = replies(n, seed=seed)
    assert len(set(drawn)) == n
    assert drawn == replies(n, seed=seed)
    assert drawn[:2] == replies(2, seed=seed)


@pytest.mark.parametrize("seed", [2**64 - 1], ids=["B023-the-last-seed"])
def test_streams_do_not_walk_from_seed_to_seed(seed: int) -> None:
    """Unsloth: seed + i for choice i walks onto the sentinels −2, −1, 0 for "random".  Right: no choice is random; and the second of the
    last seed is not the first of seed 0, as it would be if seeds were added."""
    drawn = replies(2, seed=seed)
    assert drawn == replies(2, seed=seed)
    assert drawn[1] != replies(1, seed=0)[0]
    assert drawn[0] != drawn[1]


@pytest.mark.parametrize("seed", [-2, -1, 2**64], ids="B023-no-sentinel-{}".format)
def test_a_seed_is_a_number_and_not_a_sentinel(seed: int) -> None:
    """Unsloth, again.  design.md wins over the report's "seed = −2, n = 3 works": a seed is in [0, 2⁶⁴), all else is an error."""
    with pytest.raises(InvalidValue, match="seed must be an integer in"):
        SamplingParams(seed=seed, n=3)
    with pytest.raises(InvalidValue, match="seed must be an integer in"):
        Key(seed)


@pytest.mark.parametrize("draw", DRAWS, ids="B025-fifty-steps-{}".format)
def test_steps_of_one_seed_differ(draw: Draw) -> None:
    """tpu-inference: the same key each step, so no variation.  Right: 50 steps on a flat row of 8 are not all equal (8⁻⁴⁹)."""
    sampler = Sampler(Chain(), seed=1, draw=draw)
    assert len({sampler.sample(FLAT).token for _ in range(50)}) > 1
    assert len({Key(1, position=position).uniform() for position in range(50)}) == 50


@pytest.mark.parametrize("n", [3], ids=["B027-one-by-one"])
def test_n_replies_are_n_requests(n: int) -> None:
    """vLLM: are n samples independent, and can single requests reproduce them?  Right: the documented derivation does, sequence i of the
    same seed (design.md: n > 1 uses sequence 0 … n − 1)."""

    def alone(model: Any, request: Request) -> Completion:
        events, stats = model.events(request)
        return fold(events, seed=request.seed, chain=str(request.chain), stats=stats)

    with nalar.load("toy") as model:
        together = model.generate_n("The ", n=n, seed=9, **WIDE)
        request = model.request("The ", seed=9, **WIDE)
        assert [alone(model, replace(request, sequence=index)).text for index in range(n)] == [reply.text for reply in together]


@given(cases(), st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 4), st.sampled_from(DRAWS))
def test_rule(case: Case, seed: int, sequence: int, draw: Draw) -> None:
    """A draw is a function of (law, seed, sequence, position): the sampler's tokens are those of the keys written out; the seed is not
    in the law; and neighbours along each axis have uniforms of their own."""
    try:
        laws = [case.chain.distribution(case.row, case.history, key) for key in (None, Key(seed, sequence), Key(seed ^ 1))]
    except BrokenRow:
        return  # a chain that leaves nothing has no draws
    assert all(law.ids.tolist() == laws[0].ids.tolist() and law.probs.tolist() == laws[0].probs.tolist() for law in laws)
    sampler, history = Sampler(Chain(), seed, sequence, draw=draw), History()
    for position in range(3):
        key = Key(seed, sequence, position)
        drawn = sample(case.row, Chain(), key, history, draw=draw)
        assert drawn == sample(case.row, Chain(), Key(seed, sequence), history, draw=draw) == sampler.sample(case.row)
        history.append(drawn.token)
    near = [Key(seed, sequence + s, p, a) for s in range(3) for p in range(3) for a in range(3)]
    near += [Key(seed ^ 1 << bit, sequence, 0) for bit in (0, 31, 32, 63)]
    assert len({key.uniform() for key in near}) == len(near)
    assert len({float(value) for key in near for value in key.noise(np.arange(4))}) == 4 * len(near)


def test_the_streams_tests_can_fail() -> None:
    """The broken variant: a generator that forgets its key gives equal replies, and "not all equal" notices."""
    with uniforms(0.4):
        assert len(set(replies(4, seed=1))) == 1
