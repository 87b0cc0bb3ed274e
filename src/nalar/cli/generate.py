"""``nalar generate``: text from a model, as it is drawn."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import IO, Any, NamedTuple

import click
from rich.table import Table
from rich.text import Text

from nalar.chain import Chain
from nalar.cli import INTERRUPTED
from nalar.cli.options import ask_of, asked_fields, law_options, model_options, prompt_options, sampling_params
from nalar.cli.progress import PromptProgress
from nalar.cli.records import completion_record, event_record
from nalar.cli.screen import console, show_token
from nalar.completion import Completion, Event, Stats, fold
from nalar.echo import PromptToken
from nalar.errors import InvalidValue
from nalar.generate import Request
from nalar.model import Model, check_beside, load

__all__ = ["generate"]

TRACED = 5  # alternatives in a trace, where --logprobs does not say


@click.command()
@prompt_options
@model_options
@law_options
@click.option("--max-tokens", type=int, metavar="N", help="Most tokens to draw.  [default: 256]")
@click.option("--min-tokens", type=int, metavar="N", help="Tokens before the reply may end.  [default: 0]")
@click.option("--stop", multiple=True, metavar="TEXT", help="End before this text; repeatable.")
@click.option("--stop-token", "stop_tokens", type=int, multiple=True, metavar="ID", help="End at this id; repeatable.")
@click.option("--ignore-eos", is_flag=True, default=None, help="Go on past the model's end ids.")
@click.option("--seed", type=int, metavar="N", help="Same seed, same tokens.  [default: fresh, and told on stderr]")
@click.option("--n", "n", type=int, default=1, show_default=True, metavar="N", help="Replies to draw; the prompt is evaluated once.")
@click.option("--draft", metavar="NAME", help="Propose tokens ahead: suffix or ngram.  The law stays the same.  [default: none]")
@click.option("--logprobs", type=int, metavar="N", help="Also report log-probabilities, ranks and the N best of each view.")
@click.option("--echo", is_flag=True, help="With --json: also report the prompt's own log-probabilities.")
@click.option("--trace", "trace", type=click.Path(dir_okay=False, allow_dash=True), metavar="FILE", help="Write one JSON line a token.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of streaming.")
def generate(
    prompt: str | None, file: Any, chat: bool, system: str | None, model: str, context: int | None, threads: int | None,
    reproducible: bool, chain: str | None, n: int, draft: str | None, echo: bool, trace: str | None, as_json: bool, **given: Any,
) -> int:
    """Generate text that follows PROMPT (or stdin, or --file).

    The text streams to stdout; the seed and the speed go to stderr.
    """
    if echo and not as_json:
        raise InvalidValue("--echo needs --json, got it alone")
    table = given["logprobs"] is not None
    if trace is not None and not table:
        given["logprobs"] = TRACED
    params = sampling_params(given)
    written = None if chain is None else Chain.parse(chain)
    ask = ask_of(prompt, file, chat, system)
    with ExitStack() as stack:
        loaded = stack.enter_context(load(model, context=context, threads=threads, reproducible=reproducible))
        progress = stack.enter_context(PromptProgress())
        if written is not None:
            check_beside(asked_fields(given))
        request = loaded.request(params=params, chain=written, draft=draft, progress=progress, trace=trace is not None, **ask)
        lines = None if trace is None else stack.enter_context(_open_trace(trace))
        told = loaded.prompt_logprobs(request) if echo else None
        if n == 1 and not as_json:
            events, stats = loaded.events(request)
            shown = _stream("" if chat else str(ask["prompt"]), _traced(events, 0, lines, loaded), request.seed, stats)
            if table and shown.drawn:
                console().print(_logprob_table(shown.drawn, loaded))
            return shown.status
        replies = _draw(loaded, request, n, lines, told)
        if as_json:
            records = [completion_record(out, loaded.engine.vocabulary.pieces) for out, _ in replies]
            click.echo(json.dumps(records[0] if n == 1 else records, ensure_ascii=False, allow_nan=False))
        else:
            _print(replies, request.seed, loaded if table else None)
        return 0


def _open_trace(path: str) -> AbstractContextManager[IO[str]]:
    try:
        return click.open_file(path, "w", encoding="utf-8")
    except OSError as error:
        raise InvalidValue(f"--trace must be a file that can be written, got {path!r}: {error.strerror}") from None


class Shown(NamedTuple):
    """How a stream ended, and the events whose tokens are in the text."""

    status: int
    drawn: list[Event]


def _stream(prompt: str, events: Iterable[Event], seed: int, stats: Stats) -> Shown:
    """Print pieces as they come.  On a terminal the prompt stands before them, dimmed."""
    if prompt and sys.stdout.isatty():
        click.secho(prompt, dim=True, nl=False)
    status, drawn = 0, []
    try:
        for event in events:
            click.echo(event.text, nl=False)
            sys.stdout.flush()
            drawn.append(event)
    except KeyboardInterrupt:
        status = INTERRUPTED
    click.echo()
    _tell(stats, seed)
    return Shown(status, drawn[: drawn[-1].kept] if drawn and drawn[-1].finish else drawn)


def _draw(
    model: Model, request: Request, n: int, lines: IO[str] | None, told: tuple[PromptToken, ...] | None
) -> list[tuple[Completion, list[Event]]]:
    """All replies, each with the events whose tokens are in its text."""
    replies = []
    for sequence, (events, stats) in enumerate(_replies(model, request, n)):
        listed = list(_traced(events, sequence, lines, model))
        out = fold(listed, seed=request.seed, chain=str(request.chain), stats=stats, prompt_logprobs=told)
        replies.append((out, listed[: len(out.tokens)]))
    return replies


def _print(replies: list[tuple[Completion, list[Event]]], seed: int, model: Model | None) -> None:
    """Each reply under a heading of its own, with a table of log-probabilities where a model is given to spell them."""
    for number, (out, drawn) in enumerate(replies, 1):
        click.secho(f"--- {number} of {len(replies)}", dim=True)
        click.echo(out.text)
        if model is not None:
            console().print(_logprob_table(drawn, model))
    _tell(_sum([out.stats for out, _ in replies]), seed)


def _replies(model: Model, request: Request, n: int) -> Iterator[tuple[Iterable[Event], Stats]]:
    if n == 1:
        yield model.events(request)
    else:
        yield from ((branch.events, branch.stats) for branch in model.branches(request, n))


def _traced(events: Iterable[Event], sequence: int, lines: IO[str] | None, model: Model) -> Iterator[Event]:
    """The events, each written to the trace as a whole line before it is passed on."""
    for index, event in enumerate(events):
        if lines is not None:
            record = event_record(event, index, sequence, model.engine.vocabulary.pieces)
            lines.write(json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n")
            lines.flush()
        yield event


def _logprob_table(events: list[Event], model: Model) -> Table:
    """A line a token: what it was drawn with, what the model gave it, and the best of the law it came from."""
    pieces = model.engine.vocabulary.pieces
    table = Table("\ntoken", box=None, pad_edge=False, header_style="bold")
    for heading in ("final\nlogprob", "raw\nlogprob", "raw\nrank"):
        table.add_column(heading, justify="right")
    table.add_column("\nbest of the final law")
    for event in events:
        drawn = event.logprobs
        best = "  ".join(f"{show_token(pieces[other.token], other.token)} {other.logprob:.2f}" for other in drawn.top)
        shown = Text(show_token(pieces[event.token], event.token), style="bold")
        table.add_row(shown, f"{drawn.logprob:.3f}", f"{drawn.raw_logprob:.3f}", str(drawn.raw_rank), Text(best))
    return table


def _sum(stats: list[Stats]) -> Stats:
    """Replies drawn side by side: their tokens add up, their time is the longest."""
    together = Stats(prompt_seconds=stats[0].prompt_seconds, seconds=max(one.seconds for one in stats))
    for one in stats:
        together.emitted += one.emitted
        together.drafted += one.drafted
        together.accepted += one.accepted
        together.steps += one.steps
    return together


def _tell(stats: Stats, seed: int) -> None:
    drafted = f", {stats.accepted} of {stats.drafted} drafted tokens accepted in {stats.steps} steps" if stats.drafted else ""
    click.echo(f"{stats.emitted} tokens, {stats.tokens_per_second:.1f} tokens/s{drafted}, seed {seed}", err=True)
