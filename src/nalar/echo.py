"""How likely the model found the prompt itself: a raw log-probability for each of its tokens."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from nalar.candidates import log_sum_exp, rank_of
from nalar.feed import Host, feed_with_rows
from nalar.rows import as_float64
from nalar.sampling import TokenLogprob, best_tokens

__all__ = ["PromptToken", "prompt_logprobs"]


class PromptToken(NamedTuple):
    """A prompt token in the raw view of what came before it; the first token has nothing before it, and so no logprob."""

    token: int
    logprob: float | None
    rank: int | None
    top: tuple[TokenLogprob, ...] = ()


def prompt_logprobs(host: Host, prompt: tuple[int, ...], n: int) -> tuple[PromptToken, ...]:
    """Evaluate ``prompt`` from its start and report each token with the ``n`` best of its row.

    The sequence is kept, so that a reply to the same prompt reuses it.
    """
    with host.lock:
        sequence = host.prefixes.open()
        tokens = [PromptToken(prompt[0], None, None)]
        cut = host.engine.vocabulary.size
        with host.keeping(sequence):
            for before, rows in feed_with_rows(host, sequence, prompt):
                following = prompt[before + 1 : before + 1 + len(rows)]
                tokens += [_token(as_float64(row[:cut]), token, n) for row, token in zip(rows, following, strict=False)]
    return tuple(tokens)


def _token(values: npt.NDArray[np.float64], token: int, n: int) -> PromptToken:
    total = log_sum_exp(values)
    return PromptToken(token, float(values[token]) - total, rank_of(values, token), best_tokens(values, total, n))
