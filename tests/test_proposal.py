"""What a draft may claim, and what it may not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import nalar
from nalar import Chain, Distribution, Key, Proposal
from nalar.errors import InvalidType, InvalidValue
from nalar.sampling import Sample

KEY = Key(seed=7, position=3)
LAW = Distribution.from_probs([0.5, 0.5])


def drawn(key: Key, **how: Any) -> Sample:
    return nalar.sample([0.0, 1.0, 2.0], Chain([]), key, keep_law=True, **how)


def test_three_ways() -> None:
    point, raw = Proposal.point([3, 9, 9]), Proposal([1, 0], distributions=[LAW, LAW])
    assert (point.tokens, point.laws, point.start, len(point)) == ((3, 9, 9), None, None, 3)
    assert (raw.tokens, raw.laws, raw.start) == ((1, 0), (LAW, LAW), None)
    samples = [drawn(KEY.draft(i)) for i in range(3)]
    sampled = Proposal.sampled(samples)
    assert sampled.tokens == tuple(sample.token for sample in samples)
    assert sampled.laws == tuple(sample.law for sample in samples)
    assert sampled.start == KEY
    assert repr(point) == "Proposal([3, 9, 9])"
    assert repr(raw) == "Proposal([1, 0], 2 distributions)"


def test_numpy_ids_are_plain_integers() -> None:
    assert [type(token) for token in Proposal.point(np.array([3, 9], np.int64)).tokens] == [int, int]
    assert Proposal(iter([1, 2])).tokens == (1, 2)


def test_empty_proposals() -> None:
    assert len(Proposal.point([])) == len(Proposal.sampled([])) == len(Proposal([], [])) == 0


@pytest.mark.parametrize("draw", ["inverse", "race"])
def test_the_key_of_the_step_comes_with_the_samples(draw: Any) -> None:
    start = replace(KEY, attempt=2)
    assert Proposal.sampled([drawn(start.draft(i), draw=draw) for i in range(2)]).start == start


@pytest.mark.parametrize(
    "keys",
    [
        [KEY],  # the token's own position: biased under block and tree
        [KEY.draft(0), KEY.at(4).draft(0)],
        [KEY.draft(0), KEY.at(4).draft(1)],  # position and row
        [KEY.draft(1)],
        [KEY.draft(0), KEY.draft(2)],
        [KEY.draft(0), KEY.draft(0)],
        [KEY.draft(0), replace(KEY, attempt=1).draft(1)],
        [KEY.draft(0), replace(KEY, seed=8).draft(1)],
        [KEY.draft(0), replace(KEY, sequence=8).draft(1)],
        [replace(KEY, purpose="accept")],
    ],
)
def test_samples_drawn_with_other_keys_are_refused(keys: list[Key]) -> None:
    with pytest.raises(InvalidValue, match=r"samples must be drawn with key\.draft\(0\), key\.draft\(1\), … of one step's start"):
        Proposal.sampled([drawn(key) for key in keys])


def test_samples_without_their_law_are_refused() -> None:
    with pytest.raises(InvalidValue, match="keep_law=True"):
        Proposal.sampled([nalar.sample([0.0, 1.0], Chain([]), KEY.draft(0))])


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda: Proposal.point(3), InvalidType, "tokens must be a list of token ids, got 3"),
        (lambda: Proposal.point("ab"), InvalidType, "tokens must be a list of token ids"),
        (lambda: Proposal.point([1.0]), InvalidType, r"a draft token must be an integer in \[0, 2147483647\], got 1.0"),
        (lambda: Proposal.point([True]), InvalidType, "a draft token must be an integer"),
        (lambda: Proposal.point([-1]), InvalidValue, "a draft token must be an integer"),  # padding is no token
        (lambda: Proposal.point([2**31]), InvalidValue, "a draft token must be an integer"),
        (lambda: Proposal([1, 2], [LAW]), InvalidValue, "distributions must be one for each of the 2 tokens, got 1"),
        (lambda: Proposal([1], [[0.5, 0.5]]), InvalidType, "distributions must be a list of Distributions"),
        (lambda: Proposal([1], LAW), InvalidType, "distributions must be a list of Distributions"),
        (lambda: Proposal.sampled([3]), InvalidType, "samples must be a list of Samples"),
    ],
)
def test_what_is_refused(make: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        make()


def test_a_proposal_is_a_value() -> None:
    assert Proposal.point([1, 2]) == Proposal([1, 2])
    assert hash(Proposal.point([1, 2])) == hash(Proposal([1, 2]))
    with pytest.raises(AttributeError):
        Proposal.point([1]).tokens = (2,)  # type: ignore[misc]
