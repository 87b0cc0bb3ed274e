"""Documents that cannot lie: every example in README.md, docs/ and the docstrings runs, and the help page is the help."""

from __future__ import annotations

import doctest
import importlib
import re
import runpy
import shlex
import textwrap
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [page for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))) if page.exists()]
MODULES = [path for path in sorted((ROOT / "src").rglob("*.py")) if ">>>" in path.read_text()]
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
FENCE = re.compile(r"^(?P<indent> *)```(?P<kind>\w+)?[^\n]*\n(?P<body>.*?)^(?P=indent)``` *$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    kind: str
    body: str
    line: int  # of the first line of the body, from 1


def blocks(path: Path) -> Iterator[Block]:
    text = path.read_text(encoding="utf-8")
    for found in FENCE.finditer(text):
        yield Block(found["kind"] or "", textwrap.dedent(found["body"]), text.count("\n", 0, found.start("body")) + 1)


def pages(kind: str) -> list[Any]:
    """The pages that have a block of ``kind``, as test parameters."""
    shown = [page for page in PAGES if any(block.kind == kind for block in blocks(page))]
    return [pytest.param(page, id=str(page.relative_to(ROOT)), marks=marks(page)) for page in shown]


def marks(page: Path) -> list[pytest.MarkDecorator]:
    """A page that loads the real model runs where the other tests of it run."""
    return [pytest.mark.xdist_group("smollm2")] if 'load("smollm2"' in page.read_text() else []


@pytest.mark.parametrize("page", pages("python"))
def test_python_on_pages_runs(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of a page run in order in one namespace, as a reader would type them."""
    monkeypatch.chdir(ROOT)
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(page):
        if block.kind != "python":
            continue
        if ">>>" in block.body:
            run_examples(block.body, names, page, block.line)
        else:  # padded, so that a traceback shows the page's own line
            exec(compile("\n" * (block.line - 1) + block.body, str(page), "exec"), names)


def run_examples(text: str, names: dict[str, Any], page: Path, line: int) -> None:
    test = doctest.DocTestParser().get_doctest(text, names, page.name, str(page), line - 1)
    output: list[str] = []
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    runner.run(test, out=output.append, clear_globs=False)
    names.update(test.globs)
    assert runner.failures == 0, "".join(output)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT / "src")))
def test_docstring_examples_run(path: Path) -> None:
    module = importlib.import_module(".".join(path.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__"))
    output: list[str] = []
    runner = doctest.DocTestRunner(optionflags=FLAGS)
    for test in doctest.DocTestFinder().find(module):
        runner.run(test, out=output.append)
    assert runner.failures == 0, "".join(output)
    assert runner.tries > 0, "the file has >>> that doctest does not see"


class Command(NamedTuple):
    line: str
    arguments: list[str]
    expected: str


def commands(text: str) -> Iterator[Command]:
    """The ``$ nalar …`` lines of a console block, each with the output printed below it."""
    for entry in re.split(r"^\$ ", text.replace("\\\n", " "), flags=re.MULTILINE)[1:]:
        line, _, expected = entry.partition("\n")
        words = shlex.split(line, comments=True)
        if words[:1] == ["nalar"]:
            yield Command(line, words[1:], expected)


@pytest.mark.parametrize("page", pages("console"))
def test_commands_on_pages_run(page: Path) -> None:
    """With the toy model the output is compared; commands that need a model or a file of the reader's are only parsed."""
    for block in blocks(page):
        for command in commands(block.body) if block.kind == "console" else ():
            (run_command if "toy" in command.arguments else parse_command)(command)


def run_command(command: Command) -> None:
    from click.testing import CliRunner

    from nalar.cli.commands import cli

    result = CliRunner().invoke(cli, command.arguments, prog_name="nalar")
    assert result.exit_code == 0, f"$ {command.line}\n{result.output}"
    if command.expected.strip():
        same = doctest.OutputChecker().check_output(command.expected.strip() + "\n", result.stdout.strip() + "\n", FLAGS)
        assert same, f"$ {command.line}\nthe page says\n{command.expected}\nthe command says\n{result.stdout}"


def parse_command(command: Command) -> None:
    """Fails on a command or an option that does not exist."""
    import click

    from nalar.cli.commands import cli

    context = cli.make_context("nalar", list(command.arguments), resilient_parsing=True)
    name = command.arguments[0] if command.arguments and not command.arguments[0].startswith("-") else None
    if name is None:
        return
    found = cli.get_command(context, name)
    assert found is not None, f"$ {command.line}: no such command"
    with suppress(click.BadParameter, click.exceptions.Exit):  # a file only the reader has; --help
        found.make_context(name, command.arguments[1:], parent=context)


def test_the_commands_page_is_the_help() -> None:
    from nalar.cli.commands import cli

    written = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    assert written == runpy.run_path(str(ROOT / "scripts" / "commands_page.py"))["page"](cli), "run `make docs`"
