"""The compile worker: `python -P -m radixrt.grammar.worker`. It tries constraints out, and may be killed at any time.

It ends when its stdin closes, when its own alarm rings (a compile that its parent did not live to stop), or when it
passes its address space. Stdout carries answers only.
"""

from __future__ import annotations

import os
import queue
import resource
import signal
import threading
import time

from radixrt.errors import ErrorInfo, RadixrtError
from radixrt.grammar.backends import Backends
from radixrt.grammar.memory import memory_message, resident_bytes, virtual_bytes
from radixrt.grammar.sources import Plan
from radixrt.grammar.wire import PATIENCE, START_TIMEOUT_S, Answer, Frames, Setup, Task, pack, write_all

ADDRESS_SLACK = 512 * 1024 * 1024
"""Address space beyond the memory limit: allocators reserve more than they use."""


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    out = os.dup(1)
    os.dup2(2, 1)  # whatever a library prints must not reach the answers
    os.nice(5)
    frames = Frames()
    setup = _read_setup(frames)
    try:
        backends = _backends(setup, out)
    except RadixrtError as error:
        write_all(out, pack(Answer(error=error.info())))
        return
    _limit_address_space(setup.limits.compile_memory_bytes)
    tasks: queue.SimpleQueue[Task] = queue.SimpleQueue()
    threading.Thread(target=_read_tasks, args=(frames, tasks), daemon=True, name="stdin").start()
    write_all(out, pack(Answer()))
    while True:
        task = tasks.get()
        signal.setitimer(signal.ITIMER_REAL, PATIENCE * setup.limits.compile_timeout_s + 2)
        answer = _answer(backends, task)
        signal.setitimer(signal.ITIMER_REAL, 0)
        write_all(out, pack(answer))


def _answer(backends: Backends, task: Task) -> Answer:
    before, start = resident_bytes(), time.monotonic()
    plan: Plan | None = None
    error: ErrorInfo | None = None
    try:
        plan = backends.plan(task.constraint)
    except RadixrtError as refusal:
        error = refusal.info()
    except MemoryError:
        words = memory_message(backends.limits.compile_memory_bytes)
        error = ErrorInfo(kind="ConstraintError", message=words, code="constraint_too_expensive")
    return Answer(
        plan=plan,
        error=error,
        seconds=time.monotonic() - start,
        grown_bytes=max(0, resident_bytes() - before),
    )


def _backends(setup: Setup, out: int) -> Backends:
    size = os.fstat(setup.tokenizer_fd).st_size
    text = os.pread(setup.tokenizer_fd, size, 0).decode()
    os.close(setup.tokenizer_fd)

    def loading(begins: bool) -> None:
        """Lift the limits while a library is imported: its size is not the task's."""
        if begins:
            signal.setitimer(signal.ITIMER_REAL, START_TIMEOUT_S)
            resource.setrlimit(resource.RLIMIT_AS, (resource.getrlimit(resource.RLIMIT_AS)[1],) * 2)
        else:
            signal.setitimer(signal.ITIMER_REAL, PATIENCE * setup.limits.compile_timeout_s + 2)
            _limit_address_space(setup.limits.compile_memory_bytes)
        write_all(out, pack(Answer(loading=begins)))

    return Backends(
        text,
        size=setup.size,
        eos_ids=setup.eos_ids,
        vocab_size=setup.vocab_size,
        limits=setup.limits,
        preferred=setup.preferred,
        loading=loading,
    )


def _limit_address_space(memory_bytes: int) -> None:
    used = virtual_bytes()
    if used:
        most = used + memory_bytes + ADDRESS_SLACK
        hard = resource.getrlimit(resource.RLIMIT_AS)[1]
        resource.setrlimit(resource.RLIMIT_AS, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


def _read_setup(frames: Frames) -> Setup:
    while (setup := frames.next(Setup)) is None:
        data = os.read(0, 65536)
        if not data:
            os._exit(0)
        frames.feed(data)
    return setup


def _read_tasks(frames: Frames, tasks: queue.SimpleQueue[Task]) -> None:
    """The lifeline too: the process ends at once when its stdin closes."""
    while True:
        while (task := frames.next(Task)) is not None:
            tasks.put(task)
        data = os.read(0, 65536)
        if not data:
            os._exit(0)
        frames.feed(data)


if __name__ == "__main__":
    main()
