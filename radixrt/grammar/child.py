"""One worker process as its owner sees it: started, given a task at a time, watched, killed."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

from radixrt.errors import ConstraintError, Overloaded, RadixrtError
from radixrt.grammar.limits import Limits
from radixrt.grammar.memory import cpu_seconds, memory_message, resident_bytes
from radixrt.grammar.wire import PATIENCE, START_TIMEOUT_S, STARVED, Answer, Frames, Setup, Task, pack, write_all
from radixrt.params import Constraint

UNABLE = "compile_worker_failed"
WATCH_S = 0.05
"""How often a busy worker's memory is looked at."""
_ROOT = Path(__file__).parents[2]
_OUT_OF_MEMORY = (b"memory allocation of", b"MemoryError", b"bad_alloc")


class WorkerLost(Exception):
    """The worker is gone: killed for the reason that `message` gives, or by itself. Never leaves the room."""

    def __init__(self, message: str, *, by_task: bool = True, by_itself: bool = False, for_good: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.by_task = by_task
        """False: it could not even start, which is not the constraint's doing."""
        self.by_itself = by_itself
        """It ended without being killed for a limit: by a fault, or because somebody else killed it."""
        self.for_good = for_good
        """It said why it cannot work, and will say so again."""


class Child:
    """A worker process. All methods are for one thread; `kill` may come from any."""

    def __init__(self, tokenizer: IO[bytes], setup: Callable[[int], Setup], limits: Limits) -> None:
        """Starts the process and returns at once; `ask` waits until it is ready.

        `tokenizer` is a file that holds the tokenizer.json; the worker inherits its descriptor.
        """
        self._limits = limits
        self._frames = Frames()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed in close()
        self._ready = False
        descriptor = tokenizer.fileno()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "radixrt.grammar.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            pass_fds=(descriptor,),
            env=_environment(),
            bufsize=0,
        )
        self.pid = self._process.pid
        self._baseline = 0
        try:
            self._send(pack(setup(descriptor)))
        except WorkerLost:
            self.close()
            raise

    def ask(self, constraint: Constraint) -> Answer:
        """The worker's answer. Raises WorkerLost after the worker passed a limit, crashed or was killed."""
        self.wait_ready()
        self._send(pack(Task(constraint=constraint)))
        return self._answer(self._limits.compile_timeout_s, watch_memory=True)

    def wait_ready(self) -> None:
        """Wait until the worker can take a task; WorkerLost when it cannot start."""
        if self._ready:
            return
        try:
            answer = self._answer(START_TIMEOUT_S, watch_memory=False)
        except WorkerLost as lost:
            message = f"the compile worker cannot start: {lost.message}"
            raise WorkerLost(message, by_task=False, by_itself=lost.by_itself) from lost
        if answer.error is not None:
            message = f"the compile worker cannot start: {answer.error.message}"
            raise WorkerLost(message, by_task=False, for_good=True)
        self._ready = True
        self._baseline = resident_bytes(self.pid)

    @property
    def is_bloated(self) -> bool:
        """Past work left so much memory behind that a fresh worker is better."""
        return self._grown > self._limits.compile_memory_bytes // 4

    @property
    def _grown(self) -> int:
        """Bytes that tasks have made the worker grow by."""
        return resident_bytes(self.pid) - self._baseline

    def kill(self) -> None:
        """End the process now; an `ask` that waits raises WorkerLost."""
        self._process.kill()

    def close(self) -> None:
        """Kill, wait until it is gone, release its pipes."""
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._errors):
            if pipe is not None:
                pipe.close()

    def _send(self, data: bytes) -> None:
        pipe = self._process.stdin
        if pipe is None:
            raise WorkerLost("the compile worker has no stdin", by_task=False)
        try:
            write_all(pipe.fileno(), data)
        except OSError:
            raise self._lost(by_task=False) from None

    def _answer(self, timeout_s: float, *, watch_memory: bool) -> Answer:
        pipe = self._process.stdout
        if pipe is None:
            raise WorkerLost("the compile worker has no stdout", by_task=False)
        deadline, worked = time.monotonic() + timeout_s, cpu_seconds(self.pid)
        last = deadline + (PATIENCE - 1) * timeout_s
        loading = False
        while (answer := self._frames.next(Answer)) is None or answer.loading is not None:
            if answer is not None:
                loading = bool(answer.loading)
                deadline, worked = time.monotonic() + (START_TIMEOUT_S if loading else timeout_s), cpu_seconds(self.pid)
                last = deadline + (PATIENCE - 1) * timeout_s
                if not loading:
                    self._baseline = resident_bytes(self.pid)
                continue
            left = deadline - time.monotonic()
            if left <= 0 and time.monotonic() < last and cpu_seconds(self.pid) - worked < STARVED * timeout_s:
                left = WATCH_S  # a busy machine has hardly let it run
            if left <= 0:
                self.kill()
                raise WorkerLost(f"compiling the constraint takes more than {timeout_s:g} s, which is the limit")
            if select.select([pipe], [], [], min(left, WATCH_S))[0]:
                data = os.read(pipe.fileno(), 65536)
                if not data:
                    raise self._lost()
                self._frames.feed(data)
            elif watch_memory and not loading and self._grown > self._limits.compile_memory_bytes:
                self.kill()
                raise WorkerLost(memory_message(self._limits.compile_memory_bytes))
        return answer

    def _lost(self, *, by_task: bool = True) -> WorkerLost:
        """How the worker ended."""
        code = self._process.wait()
        self._errors.seek(0)
        tail = self._errors.read()[-4096:]
        if any(words in tail for words in _OUT_OF_MEMORY):
            return WorkerLost(memory_message(self._limits.compile_memory_bytes), by_task=by_task)
        message = f"compiling the constraint crashed the compile worker (exit code {code})"
        return WorkerLost(message, by_task=by_task, by_itself=True)


def refusal(lost: WorkerLost, constraint: Constraint) -> RadixrtError:
    """The error of the constraint whose worker was lost."""
    if lost.by_task:
        return ConstraintError(lost.message, param=constraint.kind, code="constraint_too_expensive")
    if lost.for_good:
        return ConstraintError(lost.message, param=constraint.kind, code="constraints_unavailable")
    return out_of_order()


def out_of_order() -> Overloaded:
    """Of a constraint that was not even tried: the log says why."""
    return Overloaded("constraints cannot be compiled at the moment: try again later", code=UNABLE)


def _environment() -> dict[str, str]:
    """The worker finds the same radixrt, uses one thread, and needs no cwd."""
    paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    threads = dict.fromkeys(("RAYON_NUM_THREADS", "OMP_NUM_THREADS", "TOKENIZERS_PARALLELISM"), "1")
    return {**os.environ, **threads, "TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": os.pathsep.join(paths)}
