"""Write docs/commands.md from the commands themselves; tests/test_docs.py fails when the two differ."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

PAGE = Path(__file__).resolve().parent.parent / "docs" / "commands.md"
HEAD = """\
# Commands

This page is written by `make docs` from the commands' own help. Do not edit it by hand.
"""


def page(group: click.Command, name: str = "nalar") -> str:
    """The help of ``group`` and of every command in it, as Markdown."""
    sections = [f"## `{title}`\n\n```text\n{text}\n```\n" for title, text in helps(group, name)]
    return "\n".join([HEAD, *sections])


def helps(command: click.Command, name: str, parent: click.Context | None = None) -> Iterator[tuple[str, str]]:
    """(path, help) of ``command`` and all below it; the width is fixed so that no terminal changes the page."""
    settings = {**command.context_settings, "terminal_width": 100, "max_content_width": 100}
    context = click.Context(command, parent, info_name=name, **settings)
    yield context.command_path, command.get_help(context).rstrip()
    if isinstance(command, click.Group):
        for child in command.list_commands(context):
            found = command.get_command(context, child)
            if found is not None and not found.hidden:
                yield from helps(found, child, context)


if __name__ == "__main__":
    from nalar.cli.commands import cli

    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page(cli), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(PAGE.parent.parent)}")
