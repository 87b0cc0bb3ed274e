"""LP: log-probabilities.  Two named views, raw and final; the drawn token has its own fields; JSON is finite; lists are cut together.

Each case is a report of facts/faults.md on another engine, with the value that the report calls right.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nalar
from faults.scripted import END, PROMPT, scripted
from nalar import Chain, Distribution, Key, Sampler, SamplingParams, sample, sample_batch
from nalar.cli.commands import run
from nalar.cli.records import completion_record
from nalar.completion import Completion

INF = math.inf


@dataclass(frozen=True)
class Case:
    """A row, what is asked, and both views of each id: log p, −inf where it cannot be drawn."""

    id: str
    fault: str
    row: list[float]
    ask: dict[str, Any]
    raw: list[float]
    final: list[float]
    why: str


ONE = -math.log1p(math.exp(-1))  # log softmax([1, 0])
CASES = [
    Case("B097-cut-by-top_k", "vLLM: -inf broke the JSON", [2, 1], {"top_k": 1}, [ONE, ONE - 1], [0, -INF], "the Python form says -inf"),
    Case(
        "B099-one-hot-row", "sonar: 9 of 10 top entries were -inf", [-INF] * 6 + [5.0] + [-INF] * 5, {},
        [-INF] * 6 + [0] + [-INF] * 5, [-INF] * 6 + [0] + [-INF] * 5, "one token has it all",
    ),
    Case(
        "B100-raw-and-final", "vLLM: one view, and half the users wanted the other", [1, 0, -1, -2], {"temperature": 0.5, "top_p": 0.9},
        [value - math.log(sum(map(math.exp, [1, 0, -1, -2]))) for value in [1, 0, -1, -2]],
        [-math.log1p(math.exp(-2)), -2 - math.log1p(math.exp(-2)), -INF, -INF], "T=0.5: the first holds 86.5 %, the first two 98.2 %",
    ),
    Case(
        "B101-sum-over-100-percent", "llama.cpp: kept tokens renormalised, dropped ones with old values", [0, math.log(2), math.log(5), -9],
        {"top_p": 0.8}, [math.log(weight / (8 + math.exp(-9))) for weight in (1, 2, 5, math.exp(-9))],
        [-INF, math.log(2 / 7), math.log(5 / 7), -INF], "5/8 < 80 % < 7/8: two stay and sum to 1, the dropped have none",
    ),
    Case(
        "B105-greedy", "mistral.rs: log of the raw logit, positive", [0, 3.72, 3.75], {"temperature": 0},
        [value - math.log(sum(map(math.exp, [0, 3.72, 3.75]))) for value in [0, 3.72, 3.75]], [-INF, -INF, 0], "raw -0.69, not +1.32",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_both_views_are_the_formulas(case: Case) -> None:
    chain, row = Chain.from_params(SamplingParams(**case.ask)), np.array(case.row, np.float64)
    law = chain.distribution(row)
    assert [law.logprob(token) for token in range(row.size)] == pytest.approx(case.final, abs=1e-12), case.why
    assert math.fsum(law.probs) == pytest.approx(1, abs=1e-12)
    for drawn in (
        sample(row, chain, Key(7), logprobs=row.size), Sampler(chain, seed=7).sample(row, logprobs=row.size),
        sample_batch([row], chain, [Key(7)], logprobs=row.size).samples[0],
    ):
        assert drawn is not None
        assert drawn.raw_logprob == pytest.approx(case.raw[drawn.token], abs=1e-12), case.why
        assert drawn.logprob == pytest.approx(case.final[drawn.token], abs=1e-12), case.why
        assert {best.token: best.logprob for best in drawn.raw_top} == pytest.approx(dict(enumerate(case.raw)), abs=1e-12)
        told = {best.token: best.logprob for best in drawn.top}
        assert told == pytest.approx({token: value for token, value in enumerate(case.final) if value > -INF}, abs=1e-12)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.id}-as-json")
def test_json_has_no_number_that_json_does_not_have(case: Case) -> None:
    """B097, B099: −inf is null there; the rest is the same number."""
    model = scripted([np.array(case.row)])
    out = model.generate([0], max_tokens=1, seed=7, ignore_eos=True, logprobs=len(case.row), echo=True, **case.ask)
    record = json.loads(json.dumps(completion_record(out, model.engine.vocabulary.pieces), allow_nan=False))
    told = {best["token"]: best["logprob"] for best in record["raw_top"][0]}
    assert len(told) == len(case.row)
    assert told == pytest.approx({token: None if value == -INF else value for token, value in enumerate(case.raw)}, abs=1e-6)
    assert record["logprobs"] == list(out.logprobs)
    assert -9999.0 not in told.values()


def test_b097_an_impossible_prompt_token() -> None:
    """B097: echo of a token that the row before it forbids: −inf in Python, null in JSON; and top_k=1 changes no prompt logprob."""
    row = np.array([0.0, 0.0, -INF, 0.0])
    out = scripted([row] * 3).generate([0, 2, 1], max_tokens=1, echo=True, logprobs=4, top_k=1)
    assert [told.logprob for told in out.prompt_logprobs] == [None, -INF, pytest.approx(-math.log(3), abs=1e-12)]
    record = completion_record(out, (b"",) * 4)
    assert [told["raw_logprob"] for told in record["prompt_logprobs"]] == [None, None, pytest.approx(-math.log(3), abs=1e-12)]
    json.dumps(record, allow_nan=False)


def test_b103_every_logprob_is_at_most_0(capsys: pytest.CaptureFixture[str]) -> None:
    """B103, llama.cpp and a wrapper: probabilities under the name logprob, and an epsilon to hide log(0)."""
    asked = ["--seed=7", "--max-tokens=30", "--logprobs=261", "--top-k=3", "--temperature=0.7", "--json", "--echo"]
    assert run(["generate", "Once", "--model", "toy", *asked]) == 0
    record = json.loads(capsys.readouterr().out)
    told = [*record["logprobs"], *record["raw_logprobs"]]
    told += [best["logprob"] for tops in (record["top"], record["raw_top"]) for top in tops for best in top]
    told += [token["raw_logprob"] for token in record["prompt_logprobs"][1:]]
    assert len(told) > 30 * 261
    assert all(value is not None and value <= 0 for value in told)
    for top in record["top"]:
        assert math.fsum(math.exp(best["logprob"]) for best in top) <= 1 + 1e-12


@pytest.mark.parametrize("length", [1, 3, 64, 65, 66, 200], ids=lambda length: f"B104-{length}-tokens")
def test_b104_echo_is_aligned_with_the_prompt(length: int) -> None:
    """B104, llama-cpp-python: wrong for a scored prompt.  Right: the first is None, entry i comes from the row before token i."""
    rng = np.random.default_rng(4)
    rows = rng.normal(size=(length, 9)).astype(np.float32)
    prompt = rng.integers(0, 9, length).tolist()
    model = scripted(list(rows))
    request = model.request(prompt, top_k=1, temperature=0.1)
    for told in (model.prompt_logprobs(request), model.generate(prompt, max_tokens=1, echo=True).prompt_logprobs):
        assert [entry.token for entry in told] == prompt
        assert told[0].logprob is None
        expected = [_log_softmax(rows[place - 1].tolist())[prompt[place]] for place in range(1, length)]
        assert [entry.logprob for entry in told[1:]] == pytest.approx(expected, abs=1e-9)


def test_b107_the_drawn_token_has_its_own_fields() -> None:
    """B107, NeMo RL: the first entry of a dict was taken for the sampled one.  Reported: {512: -0.10, 880: -2.30}, sampled 880."""
    row = np.full(1000, -INF)
    row[512], row[880] = -0.10, -2.30
    drawn = next(told for seed in range(200) if (told := sample(row, Chain(), Key(seed), logprobs=2)).token == 880)
    assert (drawn.logprob, drawn.raw_logprob) == (pytest.approx(-2.30, abs=0.01),) * 2
    assert (drawn.rank, drawn.raw_rank, drawn.top[0].token) == (2, 2, 512)


def test_b108_no_magic_numbers() -> None:
    """B108, in the library (the server's −9999.0 is the design's): None where there is none, the real value outside the top list."""
    row = np.array([5.0, 4.0, 3.0, 0.0])
    out = scripted([row] * 2).generate([1, 0], max_tokens=1, logprobs=2, echo=True, banned_tokens=[0, 1, 2])
    assert (out.prompt_logprobs[0].logprob, out.prompt_logprobs[0].rank, out.prompt_logprobs[0].top) == (None, None, ())
    assert (out.tokens, out.logprobs) == ((3,), (0.0,))
    assert out.raw_logprobs == (pytest.approx(_log_softmax(row.tolist())[3], abs=1e-9),), "4th of 4, outside the 2 best: its own value"
    assert [best.token for best in out.raw_top[0]] == [0, 1]


def test_b109_ids_and_logprobs_are_trimmed_together() -> None:
    """B109, TensorRT-LLM: ids were trimmed and logprobs not.  A stop string of 2 tokens at the end of 5: 3 of each."""
    model = scripted([b"a", b"b", b"c", b"STO", b"P", b"d"])
    out = model.generate(PROMPT, stop="STOP", logprobs=2, temperature=0)
    assert [len(each) for each in every_list(out)] == [3] * 6
    assert out.text == "abc"


def test_b112_many_logprobs_are_arrays() -> None:
    """B112, vLLM: Python time for each entry of each token.  Right: an array form with no objects; 150,000 ids, all of them."""
    row = np.random.default_rng(1).normal(size=150_000).astype(np.float32)
    law, raw = sample(row, Chain.parse("temperature(0.7)"), Key(1), keep_law=True).law, Chain().distribution(row)
    for view in (law, raw):
        assert view is not None
        assert (view.ids.dtype, view.logprobs.dtype, view.logprobs.shape) == (np.int32, np.float64, (150_000,))


def test_b112_a_long_top_list_is_not_looked_up_entry_by_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search for each entry cost 5 s a token at 150,000 entries.  Only the drawn token is looked up; the list comes from arrays."""
    asked: list[int] = []
    plain = Distribution.logprob
    monkeypatch.setattr(Distribution, "logprob", lambda law, token: (asked.append(token), plain(law, token))[1])
    drawn = sample(np.linspace(0, 1, 500), Chain(), Key(1), logprobs=500)
    assert len(drawn.top) == len(drawn.raw_top) == 500
    assert set(asked) <= {drawn.token}


