"""When a reply ends, and what of it is text: end ids, stop ids, stop strings, lengths."""

from __future__ import annotations

from nalar.completion import Event, FinishReason
from nalar.engines.base import Vocabulary
from nalar.params import SamplingParams
from nalar.sampling import Sample
from nalar.text import TextStream

__all__ = ["Reply"]


class Reply:
    """Turns drawn tokens into events.  One rule for the end, in token order: stop string, then end or stop id, then length.

    The first ``min_tokens`` tokens end nothing.
    """

    def __init__(self, params: SamplingParams, vocabulary: Vocabulary) -> None:
        self._params = params
        self._pieces = vocabulary.pieces
        self._last = frozenset(params.stop_tokens) | (frozenset() if params.ignore_eos else vocabulary.ends)
        self._stream = TextStream(params.stop)
        self._drawn = 0

    def take(self, sample: Sample, *, room: bool) -> Event:
        """The event of the next token; without ``room`` for it in the context it is the last."""
        self._drawn += 1
        armed = self._drawn > self._params.min_tokens
        if armed and sample.token in self._last:
            return self._end(sample, "", "stop")
        text = self._stream.push(self._pieces[sample.token], armed)
        if self._stream.stopped is not None:
            return self._end(sample, text, "stop")
        if self._drawn == self._params.max_tokens or not room:
            return self._end(sample, text, "length")
        return Event(sample.token, text, sample)

    def _end(self, sample: Sample, text: str, reason: FinishReason) -> Event:
        rest = self._stream.finish()
        return Event(sample.token, text + rest, sample, reason, self._stream.kept)
