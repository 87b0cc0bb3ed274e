"""Stop strings and characters are found whole, however the bytes are divided into tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from nalar.errors import InvalidType, InvalidValue
from nalar.text import Decoder, StopScanner, TextStream

Token = tuple[bytes, bool]  # its bytes, and whether a stop string may end in it


def find(tokens: Sequence[Token], stops: Sequence[str]) -> tuple[int, str | None]:
    """The specification, in one shot: where the text is cut, and by which stop string."""
    data = b"".join(piece for piece, _ in tokens)
    armed = [flag for piece, flag in tokens for _ in piece]
    for end in range(1, len(data) + 1):
        ending = [stop for stop in stops if armed[end - 1] and data[:end].endswith(stop.encode())]
        if ending:
            stop = max(ending, key=lambda each: len(each.encode()))
            return end - len(stop.encode()), stop
    return len(data), None


def specified(tokens: Sequence[Token], stops: Sequence[str]) -> tuple[str, str | None, int]:
    """Text, stop string and number of tokens that belong to the text."""
    cut, stop = find(tokens, stops)
    data = b"".join(piece for piece, _ in tokens)
    starts = [sum(len(piece) for piece, _ in tokens[:place]) for place in range(len(tokens))]
    belongs = [stop is None or start < cut or (not piece and start == cut) for start, (piece, _) in zip(starts, tokens, strict=True)]
    return data[:cut].decode("utf-8", "replace"), stop, sum(belongs)


def streamed(tokens: Sequence[Token], stops: Sequence[str]) -> tuple[str, str | None, int]:
    """The same from a `TextStream`."""
    stream = TextStream(stops)
    text = "".join(stream.push(piece, armed) for piece, armed in tokens)
    return text + stream.finish(), stream.stopped, stream.kept


def chunkings(data: bytes) -> Iterator[list[bytes]]:
    """Every way to divide ``data`` into pieces."""
    if not data:
        yield []
    for first in range(1, len(data) + 1):
        yield from ([data[:first], *rest] for rest in chunkings(data[first:]))


def held(data: bytes, stops: Sequence[str]) -> int:
    """The longest end of ``data`` that is the beginning of a stop string, and not all of it."""
    beginnings = {stop.encode()[:length] for stop in stops for length in range(len(stop.encode()))}
    return max(length for length in range(len(data) + 1) if data[len(data) - length :] in beginnings)


STOPS = st.lists(st.text("ab", min_size=1, max_size=5) | st.sampled_from(["é", "漢字", "a🙂", "字"]), max_size=6)
PIECES = st.text("ab", max_size=4).map(str.encode) | st.binary(max_size=3) | st.sampled_from(["é", "漢字", "🙂"]).map(str.encode)
CUT_CHARACTERS = st.text("abé漢字🙂", max_size=6).flatmap(
    lambda text: st.lists(st.integers(0, len(text.encode())), max_size=6).map(lambda places: cut(text.encode(), places))
)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """``data`` divided at ``places``."""
    edges = [0, *sorted(places), len(data)]
    return [data[start:end] for start, end in pairwise(edges)]


def with_flags(pieces: st.SearchStrategy[list[bytes]]) -> st.SearchStrategy[list[Token]]:
    """Unarmed tokens, then armed ones."""
    return st.tuples(pieces, st.integers(0, 4)).map(lambda pair: [(piece, place >= pair[1]) for place, piece in enumerate(pair[0])])


TOKENS = with_flags(st.lists(PIECES, max_size=12) | CUT_CHARACTERS)


@given(TOKENS, STOPS)
@example([(b"a", True), (b"aab", True)], ["aab", "ab", "aaab"])
@example([(b"ab", False), (b"b", True)], ["ab", "abb", "b"])
def test_a_stream_is_what_one_look_at_the_whole_says(tokens: list[Token], stops: list[str]) -> None:
    assert streamed(tokens, stops) == specified(tokens, stops)


@given(st.lists(st.tuples(PIECES, st.booleans()), max_size=12), STOPS)
def test_tokens_may_be_armed_in_any_order(tokens: list[Token], stops: list[str]) -> None:
    assert streamed(tokens, stops) == specified(tokens, stops)


@given(TOKENS, STOPS)
def test_exactly_what_could_still_become_a_stop_string_is_held(tokens: list[Token], stops: list[str]) -> None:
    scanner, fed, released = StopScanner(stops), b"", b""
    for piece, armed in tokens:
        fed, released = fed + piece, released + scanner.feed(piece, armed)
        if scanner.matched is not None:
            break
        assert released == fed[: len(fed) - held(fed, [*stops, "x"])]
    else:
        assert released + scanner.flush() == fed


@pytest.mark.parametrize("data", ["aaab", "xaabaaab", "abaab", "aéaab", "漢字ab", "baaaab"])
def test_no_division_into_tokens_changes_the_text(data: str) -> None:
    stops = ["aab", "ab", "aaab", "字a"]
    results = {streamed([(piece, True) for piece in pieces], stops)[:2] for pieces in chunkings(data.encode())}
    assert results == {specified([(data.encode(), True)], stops)[:2]}


@pytest.mark.parametrize(
    ("stops", "pieces", "text", "stopped", "kept"),
    [
        (["aab", "ab", "aaab"], ["aaab"], "", "aaab", 0),  # all three end together: the first to start wins
        (["abcd", "bc"], ["abcd"], "a", "bc", 1),  # the first to end wins
        (["O P Q"], ["x O", " P", " Q"], "x ", "O P Q", 1),
        (["beta gamma"], ["beta", " gamma", " delta"], "", "beta gamma", 0),
        (["gamma"], ["so", " gamma!"], "so ", "gamma", 2),  # its token has a byte in the text
        (["\nUser:"], ["\nUser", "s"], "\nUsers", None, 2),
        (["five"], ["one, four, ", "five, six"], "one, four, ", "five", 1),
        ([".."], ["a", "..."], "a", "..", 1),
        (["STOP"], ["a", "", "ST", "", "OP"], "a", "STOP", 2),  # a token without bytes before the stop string, and one inside
        ([], ["a", "", "b"], "ab", None, 3),
        (["é"], ["x", "é", "y"], "x", "é", 1),
    ],
)
def test_reported_faults(stops: list[str], pieces: list[str], text: str, stopped: str | None, kept: int) -> None:
    assert streamed([(piece.encode(), True) for piece in pieces], stops) == (text, stopped, kept)


def test_text_that_begins_no_stop_string_is_sent_at_once() -> None:
    stream = TextStream(["Observation: and so on"])
    assert [stream.push(piece) for piece in (b"hello", b" Obs", b"cure")] == ["hello", " ", "Obscure"]


def test_a_stop_string_completed_before_it_counts_is_text_and_is_not_held() -> None:
    stream = TextStream(["\n"])
    assert [stream.push(b"a\n", armed=False), stream.push(b"b", armed=False), stream.push(b"c\nd")] == ["a\n", "b", "c"]
    assert (stream.finish(), stream.stopped, stream.kept) == ("", "\n", 3)


def test_a_stop_string_may_begin_before_it_counts() -> None:
    assert streamed([(b"xST", False), (b"OP", True)], ["STOP"]) == ("x", "STOP", 1)


def test_nothing_follows_a_stop() -> None:
    stream = TextStream(["."])
    assert [stream.push(b"a.b"), stream.push(b"c"), stream.finish(), stream.finish()] == ["a", "", "", ""]
    assert stream.kept == 1


def test_a_cut_inside_a_broken_character_ends_it() -> None:
    assert streamed([(b"a\xf0\x9f", True), (b"END", True)], ["END"]) == ("a�", "END", 1)


@given(st.lists(st.binary(max_size=4), max_size=10) | CUT_CHARACTERS)
def test_folding_the_pieces_is_decoding_the_whole(pieces: list[bytes]) -> None:
    decoder = Decoder()
    assert "".join(map(decoder.push, pieces)) + decoder.finish() == b"".join(pieces).decode("utf-8", "replace")


HARD = [
    b"\xf0\x9f\x98\x80",
    b"\xe4\xbd\xa0\xe5\xa5\xbd",
    b"a\xed\xa0\x80b",  # a surrogate
    b"\xf0\x80\x80\x80",  # longer than it need be
    b"\xe0\x80a",
    b"\xf4\x90\x80\x80\xc3",  # beyond the last character
    b"\xc0\xaf\xfe",
]


@pytest.mark.parametrize("data", HARD)
def test_every_division_of_hard_bytes_decodes_alike(data: bytes) -> None:
    for pieces in chunkings(data):
        decoder = Decoder()
        assert "".join(map(decoder.push, pieces)) + decoder.finish() == data.decode("utf-8", "replace")


@given(st.text(max_size=8))
def test_a_character_is_sent_with_its_last_byte(text: str) -> None:
    decoder = Decoder()
    sent = [decoder.push(bytes([byte])) for byte in text.encode()]
    assert [piece for piece in sent if piece] == list(text)


def test_really_broken_bytes_do_not_wait() -> None:
    assert Decoder().push(b"\xff ok") == "� ok"


@pytest.mark.parametrize(
    ("stops", "error"), [([""], InvalidValue), (["a", "\ud800"], InvalidValue), ("ab", InvalidType), ([b"a"], InvalidType)]
)
def test_a_stop_string_must_be_text(stops: list[str], error: type[Exception]) -> None:
    with pytest.raises(error, match="stop must"):
        TextStream(stops)
