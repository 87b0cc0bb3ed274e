"""STOP: how a reply ends.  One rule: stop string, then end or stop id, then length, in token order; only a real prefix is held back.

Each case is a report of facts/faults.md on another engine, with the value that the report calls right.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from faults.scripted import END, OTHER_END, PROMPT, scripted, told
from nalar import Chain, History, SamplingParams
from nalar.text import TextStream


@dataclass(frozen=True)
class Case:
    """A script, what is asked, and the reply.  ``sent`` is the text event by event, where the report is about that."""

    id: str
    fault: str
    script: list[Any]
    ask: dict[str, Any]
    text: str
    kept: int
    why: str
    finish: str = "stop"
    sent: list[str] | None = None


LETTERS = [b"a"] * 300
CASES = [
    Case(
        "B029-stop-string-before-min_tokens", "vLLM: a newline ended the text after 2 of 200 required tokens",
        [b"a", b"\n", *LETTERS], {"min_tokens": 200, "max_tokens": 210, "stop": "\n"},
        "a\n" + "a" * 208, 210, "a stop string that completes before min_tokens is text", finish="length",
    ),
    Case(
        "B029-stop-string-as-the-last-required-token", "the same, at the boundary: token 200 of 200",
        [*LETTERS[:199], b"\n", b"a", b"\n", b"a"], {"min_tokens": 200, "max_tokens": 210, "stop": "\n"},
        "a" * 199 + "\na", 201, "token 200 may not end the reply, token 202 may",
    ),
    Case(
        "B030-the-second-end-id", "vLLM: only the first of several end ids was suppressed",
        [[OTHER_END, b"a"], [OTHER_END, b"b"], [OTHER_END, b"c"], [OTHER_END, b"d"]], {"min_tokens": 3},
        "abc", 3, "every end id is masked for 3 tokens, and ends the reply at the 4th",
    ),
    Case(
        "B031-the-model's-own-end-id", "vLLM: a rewrite knew the user's stop ids and forgot the model's end id",
        [[END, b"a"]] * 3 + [[END, b"d"]], {"min_tokens": 3, "stop_tokens": []},
        "aaa", 3, "the end id is masked though no stop id was given",
    ),
    Case(
        "B031-both-kinds-of-end", "the same with a stop id besides",
        [[END, b"x", b"a"], [b"x", END, b"a"], [END, b"x", b"a"], [b"x", b"a"]], {"min_tokens": 3, "stop_tokens": [4]},
        "aaa", 3, "end id and stop id are masked together; id 4 is b'x'",
    ),
    Case(
        "B033-stop-id-against-min_tokens", "TensorRT-LLM: which of the two wins was not documented",
        [b"a", [b"x", b"b"], b"c", b"d", b"e", b"x", b"f"], {"min_tokens": 5, "stop_tokens": [5]},
        "abcde", 5, "min_tokens wins (documented): id 5 (b'x') is masked at step 2 and ends the reply at step 6",
    ),
    Case(
        "B034-stop-of-several-tokens", "llama.cpp server: stop strings of several tokens never matched",
        [b"N", b" O", b" P", b" Q", b" R"], {"stop": "O P Q"}, "N ", 2, "the text ends before the O; the token ' O' has a byte in it",
    ),
    Case(
        "B035-stop-across-two-tokens", "mlx-knife: each token was searched alone",
        [b"alpha ", b"beta", b" gamma", b" delta"], {"stop": "beta gamma"}, "alpha ", 1, "cut exactly before the stop string",
    ),
    Case(
        "B035-text-after-the-stop-in-its-token", "mlx-knife: what follows the stop in the same token was sent",
        [b"alpha", b" gamma!", b" delta"], {"stop": "gamma"}, "alpha ", 2, "neither the stop string nor the '!' is text",
    ),
    Case(
        "B037-stop-split-over-chunks", "SwiftLM: the first part of a split stop string leaked",
        [b"\nUser", b":", b" Hi"], {"stop": "\nUser:"}, "", 0, "nothing was said before the stop string", sent=["", ""],
    ),
    Case(
        "B037-a-prefix-that-is-none", "SwiftLM, the mirror fault: text was lost",
        [b"\nUser", b"s", END], {"stop": "\nUser:"}, "\nUsers", 2, "what turns out not to be the stop string comes in full",
        sent=["", "\nUsers", ""],
    ),
    Case(
        "B038-only-a-real-prefix-waits", "smg: as many bytes as the longest stop has were held back",
        [b"hello", END], {"stop": "<|end of the answer|"}, "hello", 1, "no end of 'hello' begins the stop (20 bytes): sent at once",
        sent=["hello", ""],
    ),
    Case(
        "B039-short-answers-beside-a-stop", "vLLM: short answers streamed as empty chunks",
        [b"H", b"i", END], {"stop": "Observation:"}, "Hi", 2, "neither piece can start the stop string", sent=["H", "i", ""],
    ),
    Case(
        "B039-held-text-at-the-end", "vLLM: held text was not flushed",
        [b"Hi", b" Obs", END], {"stop": "Observation:"}, "Hi Obs", 2, "' ' is free, 'Obs' waits, and the end sets it free",
        sent=["Hi", " ", "Obs"],
    ),
    Case(
        "B041-nothing-after-the-stop", "vmlx-swift: text decoded after the match was flushed at the end",
        [b"one, ", b"two, ", b"three, ", b"four, ", b"five, ", b"six"], {"stop": "five"},
        "one, two, three, four, ", 4, "all before the stop string, nothing from it on",
    ),
    Case(
        "B042-stop-inside-a-token", "SkyRL: ids and text disagreed on what was kept",
        [b"a", b"...", b"b"], {"stop": ".."}, "a", 1, "'..' is found inside '...', whose id has no byte in the text",
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_a_reported_fault_stays_away(case: Case) -> None:
    out = scripted(case.script).generate(PROMPT, temperature=0, **case.ask)
    assert (out.text, len(out.tokens), out.finish_reason) == (case.text, case.kept, case.finish), case.why
    sent = told(scripted(case.script), **case.ask)
    assert "".join(sent) == case.text
    assert case.sent is None or sent == case.sent, case.why


@pytest.mark.parametrize(("stop_tokens", "masked"), [
    pytest.param([], {2, 11}, id="B030-and-B031-law-of-each-step"),
    pytest.param([5], {2, 5, 11}, id="B033-law-of-each-step"),
])
def test_every_end_is_masked_in_the_law_until_min_tokens(stop_tokens: list[int], masked: set[int]) -> None:
    """The reports' own ids: ends {2, 11}, min_tokens=3, the best logit at 11."""
    chain = Chain.from_params(SamplingParams(min_tokens=3, stop_tokens=stop_tokens), ends={2, 11})
    row = np.where(np.arange(13) == 11, 9.0, 0.0)
    for drawn in range(5):
        law = chain.distribution(row, History(output=[0] * drawn))
        assert set(range(13)) - set(law.ids.tolist()) == (masked if drawn < 3 else set())


