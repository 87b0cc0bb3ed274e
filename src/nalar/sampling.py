"""The act: a row, a chain and a key give a token.  One row, or many at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from nalar.candidates import log_sum_exp, rank_of
from nalar.chain import Chain, Evaluation, resolve_key
from nalar.checks import check_choice, check_integer
from nalar.distribution import DRAWS, Distribution, Draw, check_draw
from nalar.errors import BrokenRow, InvalidType, InvalidValue, NalarError
from nalar.fast_batch import fast_batch, fast_block
from nalar.history import History, check_history
from nalar.keys import Key
from nalar.rows import FloatRow, as_float64, as_row, split_rows

__all__ = ["Batch", "Sample", "TokenLogprob", "best_tokens", "check_chain", "draw_sample", "report", "sample", "sample_batch"]


EMPTY = History()


class TokenLogprob(NamedTuple):
    """One token of a view: its log-probability there, and its rank (1 is the most likely)."""

    token: int
    logprob: float
    rank: int


@dataclass(frozen=True, slots=True)
class Sample:
    """One drawn token.

    ``logprob`` is the token's log-probability under the chain's law at its position, the *final* view; for a recovered token of a
    speculative step too, never under the residual that it was drawn from.  ``raw_logprob``, ``raw_rank``
    and ``rank`` are there when ``logprobs`` was asked for: the *raw* view is the log-softmax of the logits as given.
    ``top`` and ``raw_top`` are the n best of each view.  ``law`` is there with ``keep_law=True``, held: it outlives the logits.
    """

    token: int
    logprob: float
    key: Key
    rank: int | None = None
    raw_logprob: float | None = None
    raw_rank: int | None = None
    top: tuple[TokenLogprob, ...] = ()
    raw_top: tuple[TokenLogprob, ...] = ()
    law: Distribution | None = None


@dataclass(frozen=True, slots=True)
class Batch:
    """The samples of a batch, row by row.  Where a row failed: ``samples`` None, ``errors`` its error, ``tokens`` −1, ``logprobs`` NaN."""

    samples: tuple[Sample | None, ...]
    errors: tuple[Exception | None, ...]

    @property
    def tokens(self) -> npt.NDArray[np.int32]:
        """int32 [rows]."""
        return np.array([-1 if sample is None else sample.token for sample in self.samples], np.int32)

    @property
    def logprobs(self) -> npt.NDArray[np.float64]:
        """float64 [rows], of the final view."""
        return np.array([np.nan if sample is None else sample.logprob for sample in self.samples])


def sample(
    logits: Any, chain: Chain, key: Key, history: History | None = None, *, logprobs: int | None = None,
    draw: Draw = "inverse", keep_law: bool = False, vocabulary: int | None = None,
) -> Sample:
    """Draw one token from the law that ``chain`` makes of ``logits``.

    ``logits`` [vocabulary]: NumPy or torch CPU, float16, bfloat16, float32 or float64; read, never written.  ``key``: its position
    None stands for the length of the history's output.  ``logprobs``: None, or n in [0, vocabulary] for ranks, the raw
    log-probability and the n best of both views (one more pass).  ``vocabulary``: how many ids count, if the row is padded.
    Raises BrokenRow for logits that define no distribution.

    >>> import nalar
    >>> nalar.sample([0.0, 4.0, 1.0], nalar.Chain.parse("temperature(0)"), nalar.Key(seed=7)).token
    1
    """
    row = as_row(logits, vocabulary)
    history = EMPTY if history is None else check_history(history)
    key = resolve_key(key, history)
    drawn = check_chain(chain).draw(row, history, key, draw if draw in DRAWS else check_draw(draw))
    if logprobs is None and not keep_law and drawn is not None:
        return Sample(drawn[0], drawn[1], key)
    return draw_sample(row, chain.evaluate(row, history, key), key, logprobs, draw, keep_law, drawn)


def sample_batch(
    rows: Any, chains: Chain | Sequence[Chain], keys: Sequence[Key], histories: Sequence[History | None] | None = None, *,
    threads: int = 1, errors: Literal["raise", "return"] = "raise", logprobs: int | None = None, draw: Draw = "inverse",
    keep_law: bool = False, vocabulary: int | None = None,
) -> Batch:
    """``sample`` for each row, independently: the batch equals its rows one by one.

    ``rows``: an array [rows, vocabulary], or a list of rows that may differ.  One chain serves all rows, or there is one a row; keys and
    histories come one a row.  ``errors``: "raise" the first row's error, or "return" every error in its row's place and sample
    the rest.  ``threads``: how many rows are worked on at once.

    >>> import nalar
    >>> keys = [nalar.Key(seed=7, sequence=i) for i in range(3)]
    >>> batch = nalar.sample_batch(np.log([[0.9, 0.1], [np.nan, 1.0], [0.1, 0.9]]), nalar.Chain(), keys, errors="return")
    >>> batch.tokens.tolist(), str(batch.errors[1])
    ([1, -1, 1], 'row 1: logits must be finite or -inf, got nan at token 0')
    """
    listed = split_rows(rows)
    size = len(listed)
    each_chain = [chains] * size if isinstance(chains, Chain) else _one_a_row("chains", chains, size)
    each_key = _one_a_row("keys", keys, size)
    each_history = [None] * size if histories is None else _one_a_row("histories", histories, size)
    check_choice("errors", errors, ("raise", "return"))

    threads = check_integer("threads", threads, 1)
    fast = _fast(rows, listed, each_chain, each_key, each_history, draw, threads, vocabulary) if logprobs is None and not keep_law else []

    def one(index: int) -> Sample:
        return sample(
            listed[index], each_chain[index], each_key[index], each_history[index],
            logprobs=logprobs, draw=draw, keep_law=keep_law, vocabulary=vocabulary,
        )

    attempts: list[tuple[Sample | None, Exception | None]] = [(drawn, None) for drawn in fast] or [(None, None)] * size
    left = [index for index, (drawn, _) in enumerate(attempts) if drawn is None]
    for index, attempt in zip(left, _spread(one, left, threads), strict=True):
        attempts[index] = attempt
    failed = next((error for _, error in attempts if error is not None), None)
    if failed is not None and errors == "raise":
        raise failed
    return Batch(tuple(drawn for drawn, _ in attempts), tuple(error for _, error in attempts))


def draw_sample(
    row: FloatRow, evaluation: Evaluation, key: Key, logprobs: int | None, draw: Draw, keep_law: bool,
    drawn: tuple[int, float] | None = None,
) -> Sample:
    """Draw from an evaluated law, unless the kernels have ``drawn`` already, and report what was asked for."""
    law = evaluation.law
    if drawn is None:
        token = law.draw(key, draw)
        drawn = token, law.logprob(token)
    return report(row, law, *drawn, key, logprobs, keep_law)


def report(row: FloatRow, law: Distribution, token: int, logprob: float, key: Key, logprobs: int | None, keep_law: bool = False) -> Sample:
    """What was asked for about ``token``, however it was drawn; ``logprob`` is the law's."""
    kept = law.hold() if keep_law else None
    if logprobs is None:
        return Sample(token, logprob, key, law=kept)
    best = check_integer("logprobs", logprobs, 0, row.size)
    values = as_float64(row)
    total = log_sum_exp(values)
    return Sample(
        token, logprob, key, law.rank(token), float(values[token]) - total, rank_of(values, token),
        _best_of_law(law, best),
        best_tokens(values, total, best),
        kept,
    )


