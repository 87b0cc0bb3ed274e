"""How far a long prompt has come: a line on stderr that goes away, on a terminal only."""

from __future__ import annotations

from types import TracebackType

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn

from nalar.cli.screen import console

__all__ = ["PromptProgress"]


class PromptProgress:
    """Call it with (tokens done, tokens in all)."""

    def __init__(self) -> None:
        screen = console(stderr=True)
        columns = TextColumn("prompt"), BarColumn(), MofNCompleteColumn(), TextColumn("tokens")
        self._progress = Progress(*columns, console=screen, transient=True, disable=not screen.is_terminal)
        self._task: TaskID | None = None

    def __call__(self, done: int, total: int) -> None:
        if self._task is None:
            if done >= total:
                return  # a short prompt never shows
            self._progress.start()
            self._task = self._progress.add_task("prompt", total=total)
        self._progress.update(self._task, completed=done)
        if done >= total:
            self._progress.stop()

    def __enter__(self) -> PromptProgress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._progress.stop()