def test_b041_a_stream_that_goes_on_after_the_stop_says_nothing_more() -> None:
    """B041 at the text's own door: later pieces, and the flush, are silent."""
    stream = TextStream(["five"])
    assert "".join(map(stream.push, [b"four, fi", b"ve, s", b"ix"])) + stream.finish() == "four, "


def test_b042_ids_consumed_and_ids_kept_are_both_told() -> None:
    """B042: 'report both the number of ids consumed and the text cut'."""
    out = scripted([b"a", b"...", b"b"]).generate(PROMPT, temperature=0, stop="..")
    assert (out.stats.emitted, out.tokens, len(out.logprobs), out.text) == (2, (4,), 1, "a")


# --- the rule, once for all -------------------------------------------------------------------------------------------

LETTER = [b"a", b"b", b"ab", b"ba\n", b"\n", b"\xc3", b"\xa9", b"\xc3\xa9a", b"\xf0\x9f\x98", b"\x80"]
STOPS = ["a", "ab", "aba", "bb", "\n", "a\nb", "é", "ébé", "\U0001f600", "ba\n"]


@dataclass(frozen=True)
class Reply:
    text: str
    drawn: int  # tokens drawn, an end id too
    kept: int
    finish: str
    sent: list[str]


def specified(choices: list[tuple[bytes, bytes]], stops: list[str], ids: set[bytes], least: int, most: int, ignore: bool) -> Reply:
    """In one shot, from the whole list of what would be drawn: no state, no stream, naive search in every prefix."""
    lasts = ids | (set() if ignore else {END, OTHER_END})
    drawn = [second if place < least and first in lasts else first for place, (first, second) in enumerate(choices)]
    spelled = [b"" if piece in (END, OTHER_END) else piece for piece in drawn]
    for count in range(1, most + 1):
        data, before = b"".join(spelled[:count]), b"".join(spelled[: count - 1])
        if count > least and drawn[count - 1] in lasts:
            return _reply(spelled[: count - 1], before, len(before), stops, count, "stop")
        matches = [(end, -len(stop.encode())) for end in range(len(before) + 1, len(data) + 1) for stop in stops
                   if count > least and data[:end].endswith(stop.encode())]
        if matches:
            end, longest = min(matches)
            return _reply(spelled[:count], data, end + longest, stops, count, "stop")
    return _reply(spelled[:most], data, len(data), stops, most, "length")


