"""The loop, on the toy engine: whole replies, streams, several at once, cancellation, prefixes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nalar
from nalar import stages
from nalar.engines.base import LoadOptions, Work
from nalar.engines.toy import load as load_toy
from nalar.errors import EngineFull, InvalidType, InvalidValue, PromptTooLong
from nalar.model import Model

PROMPT = "The lighthouse "


@pytest.fixture
def model() -> Iterator[Model]:
    with nalar.load("toy", sequences=4) as loaded:
        yield loaded


def by_hand(model: Model, ids: list[int], chain: nalar.Chain, seed: int, n: int, sequence: int = 0) -> list[int]:
    """The plain loop, written out: one row at a time from a sequence of its own."""
    loaded = load_toy("toy", LoadOptions())
    engine, sampler = loaded.engine, nalar.Sampler(chain, seed, sequence, ids)
    opened, pending = engine.open(), tuple(ids)
    for _ in range(n):
        row = np.array(engine.step([Work(opened, pending)])[0][-1])
        pending = (sampler.sample(row).token,)
        if pending[0] in model.engine.vocabulary.ends:
            break
    loaded.release()
    return [token for token in sampler.history.output.tolist() if token not in model.engine.vocabulary.ends]


@given(seed=st.integers(0, 2**64 - 1), temperature=st.floats(0, 2), max_tokens=st.integers(1, 60))
def test_generate_draws_what_the_plain_loop_draws(seed: int, temperature: float, max_tokens: int) -> None:
    with nalar.load("toy") as model:
        out = model.generate(PROMPT, seed=seed, temperature=temperature, max_tokens=max_tokens)
        chain = nalar.Chain.from_params(nalar.SamplingParams(temperature=temperature))
        assert list(out.tokens) == by_hand(model, list(PROMPT.encode()), chain, seed, max_tokens)
        assert out.text == bytes(out.tokens).decode("utf-8", "replace")
        assert len(out.logprobs) == len(out.tokens)


@given(seed=st.integers(0, 2**32), stop=st.lists(st.text(min_size=1, max_size=4), max_size=3), min_tokens=st.integers(0, 20))
def test_the_folded_stream_is_generates_answer(seed: int, stop: list[str], min_tokens: int) -> None:
    with nalar.load("toy") as model:
        asked = nalar.SamplingParams(seed=seed, stop=stop, min_tokens=min_tokens, max_tokens=80)
        assert "".join(model.stream(PROMPT, asked)) == model.generate(PROMPT, asked).text


def test_fields_override_params(model: Model) -> None:
    params = nalar.SamplingParams(seed=1, max_tokens=50)
    out = model.generate(PROMPT, params, max_tokens=3, seed=9)
    assert (out.seed, out.tokens) == (9, model.generate(PROMPT, seed=9, max_tokens=3).tokens)
    assert model.generate(PROMPT, params).seed == 1


def test_no_seed_is_fresh_and_told(model: Model) -> None:
    first, second = model.generate(PROMPT, max_tokens=40), model.generate(PROMPT, max_tokens=40)
    assert first.seed != second.seed
    assert model.generate(PROMPT, max_tokens=40, seed=first.seed).tokens == first.tokens


def test_a_chain_replaces_the_law_fields_and_says_so(model: Model) -> None:
    chain = nalar.Chain.parse("temperature(0)")
    assert model.generate(PROMPT, chain=chain, max_tokens=9).tokens == model.generate(PROMPT, temperature=0, max_tokens=9).tokens
    with pytest.raises(InvalidValue, match="chain decides top_p itself, got both"):
        model.generate(PROMPT, chain=chain, top_p=0.9)
    for ask in (model.generate, model.generate_n, model.stream):
        with pytest.raises(InvalidValue, match="chain decides temperature itself, got both"):
            ask(PROMPT, chain=chain, temperature=1.0)  # said aloud, though neutral


def test_min_tokens_guards_a_chain_of_the_callers_own(model: Model) -> None:
    out = model.generate(PROMPT, chain=nalar.Chain([stages.Allow([97, 256])]), min_tokens=5, max_tokens=90, seed=3)
    assert len(out.tokens) >= 5
    assert out.chain.startswith("min_tokens(5, ends=[256, 257]) | ")


@pytest.mark.parametrize(("given", "error"), [
    ({}, InvalidType), ({"prompt": "x", "messages": []}, InvalidType), ({"prompt": ""}, InvalidValue),
    ({"prompt": [0, 261]}, InvalidValue), ({"prompt": [-1]}, InvalidValue), ({"prompt": "x", "n": 2}, InvalidValue),
    ({"prompt": "x", "temprature": 1}, InvalidType), ({"prompt": "x", "logprobs": 262}, InvalidValue),
])  # fmt: skip
def test_a_wrong_request_is_refused_before_anything_runs(model: Model, given: dict[str, object], error: type[Exception]) -> None:
    with pytest.raises(error):
        model.stream(**given)  # type: ignore[arg-type]


@pytest.mark.parametrize("make", [np.array, lambda ids: np.array(ids, np.int32), tuple, iter])
def test_a_prompt_of_ids_may_be_an_array(model: Model, make: Any) -> None:
    ids = list(PROMPT.encode())
    assert model.generate(make(ids), seed=1, max_tokens=9).tokens == model.generate(PROMPT, seed=1, max_tokens=9).tokens


def test_an_empty_array_is_an_empty_prompt(model: Model) -> None:
    with pytest.raises(InvalidValue, match="prompt must hold at least one token"):
        model.generate(np.array([], np.int32))


def test_what_is_no_progress_function_is_refused(model: Model) -> None:
    with pytest.raises(InvalidType, match="progress must be a function"):
        model.generate(PROMPT, progress=3)  # type: ignore[arg-type]


def test_a_cancelled_reply_says_how_long_it_took(model: Model) -> None:
    events, stats = model.events(model.request(PROMPT, seed=1))
    next(events)
    events.close()
    assert stats.seconds >= stats.prompt_seconds > 0


def test_n_above_one_names_generate_n(model: Model) -> None:
    with pytest.raises(InvalidValue, match="generate_n"):
        model.generate("x", n=3)


def test_a_prompt_longer_than_the_context_states_both_lengths() -> None:
    with nalar.load("toy", context=20) as model, pytest.raises(PromptTooLong, match=r"20 tokens, got 21 tokens"):
        model.generate("x" * 21)


def test_the_end_of_the_context_is_a_length_finish() -> None:
    with nalar.load("toy", context=20) as model:
        out = model.generate("x" * 17, ignore_eos=True, seed=1)
        assert (len(out.tokens), out.finish_reason) == (4, "length")
        out = model.generate("x" * 20, ignore_eos=True, seed=1)
        assert (len(out.tokens), out.finish_reason) == (1, "length")


def test_ignore_eos_goes_on_past_every_end(model: Model) -> None:
    out = model.generate(PROMPT, chain=nalar.Chain([stages.Allow([256, 257])]), ignore_eos=True, max_tokens=7)
    assert (len(out.tokens), out.text, out.finish_reason) == (7, "", "length")


def test_stop_ids_end_the_reply_and_are_not_in_it(model: Model) -> None:
    out = model.generate(PROMPT, stop_tokens=[ord("e")], seed=5, max_tokens=200)
    assert "e" not in out.text
    assert out.finish_reason == "stop"


@pytest.mark.parametrize("end", ["end id", "stop id", "stop string"])
def test_min_tokens_holds_against_every_end(model: Model, end: str) -> None:
    fields: dict[str, object] = {"end id": {}, "stop id": {"stop_tokens": [101]}, "stop string": {"stop": ["e", " "]}}[end]
    for seed in range(20):
        events, stats = model.events(model.request(PROMPT, seed=seed, min_tokens=30, max_tokens=60, **fields))
        list(events)
        assert stats.emitted > 30 or stats.emitted == 60


def test_several_streams_on_one_model_do_not_see_each_other(model: Model) -> None:
    alone = [model.generate(f"{PROMPT}{i}", seed=i, max_tokens=50).text for i in range(4)]
    streams = [model.stream(f"{PROMPT}{i}", seed=i, max_tokens=50) for i in range(4)]
    together = ["".join(part) for part in zip(*itertools.zip_longest(*streams, fillvalue=""), strict=True)]
    assert together == alone


def test_more_streams_than_sequences_is_a_clear_error(model: Model) -> None:
    streams = [model.stream(f"{i}{PROMPT}", seed=i) for i in range(5)]
    for stream in streams[:4]:
        next(stream)
    with pytest.raises(EngineFull, match="4"):
        next(streams[4])
    streams[0].close()  # type: ignore[attr-defined]
    assert "".join(model.stream(PROMPT, seed=1, max_tokens=9))


def test_cancelling_frees_the_sequence_at_once(model: Model) -> None:
    for _ in range(20):
        stream = model.stream(PROMPT, seed=1)
        next(stream)
        stream.close()  # type: ignore[attr-defined]
    held = [model.engine.open() for _ in range(4)]
    for sequence in held:
        model.engine.close(sequence)


def test_a_long_prompt_can_be_cancelled_between_its_slices() -> None:
    seen = []

    def progress(done: int, total: int) -> None:
        seen.append((done, total))
        if done >= 1024:
            raise KeyboardInterrupt

    with nalar.load("toy") as model:
        with pytest.raises(KeyboardInterrupt):
            model.generate("x" * 3000, progress=progress)
        assert seen == [(512, 3000), (1024, 3000)]
        held = [model.engine.open() for _ in range(8)]
        assert all(not sequence.tokens for sequence in held)


def test_a_second_turn_reuses_the_first(model: Model) -> None:
    chat = [{"role": "user", "content": "Tell me about the lighthouse"}]
    first = model.generate(messages=chat, seed=1, max_tokens=20)
    chat += [{"role": "assistant", "content": first.text}, {"role": "user", "content": "And the sea?"}]
    second = model.generate(messages=chat, seed=1, max_tokens=20)
    assert second.stats.reused > 30
    with nalar.load("toy") as fresh:
        assert fresh.generate(messages=chat, seed=1, max_tokens=20).tokens == second.tokens


def test_a_users_stage_that_raises_frees_its_sequence_and_hurts_no_other(model: Model) -> None:
    class Fails(stages.Stage):
        def apply(self, candidates: stages.Candidates, context: stages.Context) -> stages.Candidates:  # type: ignore[name-defined]
            if context.history.position == 3:
                raise ZeroDivisionError("mine")
            return candidates

    other = model.stream(PROMPT, seed=2, max_tokens=30)
    begun = next(other)
    with pytest.raises(ZeroDivisionError, match="mine"):
        model.generate(PROMPT, chain=nalar.Chain([Fails()]), seed=1, ignore_eos=True)
    assert begun + "".join(other) == model.generate(PROMPT, seed=2, max_tokens=30).text
    assert len([model.engine.open() for _ in range(3)]) == 3  # one is idle, kept for its prefix
