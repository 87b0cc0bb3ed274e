"""The group of commands, and how each of them ends."""

from __future__ import annotations

import os
import sys
from importlib.metadata import version

import click

from nalar.cli import INTERRUPTED, MISTAKE
from nalar.cli.generate import generate
from nalar.cli.inspect import inspect
from nalar.cli.models import models
from nalar.cli.warmup import warmup
from nalar.errors import NalarError

__all__ = ["cli", "run"]


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(version("nalar"), message="nalar %(version)s")
def cli() -> None:
    """Sample from language models, exactly as asked."""


for command in (generate, inspect, models, warmup):
    cli.add_command(command)


def run(arguments: list[str]) -> int:
    """The exit status of ``nalar arguments``: 0, 2 for a user's mistake (one line on stderr), 130 for an interrupt."""
    try:
        with cli.make_context("nalar", list(arguments)) as context:  # cli.main would end a broken pipe with 1
            status = cli.invoke(context)
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message(), err=True)
        return MISTAKE
    except click.ClickException as error:
        return _mistake(error.format_message())
    except NalarError as error:
        return _mistake(str(error))
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:  # the reader has seen enough; keep Python from complaining at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return _mistake(f"{error.filename or 'the output'}: {error.strerror}")
    return status if isinstance(status, int) else 0


def _mistake(message: str) -> int:
    click.echo(f"nalar: {message.splitlines()[0]}", err=True)
    return MISTAKE
