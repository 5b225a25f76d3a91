"""Long waits made visible: a bar on a terminal, one plain line a stage elsewhere. Both go to stderr."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class Stages:
    """A callable `(stage, fraction)` to hand to what reports progress, used as a context manager.

    A new stage begins with its first call; `fraction` is in 0..1.
    """

    def __init__(self, terminal: bool | None = None) -> None:
        self._terminal = sys.stderr.isatty() if terminal is None else terminal
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._stage = ""

    def __enter__(self) -> Self:
        return self

    def __call__(self, stage: str, fraction: float) -> None:
        if not self._terminal:
            if stage != self._stage:
                print(f"{stage} ...", file=sys.stderr, flush=True)
            self._stage = stage
            return
        progress = self._progress or self._start()
        if stage != self._stage or self._task is None:
            self._finish_task()
            self._task = progress.add_task(stage, total=1.0)
            self._stage = stage
        progress.update(self._task, completed=fraction)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(remove=kind is None)

    def close(self, *, remove: bool = True) -> None:
        """Stop drawing; with `remove` the bars are wiped, for the wait is over."""
        if self._progress is not None:
            if remove:
                for task in list(self._progress.task_ids):
                    self._progress.remove_task(task)
            self._progress.stop()
            self._progress = None

    def _start(self) -> Progress:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._progress.start()
        return self._progress

    def _finish_task(self) -> None:
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=1.0)
