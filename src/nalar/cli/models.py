"""``nalar models``: what is installed, and what each name or path would load."""

from __future__ import annotations

import json
from dataclasses import asdict

import click
from rich.table import Table
from rich.text import Text

from nalar.cli.screen import console, show_token
from nalar.engines import known_names
from nalar.engines.describe import Description, describe
from nalar.errors import NalarError

__all__ = ["models"]


@click.command()
@click.argument("names", nargs=-1, metavar="[NAME|PATH]...")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON list.")
def models(names: tuple[str, ...], as_json: bool) -> None:
    """List the models that can be loaded, or describe NAME or PATH.

    A file's own sampling defaults are shown here and never applied.
    """
    told = [describe(name) for name in names] if names else [_try(name) for name in known_names()]
    if as_json:
        click.echo(json.dumps([asdict(one) if isinstance(one, Description) else one for one in told], ensure_ascii=False))
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading, justify in (("name", "left"), ("size", "right"), ("vocabulary", "right"), ("context", "right"), ("chat", "left")):
        table.add_column(heading, justify="right" if justify == "right" else "left")
    table.add_column("sampling defaults of the file")
    table.add_column("what it loads", overflow="fold")
    for one in told:
        cells = _row(one) if isinstance(one, Description) else (one["name"], "", "", "", "", "", one["problem"])
        table.add_row(*map(_plain, cells), style=None if isinstance(one, Description) else "red")
    console().print(table)


def _plain(cell: str) -> Text:
    """A cell as it is: a file's name is no markup, and its control characters are spelled."""
    return Text(show_token(cell.encode(errors="backslashreplace"), 0).replace("·", " ") if cell else "")


def _try(name: str) -> Description | dict[str, str]:
    """A listing goes on past a model that cannot be loaded, and says why."""
    try:
        return describe(name)
    except NalarError as error:
        return {"name": name, "problem": str(error)}


def _row(one: Description) -> tuple[str, ...]:
    defaults = ", ".join(f"{key} {value}" for key, value in one.defaults.items()) or "none"
    size = "" if one.size is None else f"{one.size / 1e6:.0f} MB"
    return one.name, size, f"{one.vocabulary:,}", f"{one.context:,}", "yes" if one.chat else "no", defaults, one.source
