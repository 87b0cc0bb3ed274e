"""What the tables of faults share: a case about a law, checked on every path to that law, and a generator that gives extremes on demand."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from nalar import Chain, Distribution, History, Key, Sampler, sample, sample_batch
from nalar import keys as keys_module

__all__ = ["GREATEST", "LEAST", "LawCase", "check_law", "every_path", "log", "random_words", "uniforms"]

LEAST, GREATEST = 0, 2**32 - 1  # words of the generator
SMALL = 2e-12  # a law's probabilities are softmaxes of logarithms: some roundings of 1e-16 each


@dataclass(frozen=True)
class LawCase:
    """A row, a chain and a history, and the law that is right.

    ``right`` maps each token that can be drawn to its weight; the weights are normalised here, so they may be counts, or
    probabilities of a set whose rest was cut.  ``fault`` says which engine did what, ``why`` is the formula of ``right``.
    """

    id: str
    fault: str
    row: Any
    chain: str
    right: Mapping[int, float]
    why: str
    prompt: Sequence[int] = ()
    output: Sequence[int] = ()


def check_law(case: LawCase) -> None:
    """The law is the right one on every path, and neither extreme of the generator leaves it."""
    before = np.array(case.row, copy=True)
    tokens = sorted(case.right)
    weights = np.array([case.right[token] for token in tokens], np.float64)
    for name, law in every_path(case.row, Chain.parse(case.chain), case.prompt, case.output).items():
        assert law.ids.tolist() == tokens, name
        np.testing.assert_allclose(law.probs, weights / weights.sum(), rtol=SMALL, atol=0, err_msg=name)
        assert {law.draw(Key(0, position=0), draw) for draw in ("inverse", "race")} <= set(tokens)
    for word, drawn in (LEAST, tokens[0]), (GREATEST, tokens[-1]):
        with random_words(word):
            assert sample(case.row, Chain.parse(case.chain), Key(0), History(case.prompt, case.output)).token == drawn
    np.testing.assert_array_equal(np.asarray(case.row), before)


def every_path(row: Any, chain: Chain, prompt: Sequence[int] = (), output: Sequence[int] = ()) -> dict[str, Distribution]:
    """The law of one row by each way to ask for it: one code path was fixed and another not, in many a report."""
    key, history = Key(1), History(prompt, output)
    alone = sample(row, chain, key, history, keep_law=True).law
    batch = sample_batch([row, row], chain, [key, Key(2)], [history, History(prompt, output)], keep_law=True).samples
    twice = np.stack([np.asarray(row, None if isinstance(row, np.ndarray) else np.float64)] * 2)
    table = sample_batch(twice, chain, [key, key], [history, history], keep_law=True).samples
    sampler = Sampler(chain, seed=1, prompt=prompt, output=output)
    window = sampler.distributions([row])[0]
    drawn = sampler.sample(row, keep_law=True).law
    named = {
        "distribution": chain.distribution(row, history, key), "sample": alone, "first of a batch": batch[0] and batch[0].law,
        "second of a batch": batch[1] and batch[1].law, "row of a table": table[1] and table[1].law, "window": window, "sampler": drawn,
    }
    return {name: law for name, law in named.items() if law is not None}


def log(probs: Any) -> Any:
    """Logits with these probabilities, float64; −inf where 0."""
    with np.errstate(divide="ignore"):
        return np.log(np.asarray(probs, np.float64))


@contextmanager
def random_words(word: int) -> Iterator[None]:
    """Every word that the generator puts out is ``word``: at 0 the least uniform and noise there can be, at 2³² − 1 the greatest."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keys_module, "philox", lambda counter, key: (word,) * 4)
        patch.setattr(keys_module, "philox_blocks", lambda first, fourth, key: (np.full(fourth.shape, word, np.uint64),) * 4)
        yield


@contextmanager
def uniforms(value: float, noise: Mapping[int, float] | None = None) -> Iterator[None]:
    """Every uniform is ``value``, and so is every token's noise but for the ids in ``noise``."""

    def noise_of(key: Key, ids: Any) -> Any:
        return np.array([(noise or {}).get(token, value) for token in np.asarray(ids).tolist()])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Key, "uniform", lambda key, purpose=None, index=0: value)
        patch.setattr(Key, "noise", noise_of)
        yield