def _reply(spelled: list[bytes], data: bytes, cut: int, stops: list[str], drawn: int, finish: str) -> Reply:
    starts = [len(b"".join(spelled[:place])) for place in range(len(spelled))]
    kept = sum(start < cut or (not piece and start == cut) for start, piece in zip(starts, spelled, strict=True))
    text = data[:cut].decode("utf-8", "replace")
    free = [text_of(min(cut, free_bytes(b"".join(spelled[:count]), stops)), data) for count in range(1, drawn)]
    told = [*free, text]
    sent = [now[len(then):] for then, now in zip(["", *told[:-1]], told, strict=True)]
    return Reply(text, drawn, kept, finish, sent)


def free_bytes(data: bytes, stops: list[str]) -> int:
    """All bytes but the longest end that is a real prefix of a stop string."""
    waiting = [size for stop in stops for size in range(1, len(stop.encode())) if data.endswith(stop.encode()[:size])]
    return len(data) - max(waiting, default=0)


def text_of(free: int, data: bytes) -> str:
    """The whole characters in the first ``free`` bytes; the start of one waits."""
    tail = next((size for size in (1, 2, 3) if size <= free and _opens(data[free - size : free])), 0)
    return data[: free - tail].decode("utf-8", "replace")


@cache
def _opens(tail: bytes) -> bool:
    """Whether some bytes make ``tail`` one character."""
    fills = (bytes(fill) for count in (1, 2, 3) for fill in product((0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF), repeat=count))
    return any(_is_one(tail + fill) for fill in fills)


def _is_one(data: bytes) -> bool:
    try:
        return len(data.decode()) == 1
    except UnicodeDecodeError:
        return False


@given(
    choices=st.lists(st.tuples(st.sampled_from([*LETTER, END, OTHER_END]), st.sampled_from(LETTER[:2])), min_size=8, max_size=8),
    stops=st.lists(st.sampled_from(STOPS), max_size=3, unique=True),
    ids=st.sets(st.sampled_from(LETTER[2:]), max_size=2),
    least=st.integers(0, 5), most=st.integers(1, 8), ignore=st.booleans(),
)
def test_a_reply_ends_as_the_one_shot_rule_says(
    choices: list[tuple[bytes, bytes]], stops: list[str], ids: set[bytes], least: int, most: int, ignore: bool
) -> None:
    least = min(least, most)
    expected = specified(choices, stops, ids, least, most, ignore)
    script: list[Any] = [[first] if first == second else [first, second] for first, second in choices]
    model = scripted(script)
    known = model.engine.vocabulary.pieces
    ask = {
        "stop": stops, "stop_tokens": [known.index(piece, 3) for piece in ids if piece in known[3:]], "ignore_eos": ignore,
        "min_tokens": least, "max_tokens": most,
    }
    out = model.generate(PROMPT, temperature=0, **ask)
    assert (out.text, out.stats.emitted, len(out.tokens), out.finish_reason) == (
        expected.text, expected.drawn, expected.kept, expected.finish,
    )
    assert told(model, **ask) == expected.sent
    for twin in model.generate_n(PROMPT, temperature=0, n=2, **ask):
        assert (twin.text, twin.tokens, twin.finish_reason) == (out.text, out.tokens, out.finish_reason)
    assert len(out.logprobs) == len(out.tokens)
