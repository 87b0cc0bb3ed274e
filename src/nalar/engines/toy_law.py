"""The law of the toy model: what it thinks comes next, as one formula over a page of text.

Two ideas, both easy to predict by hand.

1. **It has read a few short texts** (`DOCUMENTS`).  With c(s) how often the string s occurs in them and h_n the last n
   tokens, the probability of token x is interpolated from short contexts to long ones (Dirichlet smoothing):

       p_0(x) = 0.999 · c(x) / Σ c  +  0.001 / size
       p_n(x) = (c(h_n x) + p_{n−1}(x)) / (c(h_n) + 1)            for n = 1 … 4, as long as h_n was read

2. **It repeats itself.**  If its last four tokens occurred earlier in this very sequence, the token that followed them
   the last time gets the weight L / (L + 4), where L (4 … 12) is how many tokens of the two contexts agree:

       p(x) = (1 − L/(L+4)) · p_n(x)  +  L/(L+4) · [x followed]

Control tokens all read as one mark, which opens and closes each document; so after ``<|assistant|>`` a document begins,
and after a sentence that closed one the reply may end.  The mark's probability is shared, ¾ to ``<|end|>`` (the mark's own
id) and ¼ to ``<|end_of_text|>``.  Logits are log p, a pure function of the token ids: nothing is remembered between rows.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["DOCUMENTS", "END_OF_TEXT", "MARK", "Law", "as_text"]

DOCUMENTS = (
    "The cat sat by the door. The dog sat by the cat. The bird sat by the dog, and the rain fell on the house.",
    "Zoë opened the café at six. The café was small, but the coffee was good, and the cat sat by the door.",
    "The rain fell on the house. The rain fell on the road. The rain fell on the river, and the river ran to the sea.",
    "Once upon a time there was a small river. The river ran to the sea, and the sea was wide and blue.",
    "Once upon a time there was a bird. The bird sat in the tree, and the tree stood by the river. The bird was small.",
    "Herr Müller walked over the bridge, über die Brücke, as he said. The bridge was old, and the river was wide.",
    "She wrote two characters on the paper: 漢字. The characters were small, and the paper was white. 漢字, she said.",
    "The sun came out. The cat came out. The dog came out, and the bird sang in the tree. It was a good day 🙂!",
    "What did the cat say? The cat said that the coffee was good. What did the dog say? The dog said nothing.",
    "A good reply is short. A good reply is true. A good reply ends when it is done.",
    "At six the café was full. Zoë said that the rain was over, and the sun came out. The day was good 🙂!",
    "There was a house by the road. There was a door in the house. There was a cat by the door, and the cat was old.",
)

MARK = 256  # how every control token reads; the id of <|end|>
END_OF_TEXT = 257
ORDER = 4  # longest context read from the documents
STRENGTH = 1.0  # of a shorter context, in counts
FLOOR = 0.001  # shared by all tokens, so that none is impossible
SHORTEST, LONGEST = 4, 12  # tokens that must agree before the model repeats itself, and that are counted
DOUBT = 4.0  # the weight of repeating is L / (L + DOUBT)


def as_text(tokens: Iterable[int]) -> str:
    """The tokens as a string to search in, a character each; control tokens read as the mark.

    >>> as_text([72, 105, 260]) == "Hi" + chr(MARK)
    True
    """
    return "".join(chr(min(token, MARK)) for token in tokens)


@dataclass(frozen=True, slots=True)
class _Follow:
    """What followed one context in the documents: (c(h x) + p(x)) / (c(h) + 1) is ``shorter · p`` plus ``shares`` at ``ids``."""

    ids: npt.NDArray[np.intp]
    shares: npt.NDArray[np.float64]
    shorter: float


class Law:
    """Logits for a vocabulary of ``size`` ids: the 256 bytes, then control tokens from ``MARK`` on."""

    def __init__(self, size: int) -> None:
        page = _page()
        counts = np.bincount([ord(character) for character in page], minlength=size)
        self._start = (1.0 - FLOOR) * counts / len(page) + FLOOR / size
        self._follows = _read(page)

    def logits(self, text: str, length: int) -> npt.NDArray[np.float32]:
        """Logits after the first ``length`` characters of ``text`` (see `as_text`), at least one: [size] float32."""
        probs = self._interpolate(text, length)
        self._repeat(probs, text, length)
        probs[END_OF_TEXT] += 0.25 * probs[MARK]
        probs[MARK] *= 0.75
        return np.log(probs).astype(np.float32)

    def _interpolate(self, text: str, length: int) -> npt.NDArray[np.float64]:
        """p_n, from short contexts to the longest that was read."""
        probs = self._start.copy()
        for order in range(1, min(ORDER, length) + 1):
            follow = self._follows.get(text[length - order : length])
            if follow is None:
                break
            probs *= follow.shorter
            probs[follow.ids] += follow.shares
        return probs

    def _repeat(self, probs: npt.NDArray[np.float64], text: str, length: int) -> None:
        """Mix in what followed the last tokens the last time they occurred."""
        if length <= SHORTEST:
            return
        earlier = text.rfind(text[length - SHORTEST : length], 0, length - 1)
        if earlier < 0:
            return
        agree = _agreement(text, earlier + SHORTEST, length)
        weight = agree / (agree + DOUBT)
        probs *= 1.0 - weight
        probs[ord(text[earlier + SHORTEST])] += weight


def _page() -> str:
    """All documents as one string of bytes, the mark before, between and after them."""
    mark = chr(MARK)
    return mark + mark.join(document.encode().decode("latin-1") for document in DOCUMENTS) + mark


def _read(page: str) -> dict[str, _Follow]:
    """What follows each context of one to ``ORDER`` characters."""
    counts: defaultdict[str, Counter[int]] = defaultdict(Counter)
    for place in range(1, len(page)):
        for order in range(1, min(ORDER, place) + 1):
            counts[page[place - order : place]][ord(page[place])] += 1
    return {context: _follow(counter) for context, counter in counts.items()}


def _follow(counter: Counter[int]) -> _Follow:
    total = counter.total() + STRENGTH
    shares = np.array(list(counter.values()), np.float64) / total
    return _Follow(np.array(list(counter), np.intp), shares, STRENGTH / total)


def _agreement(text: str, earlier: int, later: int) -> int:
    """How many characters before the two places agree, at most ``LONGEST``."""
    agree = 0
    while agree < min(LONGEST, earlier) and text[earlier - 1 - agree] == text[later - 1 - agree]:
        agree += 1
    return agree
