"""The main job on the bundled model: text, log-probabilities, several replies."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import nalar
from nalar.engines.base import Rows, Work
from nalar.engines.weights import find_weights
from nalar.model import Model

PROMPTS = ["Once upon a time", "The capital of France is", "def fibonacci(n):", "Water boils at", "Dear Sir or Madam,"]


def test_greedy_text_is_llama_cpps_own(smollm2: Model) -> None:
    """Same slices, same threads, and flash attention as llama.cpp itself has it (its Python class turns it off)."""
    import llama_cpp

    same: dict[str, Any] = {"n_batch": 63, "n_ubatch": 63, "n_threads": 1, "n_threads_batch": 1, "flash_attn": True}
    peer = llama_cpp.Llama(str(find_weights("smollm2")), n_ctx=512, verbose=False, **same)
    try:
        for prompt in PROMPTS:
            expected = peer.create_completion(prompt, max_tokens=16, temperature=0)["choices"][0]["text"]
            assert smollm2.generate(prompt, temperature=0, max_tokens=16).text == expected
    finally:
        peer.close()


def test_logprobs_are_the_log_softmax_of_the_engines_rows_in_double_precision(smollm2: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[np.ndarray] = []
    step = smollm2.engine.step

    def recording(work: list[Work]) -> list[Rows]:
        borrowed = step(work)
        rows.append(np.array(borrowed[0][-1], np.float64, subok=False))
        return borrowed

    monkeypatch.setattr(smollm2.engine, "step", recording)
    out = smollm2.generate(PROMPTS[0], seed=7, max_tokens=6, logprobs=0, temperature=0.5)
    assert out.raw_logprobs is not None
    for place, token in enumerate(out.tokens):
        for row, told in ((rows[place], out.raw_logprobs[place]), (rows[place] / 0.5, out.logprobs[place])):
            expected = row[token] - row.max() - math.log(math.fsum(np.exp(row - row.max()).tolist()))
            assert told == pytest.approx(expected, rel=1e-12)


def test_logprobs_of_one_row_are_exact(smollm2: Model) -> None:
    row = smollm2.logits(PROMPTS[1])
    drawn = nalar.sample(row, nalar.Chain(), nalar.Key(seed=7), logprobs=3)
    values = row.astype(np.float64)
    total = values.max() + math.log(math.fsum(np.exp(values - values.max()).tolist()))
    assert drawn.raw_logprob == pytest.approx(values[drawn.token] - total, rel=1e-12)
    assert [entry.token for entry in drawn.raw_top] == np.argsort(-values, kind="stable")[:3].tolist()


def test_a_chat_ends_by_itself_and_its_prefix_is_reused(smollm2: Model) -> None:
    chat = [{"role": "user", "content": "Say hello in one word."}]
    first = smollm2.generate(messages=chat, temperature=0, max_tokens=60)
    assert first.finish_reason == "stop"
    assert not set(first.tokens) & smollm2.engine.vocabulary.ends
    chat += [{"role": "assistant", "content": first.text}, {"role": "user", "content": "And goodbye?"}]
    assert smollm2.generate(messages=chat, temperature=0, max_tokens=5).stats.reused > 20


@pytest.mark.xdist_group("smollm2")
def test_generate_n_equals_n_runs_when_rows_are_reproducible() -> None:
    with nalar.load("smollm2", context=256, sequences=4, threads=1, reproducible=True) as model:
        outs = model.generate_n(PROMPTS[0], n=3, seed=7, max_tokens=10, temperature=0.9)
        request = model.request(PROMPTS[0], seed=7, max_tokens=10, temperature=0.9)
        for sequence, out in enumerate(outs):
            events, _ = model.events(replace(request, sequence=sequence))
            assert "".join(event.text for event in events) == out.text
        assert len({out.text for out in outs}) == 3
