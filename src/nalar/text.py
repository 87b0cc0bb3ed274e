"""Bytes to text, and stop strings: what may be sent now, what must wait, and where a reply is cut.

Everything works on bytes, because a token may end inside a character.  Three classes, each a step of one pipe:

    StopScanner   bytes → bytes that can no longer become part of a stop string
    Decoder       bytes → whole characters; folding the pieces equals decoding everything at once
    TextStream    both, for a loop that pushes one token at a time

The result never depends on how the bytes are divided into tokens.
"""

from __future__ import annotations

import codecs
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from nalar.checks import check_text
from nalar.errors import InvalidType

__all__ = ["Decoder", "StopScanner", "TextStream"]


class StopScanner:
    """Finds the first stop string in a stream of bytes and releases nothing that could still become one.

    The match that ends first wins; of those that end together, the one that starts first.  ``matched`` is that stop
    string, or None so far.  One step of an Aho–Corasick automaton a byte, whatever the number of stop strings
    (A. Aho and M. Corasick, "Efficient string matching", 1975); only bytes that may begin a stop string are held.

    >>> scanner = StopScanner(["stop", "top!"])
    >>> scanner.feed(b"to st"), scanner.feed(b"ep sto"), scanner.feed(b"pped")
    (b'to ', b'step ', b'')
    >>> scanner.matched
    'stop'
    """

    def __init__(self, stops: Iterable[str]) -> None:
        self._stops = _checked(stops)
        self._automaton = _automaton([stop.encode() for stop in self._stops])
        self._state = 0
        self._tail = b""
        self.matched: str | None = None

    def feed(self, piece: bytes, armed: bool = True) -> bytes:
        """The bytes that ``piece`` sets free; after a match, nothing more.

        Args:
            piece: The next bytes, any number.
            armed: Whether a stop string may end in this piece.  One that ends in an unarmed piece is ordinary text; one
                that starts there and ends in an armed piece counts.
        """
        if not self._stops:
            return piece
        if self.matched is not None:
            return b""
        end = self._advance(piece, armed)
        return self._split(piece) if end is None else self._cut(piece[:end])

    def flush(self) -> bytes:
        """The bytes still held, at the end of the stream: no stop string was completed in them."""
        held, self._tail, self._state = self._tail, b"", 0
        return held

    def _advance(self, piece: bytes, armed: bool) -> int | None:
        """Run the automaton over ``piece``; where in it the first stop string ends, if one may and does."""
        moves, fallback, longest = self._automaton.moves, self._automaton.fallback, self._automaton.longest
        state = self._state
        for place, byte in enumerate(piece, start=1):
            while state and byte not in moves[state]:
                state = fallback[state]
            state = moves[state].get(byte, 0)
            if armed and longest[state] >= 0:
                self._state = state
                return place
        self._state = state
        return None

    def _split(self, piece: bytes) -> bytes:
        """Keep back exactly the longest end of the stream that may still become a stop string."""
        text = self._tail + piece
        free = len(text) - self._automaton.held[self._state]
        self._tail = text[free:]
        return text[:free]

    def _cut(self, piece: bytes) -> bytes:
        """Everything before the stop string that ends with ``piece``."""
        text, self._tail = self._tail + piece, b""
        self.matched = self._stops[self._automaton.longest[self._state]]
        return text[: len(text) - len(self.matched.encode())]


class Decoder:
    """UTF-8 bytes to text without ever splitting a character.

    Bytes that are no UTF-8 become U+FFFD exactly as in ``whole.decode("utf-8", "replace")``.

    >>> decoder = Decoder()
    >>> [decoder.push(piece) for piece in (b"caf\\xc3", b"\\xa9 \\xff", b"\\xf0\\x9f")], decoder.finish()
    (['caf', 'é �', ''], '�')
    """

    def __init__(self) -> None:
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    def push(self, piece: bytes) -> str:
        """The characters that are whole after ``piece``."""
        return self._decode(piece)

    def finish(self) -> str:
        """What an unfinished character at the end of the stream becomes."""
        return self._decode(b"", final=True)


