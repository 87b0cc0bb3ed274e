"""UTF8: a character is never broken.  join(stream) equals everything decoded at once, and nothing whole waits.

Each case is a report of facts/faults.md on another engine, with the value that the report calls right.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import nalar
from faults.scripted import END, PROMPT, scripted, told
from nalar.text import TextStream


@dataclass(frozen=True)
class Case:
    """Tokens' bytes, and the text that each of them sets free."""

    id: str
    fault: str
    pieces: list[bytes]
    sent: list[str]
    why: str


CASES = [
    Case(
        "B043-emoji-in-two-tokens", "exo: decoded token by token, in the batch path only",
        [b"\xf0\x9f", b"\x98\x80", END], ["", "😀", ""], "one piece with the emoji, none with U+FFFD",
    ),
    Case(
        "B045-two-characters-in-three-tokens", "lucebox: each piece was sanitised before joining",
        [b"\xe4\xbd", b"\xa0\xe5", b"\xa5\xbd", END], ["", "你", "好", ""], "two characters, in order",
    ),
    Case(
        "B045-truncated-tail", "lucebox: the tail at the end of the stream",
        [b"\xe4\xbd", b"\xa0\xe5", END], ["", "你", "\ufffd"], "what is left unfinished comes at the end, as one U+FFFD",
    ),
    Case(
        "B047-space-after-an-open-character", "mlx-vlm: the buffer was flushed at a leading space; strict decoding raised",
        [b"a\xd7", b" b", END], ["a", "\ufffd b", ""], "D7 waits; with a space after it, it is one U+FFFD and blocks nothing",
    ),
    Case(
        "B047-the-same-tail-resolved", "mlx-vlm, lenient: the open character was corrupted",
        [b"a\xd7", b"\x90 b", END], ["a", "א b", ""], "D7 90 is the letter alef",
    ),
    Case(
        "B047-bytes-that-are-never-text", "mlx-vlm: invalid bytes must not block",
        [b"\xff", b"\xfe", b"\x80", b"a", END], ["\ufffd", "\ufffd", "\ufffd", "a", ""], "one U+FFFD for each, at once",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_a_reported_fault_stays_away(case: Case) -> None:
    assert told(scripted(case.pieces)) == case.sent, case.why
    model = scripted(case.pieces)
    whole = "".join(case.sent)
    assert "".join(model.stream(PROMPT, temperature=0)) == whole
    assert [out.text for out in model.generate_n(PROMPT, temperature=0, n=3)] == [whole] * 3  # B043: the batch path


def divided(data: bytes, cuts: list[int]) -> Iterator[bytes]:
    """``data`` in pieces, cut at each of ``cuts``."""
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    for first, last in pairwise(places):
        yield data[first:last]


@pytest.mark.parametrize("seed", range(8), ids=lambda seed: f"B046-{seed}")
def test_b046_random_splits_of_random_text(seed: int) -> None:
    """B046, ferrox: decoding token by token is lossy, buffered replies too.  Right: join(stream) == decode(all), for any split."""
    rng = random.Random(seed)
    letters = "aé ß你好😀🇮🇩\u200d\u0301אن\n"
    text = "".join(rng.choice(letters) for _ in range(40))
    pieces = list(divided(text.encode(), [rng.randrange(1000) for _ in range(30)]))
    model = scripted([*pieces, END])
    assert model.generate(PROMPT, temperature=0).text == text
    sent = told(model)
    assert "".join(sent) == text
    assert "\ufffd" not in "".join(sent)


def test_b046_a_real_loop_over_single_bytes() -> None:
    """The toy's tokens are bytes; hot enough, it says anything but UTF-8.  Buffered, streamed and decoded from the ids are one text."""
    with nalar.load("toy") as model:
        pieces = model.engine.vocabulary.pieces
        for ask in ({"temperature": 30.0, "max_tokens": 200}, {"temperature": 1.0, "max_tokens": 60, "top_p": 0.9}):
            fields: dict[str, Any] = {**ask, "seed": 7, "ignore_eos": True}
            out = model.generate("Dia berkata “", **fields)
            assert out.text == b"".join(pieces[token] for token in out.tokens).decode("utf-8", "replace")
            assert "".join(model.stream("Dia berkata “", **fields)) == out.text


# --- the rule, once for all -------------------------------------------------------------------------------------------

LEADS = st.sampled_from([b"\xc3", b"\xe0", b"\xed", b"\xef", b"\xf0", b"\xf4", b"\x80", b"\xa0", b"\x9f", b"\x8f", b"\xc0", b"\xf5", b" "])
BYTES = st.one_of(st.binary(max_size=24), st.text(max_size=12).map(str.encode), st.lists(LEADS, max_size=12).map(b"".join))


def could_go_on(tail: bytes) -> bool:
    """Whether ``tail`` begins a character and ends before it does: table 3-7 of the Unicode standard.

    One byte is looser than the table: after ED, CPython's decoder waits for a third byte where A0 … BF can only be half a surrogate.
    """
    if not tail or not 0xC2 <= tail[0] <= 0xF4:
        return False
    length = 2 if tail[0] < 0xE0 else 3 if tail[0] < 0xF0 else 4
    low, high = {0xE0: (0xA0, 0xBF), 0xF0: (0x90, 0xBF), 0xF4: (0x80, 0x8F)}.get(tail[0], (0x80, 0xBF))
    bounds = [(low, high), (0x80, 0xBF), (0x80, 0xBF)]
    return len(tail) < length and all(least <= byte <= most for byte, (least, most) in zip(tail[1:], bounds, strict=False))


def settled(data: bytes) -> str:
    """The text of ``data``, without a character that may still be finished."""
    tail = next((size for size in (1, 2, 3) if size <= len(data) and could_go_on(data[-size:])), 0)
    return data[: len(data) - tail].decode("utf-8", "replace")


@given(data=BYTES, cuts=st.lists(st.integers(0, 100), max_size=12))
@example(data=b"\xe0\xa0 \xf0\x90\x80", cuts=[1, 2, 4, 5])
@example(data=b"\xed\xa0\x80", cuts=[1, 2])  # a surrogate: three U+FFFD
def test_any_bytes_in_any_tokens_are_one_text(data: bytes, cuts: list[int]) -> None:
    """join(stream) == bytes.decode("utf-8", "replace"), and after each token all that is certain has been sent."""
    pieces = list(divided(data, cuts))
    stream, sent = TextStream(), ""
    for count, piece in enumerate(pieces, 1):
        sent += stream.push(piece)
        assert sent == settled(b"".join(pieces[:count]))
    assert sent + stream.finish() == data.decode("utf-8", "replace")


@given(data=BYTES, cuts=st.lists(st.integers(0, 100), max_size=6))
def test_a_whole_reply_is_its_ids_decoded(data: bytes, cuts: list[int]) -> None:
    """The same through the loop: streamed, buffered and in a batch; and the bytes are there, by the ids of the reply."""
    pieces = list(divided(data, cuts))
    model = scripted([*pieces, END])
    whole = data.decode("utf-8", "replace")
    out = model.generate(PROMPT, temperature=0)
    assert out.text == "".join(told(model)) == model.generate_n(PROMPT, temperature=0, n=2)[1].text == whole
    assert b"".join(model.engine.vocabulary.pieces[token] for token in out.tokens) == data
