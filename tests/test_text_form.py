"""A chain's text: it round-trips, holds literals only, and an error points at its column."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nalar import Chain
from nalar.candidates import Candidates
from nalar.errors import InvalidType, NalarError, ParseError
from nalar.stages import BUILT_IN, Allow, Ban, Bias, Frequency, MinP, MinTokens, Presence, Repetition, Stage, Temperature, TopK, TopP

INF = math.inf
UNIT = st.floats(0, 1)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
IDS = st.lists(st.integers(0, 2**31 - 1), max_size=5)
WINDOW = st.none() | st.integers(0, 10**6)


def penalty(kind: Any, value: Any) -> Any:
    fields = {"scope": st.sampled_from(["all", "output", "prompt"]), "ignore_prefix": st.integers(0, 99)}
    plain = st.builds(kind, value, window=WINDOW, **fields)
    return plain | st.builds(kind, value, window=st.integers(0, 99), decay=st.none() | st.integers(1, 99), **fields)


STAGES = st.one_of(
    st.builds(Temperature, st.floats(0, allow_infinity=False)),
    st.builds(TopK, st.integers(0, 2**70), st.sampled_from(["first", "all"])),
    st.builds(
        TopP, UNIT, st.booleans(), st.sampled_from(["stop", "continue"]), st.sampled_from(["first", "all"]),
        st.sampled_from(["renormalised", "original"]),
    ),
    st.builds(MinP, UNIT, st.booleans()),
    penalty(Repetition, st.floats(0, exclude_min=True, allow_infinity=False)), penalty(Frequency, FINITE), penalty(Presence, FINITE),
    st.builds(Bias, st.dictionaries(st.integers(0, 2**31 - 1), FINITE | st.just(-INF) | st.just(np.float64(-INF)), max_size=5)),
    st.builds(Allow, IDS), st.builds(Ban, IDS), st.builds(MinTokens, st.integers(0, 10**9), IDS),
)


@given(st.lists(STAGES, max_size=5))
def test_every_built_in_chain_round_trips(stages: list[Stage]) -> None:
    chain = Chain(stages)
    assert Chain.parse(str(chain)) == chain
    assert str(Chain.parse(str(chain))) == str(chain)


def test_words_are_stored_plain_so_that_the_text_can_be_read() -> None:
    chain = Chain([TopK(2, ties=np.str_("all")), Presence(1.0, scope=np.str_("prompt"))])  # type: ignore[arg-type]
    assert str(chain) == "top_k(2, ties='all') | presence(1.0, scope='prompt')"
    assert Chain.parse(str(chain)) == chain


def test_large_sets_and_dicts_round_trip() -> None:
    chain = Chain([Bias({n * 7: -n / 3 for n in range(5000)}), Allow(range(0, 50_000, 3))])
    assert Chain.parse(str(chain)) == chain


@pytest.mark.parametrize(
    ("text", "chain"),
    [
        ("identity", Chain([])),
        ("top_k(40) | temperature(0.8) | top_p(0.95)", Chain([TopK(40), Temperature(0.8), TopP(0.95)])),
        ("top_k(2, ties='all')", Chain([TopK(2, "all")])),
        ("top_p(0.9, crossing=false, at_equality='continue')", Chain([TopP(0.9, False, "continue")])),
        ("min_p(0.1, strict=true)", Chain([MinP(0.1, True)])),
        ("temperature(1e-07)", Chain([Temperature(1e-7)])),
        ("temperature(1e+300)", Chain([Temperature(1e300)])),
        ("frequency(-1.5, scope='all', window=64)", Chain([Frequency(-1.5, "all", 64)])),
        ("repetition(1.1, scope='output', window=3, ignore_prefix=2, decay=5)", Chain([Repetition(1.1, "output", 3, 2, 5)])),
        ("repetition(1.1) | presence(0.5)", Chain([Repetition(1.1, "all"), Presence(0.5, "output")])),
        ("bias({3: 1.5, 7: -inf})", Chain([Bias({7: -INF, 3: 1.5})])),
        ("allow([1, 2]) | ban([3])", Chain([Allow([2, 1]), Ban([3])])),
        ("min_tokens(5, ends=[2])", Chain([MinTokens(5, [2])])),
    ],
)
def test_the_first_field_is_by_position_the_others_where_not_the_default(text: str, chain: Chain) -> None:
    assert str(chain) == text
    assert Chain.parse(text) == chain


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("  top_k( 40 )|temperature(value=0.8)  ", "top_k(40) | temperature(0.8)"),
        ("\n  top_k(40)\n  | top_p(\n    0.5)\n", "top_k(40) | top_p(0.5)"),
        ("top_k(40)\r\n| top_p(0.5)\r\n", "top_k(40) | top_p(0.5)"),
        ("top_k(k=2, ties=\"all\")", "top_k(2, ties='all')"),
        ("top_p(.5, true, 'stop')", "top_p(0.5)"),
        ("repetition(2, window=none, decay=None)", "repetition(2.0)"),
        ("min_p(0.5, strict=False) | min_p(0.5, strict=True)", "min_p(0.5) | min_p(0.5, strict=true)"),
        ("temperature(-0.0)", "temperature(-0.0)"), ("allow((1, 2))", "allow([1, 2])"), ("bias([(1, 2)])", "bias({1: 2.0})"),
        (" identity ", "identity"),
    ],
)
def test_other_spellings_read_the_same(text: str, same: str) -> None:
    assert str(Chain.parse(text)) == same


def test_numpy_s_numbers_are_printed_as_plain_ones() -> None:
    bias = Bias({np.int64(3): np.float64(-INF), 4: np.float32(0.5)})
    stages = [bias, TopK(np.uint8(2)), TopP(np.float64(0.5)), Presence(np.float32(0.5))]
    assert str(Chain(stages)) == "bias({3: -inf, 4: 0.5}) | top_k(2) | top_p(0.5) | presence(0.5)"


def test_every_built_in_stage_has_its_name() -> None:
    assert list(BUILT_IN) == list(Chain.ORDER)


# --- a user's stage -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class MyCut(Stage):
    """Keeps every n-th id; words are not used."""

    n: int
    words: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "words", tuple(self.words))

    def apply(self, candidates: Candidates, context: Any) -> Candidates:
        return candidates.keep(candidates.ids % self.n == 0)


def test_a_user_s_stage_is_parsed_when_it_is_given() -> None:
    chain = Chain([MyCut(2, ("a|b", "it's", "\u00e9\n", 'q"')), TopK(3)])
    assert str(chain).startswith("my_cut(2, words=[")
    assert Chain.parse(str(chain), stages={"my_cut": MyCut}) == chain
    assert Chain.parse("my_cut(2)", {"my_cut": MyCut}).distribution([0.0] * 5).ids.tolist() == [0, 2, 4]
    with pytest.raises(ParseError, match=r"a stage must be one of allow, .*, min_p, got 'my_cut'"):
        Chain.parse("my_cut(2)")
    with pytest.raises(ParseError, match=r"one of allow, .*, my_cut, got 'cut'"):
        Chain.parse("cut(2)", {"my_cut": MyCut})


def test_a_user_s_stage_may_take_the_name_of_a_built_in_one() -> None:
    assert Chain.parse("top_k(2)", {"top_k": MyCut}).stages == (MyCut(2),)


# --- errors ------------------------------------------------------------------------------------------------------------

SHAPE = "a chain must read"
LITERAL = "an argument must be"


@pytest.mark.parametrize(
    ("text", "column", "words"),
    [
        ("", 1, SHAPE), ("   ", None, SHAPE), ("|", 1, SHAPE), ("| top_k(1)", 1, SHAPE), ("top_k(1) |", 11, SHAPE),
        ("top_k(1) | ", None, SHAPE),
        ("top_k(1", None, SHAPE), ("top_k(1) || top_p(1)", 11, SHAPE), ("top_k(1) top_p(1)", 10, SHAPE),
        ("top_k(1) | top_p(.5))", 21, SHAPE),
        ("top_k(1, )| top_p(=)", 19, SHAPE), ("ban([1]) | é(", 13, SHAPE), ("  ban([1]) | top_p(1) |", 24, SHAPE),
        ("top_k(4) # | top_p(0.9)", 9, SHAPE), ("top_k(4)\n# | top_p(0.9)\n| top_p(.5)", None, SHAPE), ("top_k(\x00)", None, SHAPE),
        ("top_k", 1, "a stage must be written name"), ("top_k(1) | 5", 12, "a stage must be written"),
        ("identity | top_k(1)", 1, "a stage must be"),
        ("top_k(1) | stages.top_k(1)", 12, "a stage must be written"), ("top_k(1) + top_p(1)", 1, "a stage must be written"),
        ("top_k(1) | tpo_p(0.5)", 12, "a stage must be one of allow, .* got 'tpo_p'"), ("'é' | x(1)", 1, "a stage must be written"),
        ("  top_k(1) | x(1)", 14, "got 'x'"), ("top_k('é') | x(1)", None, "."), ("bias({1: 2}) | ban(['éé'], x)", 28, LITERAL),
        ("top_k(1+1)", 7, LITERAL), ("top_k(1 if 1 else 2)", 7, LITERAL), ("top_k(x)", 7, LITERAL), ("top_k([1][0])", 7, LITERAL),
        ("top_k(f'{1}')", 7, LITERAL), ("top_k(b'1')", 7, LITERAL), ("top_k(1j)", 7, LITERAL), ("top_k(...)", 7, LITERAL),
        ("top_k(nan)", 7, LITERAL),
        ("top_k(lambda: 1)", 7, LITERAL), ("top_k({1})", 7, LITERAL), ("top_k(-true)", 7, LITERAL), ("top_k(not 1)", 7, LITERAL),
        ("top_k([x for x in [1]])", 7, LITERAL), ("top_k(k:=1)", 7, LITERAL), ("bias({**{1: 2}})", 6, LITERAL), ("ban(*[1])", 5, LITERAL),
        ("top_k(**{'k': 1})", 9, LITERAL), ("ban([1, print(2)])", 9, LITERAL),
        ("top_k(-1)", 1, "k must be an integer >= 0, got -1"), ("ban([1]) | top_p(1.5)", 12, r"p must be a number in \[0, 1\], got 1.5"),
        ("temperature(inf)", 1, "temperature must .* got inf"), ("top_k('4')", 1, "k must be an integer"),
        ("top_p(true)", 1, "p must be a number"),
        ("top_k()", 1, r"top_k takes \(k, ties\)"), ("top_k(1, 'all', 3)", 1, r"takes \(k, ties\)"),
        ("top_k(1, k=2)", 1, r"takes \(k, ties\)"),
        ("top_k(1, size=2)", 1, r"takes \(k, ties\)"), ("top_k(k=1, k=2)", None, "k"), ("bias({1: 2, 1: 3})", 1, "each token id once"),
    ],
)  # fmt: skip
def test_an_error_points_at_its_column(text: str, column: int | None, words: str) -> None:
    with pytest.raises(ParseError, match=words) as caught:
        Chain.parse(text)
    assert isinstance(caught.value, NalarError | ValueError)
    assert f"(column {caught.value.column})" in str(caught.value)
    assert 1 <= caught.value.column <= len(text) + 1
    if column is not None:
        assert caught.value.column == column
        assert str(caught.value).splitlines()[-1] == "  " + " " * (column - 1) + "^"


def test_nothing_is_evaluated() -> None:
    seen: list[int] = []
    import builtins

    builtins.nalar_spy = seen.append  # type: ignore[attr-defined]
    try:
        for text in ("top_k(nalar_spy(1))", "nalar_spy(1)", "top_k(1) | nalar_spy(1)", "top_k([nalar_spy(1)])", "bias({nalar_spy(1): 2})"):
            with pytest.raises(ParseError):
                Chain.parse(text)
    finally:
        del builtins.nalar_spy  # type: ignore[attr-defined]
    assert seen == []


@pytest.mark.parametrize("text", [None, 5, b"top_k(1)", ["top_k(1)"], Chain()])
def test_a_text_is_a_string(text: Any) -> None:
    with pytest.raises(InvalidType, match="a chain's text must be a string"):
        Chain.parse(text)


@given(st.text(alphabet="top_k(1)|'é,=[{}] -\n#x", max_size=30))
def test_any_text_is_a_chain_or_a_parse_error(text: str) -> None:
    try:
        assert isinstance(Chain.parse(text), Chain)
    except ParseError as error:
        assert 1 <= error.column <= len(text) + 1  # noqa: PT017


HOSTILE = ["(" * 5000, "top_k(" + "[" * 5000, "top_k(" + "-" * 5000 + "1)", "top_k(" + "9" * 5000 + ")", "a" * 10**5]


@pytest.mark.parametrize("text", HOSTILE, ids=range(5))
def test_hostile_text_is_a_parse_error(text: str) -> None:
    with pytest.raises(ParseError):
        Chain.parse(text)
