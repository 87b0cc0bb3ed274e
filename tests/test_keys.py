"""Keys: the published vectors, the documented counter layout worked out by hand, and golden tokens that no release may change.

The generator here is a second Philox, written from the paper with 16-bit limbs, that shares nothing with the package.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import nalar.keys
from nalar import Distribution, Key
from nalar.errors import InvalidType, InvalidValue
from nalar.keys import STREAM_VERSION, fresh_seed, philox

PURPOSE_NUMBERS = {"draw": 0, "accept": 1, "recover": 2, "draft": 3, "coin": 4, "noise": 5}
ONES = 2**32 - 1

VECTORS = [  # Random123 1.14, tests/kat_vectors: philox4x32 10
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((ONES,) * 4, (ONES,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344), (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]  # fmt: skip


def multiplied(a: int, b: int) -> tuple[int, int]:
    """High and low word of a 32 × 32-bit product, by 16-bit limbs."""
    a1, a0, b1, b0 = a >> 16, a & 0xFFFF, b >> 16, b & 0xFFFF
    middle = a1 * b0 + (a0 * b0 >> 16)
    other = a0 * b1 + (middle & 0xFFFF)
    return a1 * b1 + (middle >> 16) + (other >> 16), (other & 0xFFFF) << 16 | a0 * b0 & 0xFFFF


def by_hand(counter: tuple[int, ...], key: tuple[int, ...]) -> tuple[int, ...]:
    """Philox 4x32-10 (Salmon et al. 2011, section 3.3)."""
    left0, right0, left1, right1 = counter
    for turn in range(10):
        round_key = [(word + turn * weyl) % 2**32 for word, weyl in zip(key, (0x9E3779B9, 0xBB67AE85), strict=True)]
        high0, low0 = multiplied(0xD2511F53, left0)
        high1, low1 = multiplied(0xCD9E8D57, left1)
        left0, right0, left1, right1 = high1 ^ right0 ^ round_key[0], low1, high0 ^ right1 ^ round_key[1], low0
    return left0, right0, left1, right1


def words(key: Key, purpose: str, index: int) -> tuple[int, ...]:
    """The block that the documented layout gives, field by field."""
    counter = (key.position or 0, key.sequence, key.attempt * 2**16 + key.row, PURPOSE_NUMBERS[purpose] * 2**28 + index)
    return by_hand(counter, (key.seed % 2**32, key.seed // 2**32))


def fraction(high: int, low: int) -> Fraction:
    return Fraction((high >> 5) * 2**26 + (low >> 6), 2**53)


def noise_by_hand(key: Key, token: int, purpose: str = "noise") -> Fraction:
    block = words(key, purpose, token // 2)
    return min(fraction(*block[2 * (token % 2) :][:2]) + Fraction(1, 2**54), 1 - Fraction(1, 2**53))


@st.composite
def full_keys(draw: st.DrawFn) -> Key:
    def integers(bits: int) -> st.SearchStrategy[int]:
        return st.integers(0, 3) | st.integers(0, 2**bits - 1) | st.just(2**bits - 1)

    return Key(draw(integers(64)), draw(integers(32)), draw(integers(32)), draw(integers(16)), row=draw(integers(16)))


@pytest.mark.parametrize(("counter", "key", "block"), VECTORS)
def test_the_published_vectors(counter: Any, key: Any, block: Any) -> None:
    assert philox(counter, key) == by_hand(counter, key) == block


@settings(max_examples=30)
@given(st.tuples(*[st.integers(0, ONES)] * 4), st.tuples(*[st.integers(0, ONES)] * 2))
def test_scalar_and_vectorised_philox_agree(counter: Any, key: Any) -> None:
    fourth = np.array([counter[3], 0, ONES, 5], np.uint64)
    columns = nalar.keys.philox_blocks(counter[:3], fourth, key)
    for place, word in enumerate(fourth.tolist()):
        expected = by_hand((*counter[:3], word), key)
        assert tuple(int(column[place]) for column in columns) == expected == philox((*counter[:3], word), key)


@given(full_keys(), st.sampled_from(sorted(PURPOSE_NUMBERS)), st.integers(0, 2**28 - 1))
def test_a_uniform_is_the_documented_function_of_its_key(key: Key, purpose: Any, index: int) -> None:
    expected = fraction(*words(key, purpose, index)[:2])
    assert Fraction(key.uniform(purpose, index)) == expected
    assert Fraction(key.uniform()) == fraction(*words(key, "draw", 0)[:2])
    assert Fraction(key.coin(index)) == fraction(*words(key, "coin", index)[:2])


@given(full_keys(), st.lists(st.integers(0, 300_000) | st.integers(0, 2**29 - 1), min_size=1, max_size=6))
def test_noise_is_the_documented_function_of_key_and_token(key: Key, tokens: list[int]) -> None:
    tokens += [0, 1, 299_999]
    noise = key.noise(np.array(tokens, np.int32))
    assert [Fraction(value) for value in noise.tolist()] == [Fraction(float(noise_by_hand(key, token))) for token in tokens]
    assert [key.noise(np.array([token]))[0] for token in tokens] == noise.tolist()


@given(full_keys(), st.integers(0, 2**16 - 1))
def test_a_draft_key_is_the_steps_key_with_a_row_and_a_purpose_of_its_own(key: Key, index: int) -> None:
    draft = key.draft(index)
    assert draft == Key(key.seed, key.sequence, key.position, key.attempt, row=index, purpose="draft")
    assert Fraction(draft.uniform()) == fraction(*words(draft, "draft", 0)[:2])
    assert draft.noise(np.array([7]))[0] == float(noise_by_hand(draft, 7, "draft"))
    assert draft.noise(np.array([7]))[0] != key.noise(np.array([7]))[0]


@pytest.mark.parametrize("purpose", PURPOSE_NUMBERS)
def test_a_place_in_a_speculative_step_needs_the_step_s_position(purpose: Any) -> None:
    with pytest.raises(InvalidValue, match=f"position must be .*'{purpose}'.*got None"):
        Key(7).place(0, purpose)
    with pytest.raises(InvalidValue, match=r"position must be .*got None"):
        Key(7).draft(0)


def test_what_is_no_purpose_or_no_id_is_refused_by_name() -> None:
    with pytest.raises(InvalidValue, match=r"purpose must be one of 'draw', .*got 'dice'"):
        Key(7).uniform("dice")  # type: ignore[arg-type]
    with pytest.raises(InvalidType, match=r"ids must be token ids \(integers\), got float64"):
        Key(7).noise(np.array([1.0]))  # type: ignore[arg-type]


def test_row_and_purpose_are_given_by_name() -> None:
    with pytest.raises(TypeError, match="positional"):
        Key(7, 0, 0, 0, 3)  # type: ignore[misc]


@settings(max_examples=200)
@given(full_keys(), full_keys(), st.tuples(*[st.sampled_from(sorted(PURPOSE_NUMBERS))] * 2), st.tuples(*[st.integers(0, 2**28 - 1)] * 2))
def test_distinct_keys_never_give_the_same_counter(first: Key, second: Key, purposes: tuple[Any, Any], indices: tuple[int, int]) -> None:
    assume((first, purposes[0], indices[0]) != (second, purposes[1], indices[1]))
    with mock.patch.object(nalar.keys, "philox", return_value=(0, 0, 0, 0)) as generator:
        first.uniform(purposes[0], indices[0])
        second.uniform(purposes[1], indices[1])
    (one, seed_one), (two, seed_two) = (call.args for call in generator.call_args_list)
    assert (one, seed_one) != (two, seed_two)
    # Stronger: the fields can be read back from the counter, so no two keys of any kind can collide.
    names = {number: name for name, number in PURPOSE_NUMBERS.items()}
    assert (one[0], one[1], one[2] >> 16, one[2] % 2**16) == (first.position, first.sequence, first.attempt, first.row)
    assert (names[one[3] >> 28], one[3] % 2**28, seed_one[0] + (seed_one[1] << 32)) == (purposes[0], indices[0], first.seed)
    assert all(0 <= word <= ONES for word in (*one, *seed_one))


@pytest.mark.parametrize(("word", "expected"), [(0, 2.0**-54), (ONES, 1 - 2.0**-53)])
def test_noise_lies_strictly_between_0_and_1_at_the_extreme_words(word: int, expected: float) -> None:
    def stuck(first: Any, fourth: Any, key: Any) -> Any:
        del first, key
        return (np.full(fourth.shape, word, np.uint64),) * 4

    with mock.patch.object(nalar.keys, "philox_blocks", stuck):
        noise = Key(1).noise(np.array([0, 1, 299_999]))
        token = Distribution.from_probs([0.25, 0.75]).draw(Key(1, position=0), "race")
    assert noise.tolist() == [expected] * 3
    assert 0 < expected < 1
    assert np.isfinite(-np.log(-np.log(noise))).all()
    assert token == 1


@pytest.mark.parametrize(("word", "expected"), [(0, 0.0), (ONES, 1 - 2.0**-53)])
def test_a_uniform_is_at_least_0_and_below_1_at_the_extreme_words(word: int, expected: float) -> None:
    with mock.patch.object(nalar.keys, "philox", return_value=(word,) * 4):
        assert Key(1).uniform() == expected < 1


RANGES = {"seed": 64, "sequence": 32, "position": 32, "attempt": 16, "row": 16}


@pytest.mark.parametrize("name", RANGES)
def test_a_field_outside_its_range_is_an_error_naming_argument_range_and_value(name: str) -> None:
    top = 2 ** RANGES[name] - 1
    assert getattr(Key(**{"seed": 1} | {name: top}), name) == top
    for value in (-1, top + 1, 2**64):
        with pytest.raises(InvalidValue, match=rf"^{name} must be an integer in \[0, {top}\], got {value}$"):
            Key(**{"seed": 1} | {name: value})


@pytest.mark.parametrize("name", RANGES)
@pytest.mark.parametrize("value", [True, np.True_, 1.0, np.float64(2), "3", (1,)])
def test_a_field_of_the_wrong_type_is_an_error_naming_argument_and_value(name: str, value: Any) -> None:
    with pytest.raises(InvalidType, match=rf"^{name} must be an integer in .*, got ") as caught:
        Key(**{"seed": 1} | {name: value})
    assert isinstance(caught.value, nalar.NalarError)
    assert str(caught.value).endswith(repr(value))


def test_the_seed_must_be_a_number() -> None:
    with pytest.raises(InvalidType, match="seed must be an integer"):
        Key(None)  # type: ignore[arg-type]
    assert Key(np.uint64(2**64 - 1)).seed == 2**64 - 1  # type: ignore[arg-type]
    assert all(0 <= fresh_seed() < 2**64 for _ in range(5))
    assert fresh_seed() != fresh_seed()


def test_an_unknown_purpose_is_an_error() -> None:
    with pytest.raises(InvalidValue, match=r"purpose must be one of 'draw', 'accept', .*, got 'bias'"):
        Key(1, purpose="bias")  # type: ignore[arg-type]


def test_an_index_outside_its_range_is_an_error() -> None:
    for index in (-1, 2**28):
        with pytest.raises(InvalidValue, match=rf"index must be an integer in \[0, {2**28 - 1}\], got {index}"):
            Key(1).uniform("coin", index)
    with pytest.raises(InvalidValue, match=r"in \[0, 65535\], got 65536"):
        Key(1, position=0).draft(2**16)


# --- golden tokens ---------------------------------------------------------------------------------------------------

LAWS = {
    "dyadic": ([0.5, 0.25, 0.125, 0.125], [0, 1, 2, 3]),
    "thirds": ([0.5, 0.3, 0.2], [0, 1, 2]),
    "sparse": ([0.1, 0.2, 0.3, 0.4], [5, 17, 32_000, 299_999]),
    "even": ([1 / 64] * 64, list(range(64))),
}

# law, draw, (seed, sequence, position, attempt) → token.  Changing any of these changes every user's replies: see STREAM_VERSION.
GOLDEN = [
    ("dyadic", "inverse", (0, 0, 0, 0), 0),
    ("dyadic", "inverse", (7, 0, 0, 0), 3),
    ("dyadic", "inverse", (7, 0, 1, 0), 0),
    ("dyadic", "inverse", (7, 1, 0, 0), 0),
    ("dyadic", "inverse", (7, 0, 0, 1), 0),
    ("dyadic", "inverse", (18446744073709551615, 0, 5, 0), 0),
    ("dyadic", "inverse", (4294967296, 3, 4294967295, 2), 0),
    ("dyadic", "inverse", (123456789, 4294967295, 1000, 65535), 0),
    ("dyadic", "race", (0, 0, 0, 0), 0),
    ("dyadic", "race", (7, 0, 0, 0), 0),
    ("dyadic", "race", (7, 0, 1, 0), 3),
    ("dyadic", "race", (7, 1, 0, 0), 2),
    ("dyadic", "race", (7, 0, 0, 1), 0),
    ("dyadic", "race", (18446744073709551615, 0, 5, 0), 0),
    ("dyadic", "race", (4294967296, 3, 4294967295, 2), 2),
    ("dyadic", "race", (123456789, 4294967295, 1000, 65535), 1),
    ("thirds", "inverse", (0, 0, 0, 0), 0),
    ("thirds", "inverse", (7, 0, 0, 0), 2),
    ("thirds", "inverse", (7, 0, 1, 0), 0),
    ("thirds", "inverse", (7, 1, 0, 0), 0),
    ("thirds", "inverse", (7, 0, 0, 1), 0),
    ("thirds", "inverse", (18446744073709551615, 0, 5, 0), 0),
    ("thirds", "inverse", (4294967296, 3, 4294967295, 2), 0),
    ("thirds", "inverse", (123456789, 4294967295, 1000, 65535), 0),
    ("thirds", "race", (0, 0, 0, 0), 0),
    ("thirds", "race", (7, 0, 0, 0), 1),
    ("thirds", "race", (7, 0, 1, 0), 0),
    ("thirds", "race", (7, 1, 0, 0), 2),
    ("thirds", "race", (7, 0, 0, 1), 0),
    ("thirds", "race", (18446744073709551615, 0, 5, 0), 0),
    ("thirds", "race", (4294967296, 3, 4294967295, 2), 2),
    ("thirds", "race", (123456789, 4294967295, 1000, 65535), 1),
    ("sparse", "inverse", (0, 0, 0, 0), 32000),
    ("sparse", "inverse", (7, 0, 0, 0), 299999),
    ("sparse", "inverse", (7, 0, 1, 0), 32000),
    ("sparse", "inverse", (7, 1, 0, 0), 17),
    ("sparse", "inverse", (7, 0, 0, 1), 17),
    ("sparse", "inverse", (18446744073709551615, 0, 5, 0), 32000),
    ("sparse", "inverse", (4294967296, 3, 4294967295, 2), 17),
    ("sparse", "inverse", (123456789, 4294967295, 1000, 65535), 17),
    ("sparse", "race", (0, 0, 0, 0), 299999),
    ("sparse", "race", (7, 0, 0, 0), 32000),
    ("sparse", "race", (7, 0, 1, 0), 299999),
    ("sparse", "race", (7, 1, 0, 0), 299999),
    ("sparse", "race", (7, 0, 0, 1), 5),
    ("sparse", "race", (18446744073709551615, 0, 5, 0), 17),
    ("sparse", "race", (4294967296, 3, 4294967295, 2), 299999),
    ("sparse", "race", (123456789, 4294967295, 1000, 65535), 32000),
    ("even", "inverse", (0, 0, 0, 0), 25),
    ("even", "inverse", (7, 0, 0, 0), 61),
    ("even", "inverse", (7, 0, 1, 0), 26),
    ("even", "inverse", (7, 1, 0, 0), 11),
    ("even", "inverse", (7, 0, 0, 1), 7),
    ("even", "inverse", (18446744073709551615, 0, 5, 0), 27),
    ("even", "inverse", (4294967296, 3, 4294967295, 2), 18),
    ("even", "inverse", (123456789, 4294967295, 1000, 65535), 17),
    ("even", "race", (0, 0, 0, 0), 31),
    ("even", "race", (7, 0, 0, 0), 18),
    ("even", "race", (7, 0, 1, 0), 11),
    ("even", "race", (7, 1, 0, 0), 47),
    ("even", "race", (7, 0, 0, 1), 6),
    ("even", "race", (18446744073709551615, 0, 5, 0), 27),
    ("even", "race", (4294967296, 3, 4294967295, 2), 14),
    ("even", "race", (123456789, 4294967295, 1000, 65535), 49),
]


def token_by_hand(law: str, draw: str, key: Key) -> int:
    probs, ids = LAWS[law]
    if draw == "inverse":
        uniform, reached = fraction(*words(key, key.purpose, 0)[:2]), Fraction(0)
        exact = [Fraction(prob) for prob in probs]
        for token, prob in zip(ids, exact, strict=True):
            reached += prob / sum(exact)
            if reached > uniform:
                return token
    scores = {token: math.log(prob) - math.log(-math.log(noise_by_hand(key, token))) for token, prob in zip(ids, probs, strict=True)}
    return max(ids, key=lambda token: scores[token])


@pytest.mark.parametrize(("law", "draw", "fields", "token"), GOLDEN)
def test_golden_tokens(law: str, draw: Any, fields: tuple[int, int, int, int], token: int) -> None:
    key = Key(*fields)
    assert STREAM_VERSION == 1
    assert Distribution.from_probs(*LAWS[law]).draw(key, draw) == token == token_by_hand(law, draw, key)
