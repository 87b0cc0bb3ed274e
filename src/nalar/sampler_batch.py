"""Many sequences in one call: ragged rows, one Verdict or one error a sequence."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import Any, Literal

from nalar.checks import check_choice
from nalar.errors import BrokenRow, InvalidType, InvalidValue
from nalar.sampler import Sampler
from nalar.speculative.proposal import Proposal
from nalar.speculative.verdict import Verdict
from nalar.speculative.verifier import RuleLike

__all__ = ["step_batch"]


def step_batch(
    samplers: Sequence[Sampler], rows: Any, proposals: Sequence[Proposal | None] | None = None, *,
    rules: RuleLike | Sequence[RuleLike] = None, errors: Literal["raise", "return"] = "return", logprobs: int | None = None,
) -> list[Verdict | Exception]:
    """``sampler.step`` for each sequence, independently: the serving form.

    ``rows``: one block [kᵢ + 1, vocabulary] a sequence, or all rows of the batch as one array, in order.  ``proposals``: one a sequence,
    None for a plain draw.  ``rules``: one for all, or one a sequence.  A sequence whose row or stage fails has its exception in
    the list and nothing committed, and the others go on; ``errors="raise"`` raises the first of them when all are done.

    >>> import nalar
    >>> pair = [nalar.Sampler(nalar.Chain.parse("temperature(0)"), seed=7, sequence=i) for i in range(2)]
    >>> verdicts = step_batch(pair, [[0.0, 1.0], [2.0, 0.0], [0.0, 3.0]], [nalar.Proposal.point([1]), None])
    >>> [verdict.tokens for verdict in verdicts]
    [(1, 0), (1,)]
    """
    listed = list(samplers)
    for sampler in listed:
        if not isinstance(sampler, Sampler):
            raise InvalidType(f"samplers must be a list of nalar.Samplers, got {sampler!r} in it")
    if len({id(sampler) for sampler in listed}) < len(listed):
        raise InvalidValue("samplers must be different, one a sequence, got one of them twice")
    drafts = _one_each("proposals", [None] * len(listed) if proposals is None else proposals, len(listed))
    each_rule = _one_each("rules", rules if isinstance(rules, list | tuple) else [rules] * len(listed), len(listed))
    check_choice("errors", errors, ("raise", "return"))
    blocks = _blocks(rows, [1 if draft is None else len(draft) + 1 for draft in drafts])
    verdicts = [
        _attempt(index, sampler, block, draft, rule, logprobs)
        for index, (sampler, block, draft, rule) in enumerate(zip(listed, blocks, drafts, each_rule, strict=True))
    ]
    failed = next((verdict for verdict in verdicts if isinstance(verdict, Exception)), None)
    if failed is not None and errors == "raise":
        raise failed
    return verdicts


def _attempt(
    index: int, sampler: Sampler, rows: Any, proposal: Proposal | None, rule: RuleLike, logprobs: int | None
) -> Verdict | Exception:
    try:
        return sampler.step(rows, proposal, rule, logprobs=logprobs)
    except BrokenRow as error:
        return error.at(index)
    except Exception as error:  # a user's own stage may raise anything
        error.add_note(f"in sequence {index}")
        return error


def _blocks(rows: Any, sizes: list[int]) -> list[Any]:
    """The rows of each sequence."""
    if isinstance(rows, list | tuple) and len(rows) == len(sizes) and (not rows or _depth(rows[0]) == 2):
        return list(rows)
    if not hasattr(rows, "__len__") or len(rows) != sum(sizes):
        got = len(rows) if hasattr(rows, "__len__") else type(rows).__name__
        raise InvalidValue(f"rows must hold {sum(sizes)} rows for these proposals, or one block a sequence, got {got}")
    ends = list(accumulate(sizes))
    return [rows[end - size : end] for end, size in zip(ends, sizes, strict=True)]


def _depth(block: Any) -> int:
    """How many axes a block of rows has."""
    if hasattr(block, "ndim"):
        return int(block.ndim)
    return 1 + _depth(block[0]) if isinstance(block, list | tuple) and len(block) else int(isinstance(block, list | tuple))


def _one_each(name: str, given: Any, size: int) -> list[Any]:
    if not isinstance(given, Sequence) or len(given) != size:
        got = f"{len(given)}" if isinstance(given, Sequence) else type(given).__name__
        raise InvalidValue(f"{name} must be a list with one entry for each of the {size} samplers, got {got}")
    return list(given)