class TextStream:
    """The text of one reply, token by token, cut before its first stop string.

    ``stopped`` is the stop string that ended it, or None.  ``kept`` counts the pushed tokens that belong to the text:
    those whose first byte lies before the cut (a token without bytes: that come before the stop string's first byte);
    without a cut, all of them.

    >>> stream = TextStream(["\\nUser:"])
    >>> [stream.push(piece) for piece in (b"Hi", b"!\\n", b"User", b": more")]
    ['Hi', '!', '', '']
    >>> stream.finish(), stream.stopped, stream.kept
    ('', '\\nUser:', 2)
    """

    def __init__(self, stops: Iterable[str] = ()) -> None:
        self._scanner = StopScanner(stops)
        self._decoder = Decoder()
        self._starts: deque[int] = deque()  # of the tokens that a later cut may still drop
        self._length = 0
        self._released = 0
        self.kept = 0

    @property
    def stopped(self) -> str | None:
        """The stop string that ended the text, or None."""
        return self._scanner.matched

    def push(self, piece: bytes, armed: bool = True) -> str:
        """The text that the token ``piece`` makes safe to send; ``armed`` as in ``StopScanner.feed``."""
        if self.stopped is not None:
            return ""
        # A token without bytes is placed one byte early: it comes before a cut at its own place.
        self._starts.append(self._length if piece else self._length - 1)
        self._length += len(piece)
        self.kept += 1
        free = self._scanner.feed(piece, armed)
        self._released += len(free)
        self._settle()
        return self._decoder.push(free)

    def finish(self) -> str:
        """The rest of the text: what was held back, and what an unfinished character becomes."""
        return self._decoder.push(self._scanner.flush()) + self._decoder.finish()

    def _settle(self) -> None:
        """Forget the tokens whose place is certain; at a stop, take those behind it out of ``kept``."""
        while self._starts and self._starts[0] < self._released:
            self._starts.popleft()
        if self.stopped is not None:
            self.kept -= len(self._starts)


@dataclass(frozen=True, slots=True)
class _Automaton:
    """One state for each prefix of a stop string; the state is the longest such prefix that the stream ends with."""

    moves: list[dict[int, int]]  # [state][byte] → the prefix one byte longer
    fallback: list[int]  # [state] → the longest shorter prefix that also ends the stream
    longest: list[int]  # [state] → the longest stop string that ends here, or −1
    held: list[int]  # [state] → how many last bytes may still become a stop string


def _checked(stops: Iterable[str]) -> tuple[str, ...]:
    """The stop strings, none of them empty."""
    if isinstance(stops, str):
        raise InvalidType(f"stop must be a collection of strings, got the string {stops!r}")
    return tuple(check_text("stop", stop) for stop in stops)


def _automaton(stops: list[bytes]) -> _Automaton:
    """The automaton of ``stops``: a trie, then the fallbacks of its states, shortest prefixes first."""
    moves, longest, depth = _trie(stops)
    fallback, held = [0] * len(moves), [0] * len(moves)
    waiting = deque(moves[0].values())
    while waiting:
        state = waiting.popleft()
        shorter = fallback[state]
        longest[state] = longest[state] if longest[state] >= 0 else longest[shorter]
        held[state] = depth[state] if moves[state] else held[shorter]  # a whole stop string that nothing extends is settled
        for byte, longer in moves[state].items():
            fallback[longer] = _fall(moves, fallback, shorter, byte)
            waiting.append(longer)
    return _Automaton(moves, fallback, longest, held)


def _trie(stops: list[bytes]) -> tuple[list[dict[int, int]], list[int], list[int]]:
    """Moves, the stop string that each state completes (or −1), and the length of each state's prefix."""
    moves: list[dict[int, int]] = [{}]
    complete, depth = [-1], [0]
    for number, stop in enumerate(stops):
        state = 0
        for byte in stop:
            if byte not in moves[state]:
                moves[state][byte] = len(moves)
                moves.append({})
                complete.append(-1)
                depth.append(depth[state] + 1)
            state = moves[state][byte]
        complete[state] = number
    return moves, complete, depth


def _fall(moves: list[dict[int, int]], fallback: list[int], state: int, byte: int) -> int:
    """The longest prefix that ends a stream in ``state`` once ``byte`` follows."""
    while state and byte not in moves[state]:
        state = fallback[state]
    return moves[state].get(byte, 0)
