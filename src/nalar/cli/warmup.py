"""``nalar warmup``: compile every kernel now, so that no later call waits for it."""

from __future__ import annotations

import click
from rich.table import Table

from nalar import kernels
from nalar.cli.screen import console

__all__ = ["warmup"]


@click.command()
def warmup() -> None:
    """Compile all kernels and print how long each took.

    Compiled kernels are kept on disk; from then on, starting costs under a second.
    """
    if not kernels.enabled():
        click.echo("the kernels are off: Numba is not installed, or NALAR_KERNELS=off is set")
        return
    table = Table("kernel", box=None, pad_edge=False, header_style="bold")
    table.add_column("seconds", justify="right")
    total = 0.0
    for name, seconds in kernels.warmup():
        table.add_row(name, f"{seconds:.2f}")
        total += seconds
    table.add_row("all", f"{total:.2f}", style="bold")
    console().print(table)
