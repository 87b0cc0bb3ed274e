"""``nalar inspect``: the next token's candidates, stage by stage."""

from __future__ import annotations

import json
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from nalar.chain import Chain
from nalar.cli.options import ask_of, asked_fields, law_options, model_options, prompt_options, sampling_params
from nalar.cli.records import stage_record
from nalar.cli.screen import bar, console, percent, show_token
from nalar.distribution import Distribution
from nalar.history import History
from nalar.keys import Key, fresh_seed
from nalar.model import check_beside, load
from nalar.trace import Trace, trace_row

__all__ = ["inspect"]

NARROW, WIDE = 0, 10  # cells of a bar
TOKEN, SHARE = 5, 7  # cells a token and a share need


@click.command()
@prompt_options
@model_options
@law_options
@click.option("--top", type=click.IntRange(1, 1000), default=20, show_default=True, metavar="N", help="How many candidates to show.")
@click.option("--seed", type=int, metavar="N", help="The key, where a stage flips a coin.  [default: fresh]")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def inspect(
    prompt: str | None, file: Any, chat: bool, system: str | None, model: str, context: int | None, threads: int | None,
    reproducible: bool, chain: str | None, top: int, seed: int | None, as_json: bool, **given: Any,
) -> None:
    """Show what each stage does to the token that follows PROMPT.

    One table has the stages: how many tokens and how much of the probability each leaves, and the entropy before and after.
    The other has the candidates: their probability after each stage, or which stage cut them.
    """
    asked = sampling_params(given)
    written = None if chain is None else Chain.parse(chain)
    ask = ask_of(prompt, file, chat, system)
    with load(model, context=context, threads=threads, reproducible=reproducible) as loaded:
        if written is not None:
            check_beside(asked_fields(given))
        request = loaded.request(params=asked, chain=written, **ask)
        row = loaded.logits(list(request.prompt))
        key = Key(fresh_seed() if seed is None else seed)
        trace = trace_row(row, request.chain, History(request.prompt), key)
        pieces = loaded.engine.vocabulary.pieces
    if as_json:
        click.echo(_as_json(trace, request.chain, pieces, top))
        return
    screen = console()
    screen.print(Text(f"chain  {request.chain}\n"))
    screen.print(_stage_table(trace), "")
    for table in _candidate_tables(trace, pieces, top, screen.width):
        screen.print(table)


def _stage_table(trace: Trace) -> Table:
    table = Table("stage", box=None, pad_edge=False, header_style="bold")
    for heading in ("tokens", "mass kept", "entropy in nats"):
        table.add_column(heading, justify="right")
    raw = trace.raw
    table.add_row(Text("(the model)", style="dim"), f"{raw.ids.size:,}", "", f"{raw.entropy():.3f}")
    for stage in trace.stages:
        table.add_row(
            Text(stage.stage), f"{stage.before:,} → {stage.after:,}", percent(stage.mass),
            f"{stage.entropy_before:.3f} → {stage.entropy_after:.3f}",
        )
    return table


def _candidate_tables(trace: Trace, pieces: tuple[bytes, ...], top: int, width: int) -> list[Table]:
    """A row a candidate, a column a stage; where they do not fit side by side, in several tables below each other."""
    laws = [("(the model)", trace.raw), *((stage.stage, stage.law) for stage in trace.stages)]
    fit = max((width - TOKEN - 1) // (SHARE + 1), 1)
    tables = [_candidate_table(trace, pieces, top, width, laws, first, first + fit) for first in range(0, len(laws), fit)]
    hidden = trace.raw.ids.size - len(tables[-1].rows)
    if hidden > 0:
        tables[-1].caption, tables[-1].caption_justify = f"and {hidden:,} more", "left"
    return tables


def _candidate_table(
    trace: Trace, pieces: tuple[bytes, ...], top: int, width: int, laws: list[tuple[str, Distribution]], first: int, last: int
) -> Table:
    """The candidates under ``laws[first:last]``: their share of each, with a bar where the width allows."""
    cells = (width - 24) // len(laws) - 9
    size = WIDE if cells >= WIDE else max(cells, NARROW)
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("\ntoken", no_wrap=True, overflow="ellipsis", min_width=min(TOKEN, max(width - SHARE - 1, 1)))
    for heading, _ in laws[first:last]:
        name, bracket, arguments = heading.partition("(")
        shown = heading if not name else f"{name}\n{bracket}{arguments}"
        table.add_column(Text(shown), no_wrap=True, overflow="ellipsis", min_width=SHARE)
    cut_by = trace.cut_by()
    for token in _shown(trace, top):
        shares = _shares([law.prob(token) for _, law in laws], size)[first:last]
        table.add_row(Text(show_token(pieces[token], token)), *shares, style="dim" if token in cut_by else None)
    return table


def _shown(trace: Trace, top: int) -> list[int]:
    """The ``top`` likeliest of the model and of the result, the result's order first."""
    last = trace.law.top(top).tolist()
    return [*last, *(token for token in trace.raw.top(top).tolist() if token not in last)][: max(top, len(last))]


def _shares(shares: list[float], size: int) -> list[Text]:
    """The cells of one candidate: after the stage that cut it there is nothing."""
    cells = []
    for place, share in enumerate(shares):
        if share > 0:
            cells.append(Text.assemble((f"{percent(share):>6} ", ""), (bar(share, size), "cyan")))
        else:
            cells.append(Text("   cut", style="red") if place and shares[place - 1] > 0 else Text(""))
    return cells


def _as_json(trace: Trace, chain: Chain, pieces: tuple[bytes, ...], top: int) -> str:
    cut_by = trace.cut_by()
    candidates = [
        {
            "token": token,
            "text": pieces[token].decode("utf-8", "replace"),
            "raw": trace.raw.prob(token),
            "stages": [stage.law.prob(token) for stage in trace.stages],
            "cut_by": cut_by.get(token),
        }
        for token in _shown(trace, top)
    ]
    record = {
        "chain": str(chain),
        "tokens": trace.raw.ids.size,
        "entropy": trace.raw.entropy(),
        "stages": [stage_record(stage) for stage in trace.stages],
        "candidates": candidates,
    }
    return json.dumps(record, ensure_ascii=False, allow_nan=False)
