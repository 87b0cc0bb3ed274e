"""What is printed as JSON.  −inf, which JSON lacks, becomes null."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from nalar.completion import Completion, Event
from nalar.echo import PromptToken
from nalar.sampling import TokenLogprob
from nalar.trace import StageTrace

__all__ = ["completion_record", "event_record", "stage_record"]

MOST_CUT = 10  # ids listed per stage; the count tells the rest

Pieces = tuple[bytes, ...]


def completion_record(out: Completion, pieces: Pieces) -> dict[str, Any]:
    """A whole reply; lists of alternatives only where they were asked for."""
    record: dict[str, Any] = {
        "text": out.text,
        "tokens": out.tokens,
        "logprobs": [_finite(value) for value in out.logprobs],
        "finish_reason": out.finish_reason,
        "seed": out.seed,
        "chain": out.chain,
        "stats": asdict(out.stats) | {"tokens_per_second": out.stats.tokens_per_second, "acceptance": out.stats.acceptance},
    }
    if out.raw_logprobs is not None:
        record["raw_logprobs"] = [_finite(value) for value in out.raw_logprobs]
        record["top"] = [_top(best, pieces) for best in out.top or ()]
        record["raw_top"] = [_top(best, pieces) for best in out.raw_top or ()]
    if out.prompt_logprobs is not None:
        record["prompt_logprobs"] = [_prompt_token(token, pieces) for token in out.prompt_logprobs]
    return record


def event_record(event: Event, index: int, sequence: int, pieces: Pieces) -> dict[str, Any]:
    """One drawn token: what was chosen, what else could have been, and what each stage kept."""
    drawn = event.logprobs
    return {
        "sequence": sequence,
        "index": index,
        "token": event.token,
        "text": _text(pieces, event.token),
        "bytes": list(pieces[event.token]),
        "logprob": _finite(drawn.logprob),
        "raw_logprob": _finite(drawn.raw_logprob),
        "rank": drawn.rank,
        "raw_rank": drawn.raw_rank,
        "top": _top(drawn.top, pieces),
        "raw_top": _top(drawn.raw_top, pieces),
        "stages": [] if event.trace is None else [stage_record(stage) for stage in event.trace.stages],
        "finish": event.finish,
    }


def stage_record(stage: StageTrace) -> dict[str, Any]:
    """One stage: counts, mass, entropies, and the likeliest ids it cut."""
    return {
        "stage": stage.stage,
        "before": stage.before,
        "after": stage.after,
        "mass": stage.mass,
        "entropy_before": stage.entropy_before,
        "entropy_after": stage.entropy_after,
        "cut": len(stage.cut),
        "likeliest_cut": list(stage.cut[:MOST_CUT]),
    }


def _top(best: Iterable[TokenLogprob], pieces: Pieces) -> list[dict[str, Any]]:
    return [{"token": token, "text": _text(pieces, token), "logprob": _finite(logprob), "rank": rank} for token, logprob, rank in best]


def _prompt_token(token: PromptToken, pieces: Pieces) -> dict[str, Any]:
    told = {"token": token.token, "text": _text(pieces, token.token), "raw_logprob": _finite(token.logprob), "raw_rank": token.rank}
    return told | {"raw_top": _top(token.top, pieces)}


def _text(pieces: Pieces, token: int) -> str:
    return pieces[token].decode("utf-8", "replace")


def _finite(value: float | None) -> float | None:
    return None if value is None or math.isinf(value) else value
