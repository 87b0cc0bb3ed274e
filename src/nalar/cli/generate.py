"""``nalar generate``: text from a model, as it is drawn."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import click

from nalar.chain import Chain
from nalar.cli.options import law_options, model_options, prompt_options, read_prompt, sampling_params
from nalar.completion import Completion, Event, Stats, fold
from nalar.engines.base import Message
from nalar.errors import InvalidValue
from nalar.model import Model, load

__all__ = ["generate"]


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
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of streaming.")
def generate(
    prompt: str | None, file: Any, chat: bool, system: str | None, model: str, context: int | None, threads: int | None,
    reproducible: bool, chain: str | None, as_json: bool, **given: Any,
) -> int:
    """Generate text that follows PROMPT (or stdin, or --file).

    The text streams to stdout; the seed and the speed go to stderr.
    """
    params = sampling_params(given)
    law = None if chain is None else Chain.parse(chain)
    text = read_prompt(prompt, file)
    ask: dict[str, Any] = {"messages": _messages(text, system)} if chat else {"prompt": text}
    if system is not None and not chat:
        raise InvalidValue("--system needs --chat, got it alone")
    with load(model, context=context, threads=threads, reproducible=reproducible) as loaded:
        request = loaded.request(params=params, chain=law, **ask)
        events, stats = loaded.events(request)
        if as_json:
            click.echo(_as_json(fold(events, seed=request.seed, chain=str(request.chain), stats=stats)))
            return 0
        return _stream(loaded, "" if chat else text, events, request.seed, stats)


def _messages(text: str, system: str | None) -> list[Message]:
    before: list[Message] = [] if system is None else [{"role": "system", "content": system}]
    return [*before, {"role": "user", "content": text}]


def _stream(model: Model, prompt: str, events: Iterator[Event], seed: int, stats: Stats) -> int:
    """Print pieces as they come.  On a terminal the prompt stands before them, dimmed."""
    if prompt and sys.stdout.isatty():
        click.secho(prompt, dim=True, nl=False)
    status = 0
    try:
        for event in events:
            click.echo(event.text, nl=False)
            sys.stdout.flush()
    except KeyboardInterrupt:
        status = 130
    click.echo()
    click.echo(f"{stats.emitted} tokens, {stats.tokens_per_second:.1f} tokens/s, seed {seed}", err=True)
    return status


def _as_json(out: Completion) -> str:
    """One object; −inf, which JSON lacks, becomes null."""
    return json.dumps(
        {
            "text": out.text,
            "tokens": out.tokens,
            "logprobs": [None if math.isinf(value) else value for value in out.logprobs],
            "finish_reason": out.finish_reason,
            "seed": out.seed,
            "chain": out.chain,
            "stats": asdict(out.stats) | {"tokens_per_second": out.stats.tokens_per_second},
        },
        ensure_ascii=False,
        allow_nan=False,
    )