def _best_of_law(law: Distribution, n: int) -> tuple[TokenLogprob, ...]:
    """The ``n`` most likely tokens of a law, from its arrays: a search for each would cost more than the row."""
    ids = law.top(n)
    logprobs = law.logprobs[np.searchsorted(law.ids, ids)]
    return tuple(map(TokenLogprob, ids.tolist(), logprobs.tolist(), range(1, ids.size + 1)))


def check_chain(chain: Any) -> Chain:
    """A chain, and not something that could be turned into one."""
    if not isinstance(chain, Chain):
        raise InvalidType(f"chain must be a nalar.Chain (see Chain.parse and Chain.from_params), got {chain!r}")
    return chain


def best_tokens(values: npt.NDArray[np.float64], total: float, n: int) -> tuple[TokenLogprob, ...]:
    """The ``n`` largest of a row's logits, whose log-sum-exp is ``total``; the lower id first among equals."""
    order = np.argsort(-values, kind="stable")[:n] if n else np.zeros(0, np.intp)
    with np.errstate(over="ignore"):  # a difference past the range of floats is −inf
        logprobs = values[order] - total
    return tuple(map(TokenLogprob, order.tolist(), logprobs.tolist(), range(1, order.size + 1)))


def _one_a_row(name: str, given: Any, size: int) -> list[Any]:
    if not isinstance(given, Sequence) or len(given) != size:
        got = f"{len(given)}" if isinstance(given, Sequence) else type(given).__name__
        raise InvalidValue(f"{name} must be a list with one entry for each of the {size} rows, got {got}")
    return list(given)


def _fast(
    rows: Any, listed: list[Any], chains: list[Chain], keys: list[Key], histories: list[History | None], draw: Draw, threads: int,
    vocabulary: int | None,
) -> list[Sample | None]:
    """The rows that the kernels could draw from; whatever is wrong with the others, ``sample`` will say."""
    well_typed = (
        all(isinstance(key, Key) for key in keys) and all(isinstance(chain, Chain) for chain in chains)
        and all(history is None or isinstance(history, History) for history in histories)
    )
    if draw not in DRAWS or not well_typed:
        return []
    plain = type(rows) is np.ndarray and rows.dtype.kind == "f" and rows.ndim == 2 and rows.size > 0
    block = rows if plain and vocabulary is None else None
    shared = chains[0] if chains and all(chain is chains[0] for chain in chains) else None
    if block is not None and shared is not None and not any(histories):
        drawn = fast_block(block, shared, keys, draw, threads)
    else:
        known = [history or EMPTY for history in histories]
        drawn = fast_batch([_row_or_none(row, vocabulary) for row in listed], chains, keys, known, draw, threads)
    at = [resolve_key(key, history or EMPTY) for key, history in zip(keys, histories, strict=True)]
    return [None if one is None else Sample(one[0], one[1], key) for one, key in zip(drawn, at, strict=True)]


def _row_or_none(row: Any, vocabulary: int | None) -> FloatRow | None:
    try:
        return as_row(row, vocabulary)
    except NalarError:
        return None


def _spread(one: Callable[[int], Sample], places: list[int], threads: int) -> list[tuple[Sample | None, Exception | None]]:
    """``one`` for each of ``places``, in order; a row's exception stays with its row."""

    def attempt(index: int) -> tuple[Sample | None, Exception | None]:
        try:
            return one(index), None
        except BrokenRow as error:
            return None, error.at(index)
        except Exception as error:  # a user's own stage may raise anything
            error.add_note(f"in row {index}")
            return None, error

    if threads == 1 or len(places) < 2:
        return [attempt(index) for index in places]
    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(attempt, places))