# --- the rule, once for all -------------------------------------------------------------------------------------------


def _log_softmax(row: list[float]) -> list[float]:
    greatest = max(row)
    total = math.log(math.fsum(math.exp(value - greatest) for value in row))
    return [value - greatest - total for value in row]


def _rank(values: list[float], token: int) -> int:
    return 1 + sum(value > values[token] or (value == values[token] and other < token) for other, value in enumerate(values))


def every_list(out: Completion) -> list[tuple[Any, ...]]:
    return [out.tokens, out.logprobs, out.raw_logprobs or (), out.top or (), out.raw_top or (), out.samples]


PIECES = [b"a", b"b", b"ab", b"\n", b"", b"\xc3", b"\xa9", END]


@given(
    rows=st.lists(st.lists(st.integers(-64, 64), min_size=12, max_size=12), min_size=6, max_size=6), seed=st.integers(0, 99),
    temperature=st.sampled_from([0, 0.3, 1, 2.5]), top_k=st.integers(0, 12), top_p=st.sampled_from([0.3, 0.9, 1]), best=st.integers(0, 12),
    stop=st.lists(st.sampled_from(["a", "ab", "bb", "é", "\n"]), max_size=2),
)
def test_views_are_double_precision_formulas_and_lists_are_cut_together(
    rows: list[list[int]], seed: int, temperature: float, top_k: int, top_p: float, best: int, stop: list[str]
) -> None:
    """raw = x − log Σ exp x over all; final = x/T − log Σ exp x/T over what can be drawn; one entry a token of the text, no more."""
    script = [np.array(row) / 8 for row in rows]  # eighths are exact in float32
    known = dict(enumerate([*PIECES[:4], b"c", *PIECES[5:7], b"d"], start=4))
    model = scripted(script, pieces=known)
    ask: dict[str, Any] = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "stop": stop}
    out = model.generate(PROMPT, max_tokens=6, seed=seed, logprobs=best, **ask)
    assert {len(each) for each in every_list(out)} == {len(out.tokens)}
    joined = b"".join(model.engine.vocabulary.pieces[token] for token in out.tokens)
    assert joined.startswith(out.text.encode("utf-8", "surrogateescape").split("\ufffd".encode())[0])
    chain = Chain.from_params(SamplingParams(**ask))
    for row, drawn in zip(script, out.samples, strict=False):
        raw, law = _log_softmax(row.tolist()), chain.distribution(row)
        left = law.ids.tolist()
        scaled = [0.0] if temperature == 0 else _log_softmax([row[token] / temperature for token in left])
        final = dict(zip(left, scaled, strict=True))
        assert [drawn.raw_logprob, drawn.logprob] == pytest.approx([raw[drawn.token], final[drawn.token]], abs=1e-9)
        assert drawn.raw_rank == _rank(row.tolist(), drawn.token)
        assert drawn.rank == _rank([row[token] if token in final else -INF for token in range(12)], drawn.token)
        for told, values in ((drawn.raw_top, dict(enumerate(raw))), (drawn.top, final)):
            order = sorted(values, key=lambda token: (-row[token], token))[:best]
            assert [(entry.token, entry.rank) for entry in told] == list(zip(order, range(1, best + 1), strict=False))
            assert [entry.logprob for entry in told] == pytest.approx([values[token] for token in order], abs=1e-9)


def test_asking_for_logprobs_changes_no_token() -> None:
    with nalar.load("toy") as model:
        plain, told = (model.generate("The ", seed=7, max_tokens=20, logprobs=logprobs) for logprobs in (None, 5))
    assert (plain.tokens, plain.logprobs, plain.raw_logprobs) == (told.tokens, told.logprobs, None)
