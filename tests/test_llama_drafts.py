"""Drafts on the real model: several rows in one decode, rejected tokens taken out of the cache, and the tokens of no draft."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from llama_fixture import load_smollm2, needs_model
from nalar import Chain
from nalar.model import Model
from nalar.speculative.drafts import ModelDraft, Suffix

pytestmark = needs_model
LIST = "Fruits: apple, banana, cherry, date.\nAgain: apple, banana, cherry, date.\nAgain: apple, banana,"


@pytest.fixture(scope="module")
def model() -> Iterator[Model]:
    """With rows that do not depend on how many are computed at once: then equality is a promise."""
    loaded = load_smollm2(reproducible=True)
    yield Model(loaded.engine, name=loaded.name)
    loaded.release()


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("draft", ["ngram", Suffix(least=1, length=6)], ids=str)
def test_the_reply_of_no_draft(model: Model, draft: Any, temperature: float) -> None:
    asked: dict[str, Any] = {"seed": 3, "temperature": temperature, "max_tokens": 32, "frequency_penalty": 0.1}
    plain = model.generate(LIST, **asked)
    drafted = model.generate(LIST, draft=draft, **asked)
    assert (drafted.text, drafted.tokens, drafted.logprobs) == (plain.text, plain.tokens, plain.logprobs)
    assert drafted.stats.accepted > 0
    assert drafted.stats.steps < plain.stats.steps
    assert model.generate(LIST, **asked).text == plain.text


def test_the_model_as_its_own_draft_is_always_right(model: Model) -> None:
    """p = q at every position: block verification accepts the whole draft, every time."""
    chain = Chain.parse("temperature(0.9) | top_k(30)")
    draft = ModelDraft(model.engine, chain, length=3)
    stats = model.generate(LIST, seed=5, chain=chain, max_tokens=24, ignore_eos=True, draft=draft).stats
    assert stats.accepted == stats.drafted > 10
    assert np.allclose(stats.acceptance, 1.0)


def test_a_poor_draft_costs_steps_and_nothing_else(model: Model) -> None:
    draft = ModelDraft(model.engine, Chain.parse("temperature(3.0)"), length=2)
    asked: dict[str, Any] = {"seed": 5, "temperature": 0.8, "max_tokens": 12}
    assert model.generate(LIST, draft=draft, rule="follow", **asked).text == model.generate(LIST, **asked).text
