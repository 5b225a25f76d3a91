"""Starting, watching and stopping the three processes (of the third, one a rank).

They are fresh `python -m` children, started at once: no fork, so a script needs no `__main__` guard and a notebook
works. Each has its config on stdin, which stays open: it is also the child's lifeline (see `process.py`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from radixrt.config import EngineConfig, RunnerConfig, SchedulerConfig, TokenizerConfig, draft_sources
from radixrt.errors import StartupError
from radixrt.kernels import instruction_sets
from radixrt.runner.threads import environment, usable_cores

log = logging.getLogger(__name__)

STOP_TIMEOUT_S = 5.0

_ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "RAYON_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
"""Only the runner computes; whoever else starts a pool takes its cores away."""


class Trio:
    """The tokenizer, the scheduler and the runner of one engine, in a private socket directory.

    `on_death(name, exit code)` is called once from a watching thread when a process ends without being asked to.
    """

    def __init__(
        self,
        config: EngineConfig,
        model_path: Path,
        on_death: Callable[[str, int], None],
        draft_path: Path | None = None,
        runner: subprocess.Popen[bytes] | None = None,
    ) -> None:
        """`runner`: a process of `spawn_runner` that becomes the (first) runner."""
        from radixrt.transport import private_directory  # brings numpy and ZeroMQ, which `spawn_runner` does without

        if config.tp < 1:
            raise StartupError(f"tp must be 1 or more, but is {config.tp}", param="tp")
        instruction_sets.torch_environment()  # says what is wrong with RADIXRT_CPU before anything is started
        self.directory = private_directory()
        # Also where an exit overtakes the start: a process that has not read its config does not know the directory.
        weakref.finalize(self, shutil.rmtree, self.directory, ignore_errors=True)
        self.client_address = f"ipc://{self.directory}/client"
        self.threads = compute_threads(config.threads, config.tp)
        if self.threads > (cores := usable_cores()):
            log.warning(
                "%d compute threads are more than the %d cores that may be used: steps will be slower",
                self.threads, cores,
            )  # fmt: skip
        self._on_death = on_death
        self._stopping = threading.Event()
        self._dead = threading.Event()
        self._first_death = threading.Lock()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        for name, child in self._configs(config, model_path, draft_path).items():
            if not isinstance(child, RunnerConfig):
                process = _spawn(f"radixrt.{name}", _ONE_THREAD)
            elif runner is not None and child.rank == 0:
                process = runner
            else:
                process = spawn_runner(self.threads)
            self.processes[name] = process
            _configure(process, child)
        for name, process in self.processes.items():
            threading.Thread(target=self._watch, args=(name, process), daemon=True, name=f"watch-{name}").start()

    @property
    def alive(self) -> bool:
        """All of them run."""
        return not (self._dead.is_set() or self._stopping.is_set())

    def stop(self) -> None:
        """End all (at once: what they were doing is lost) and remove their sockets. Safe to call twice."""
        self._stopping.set()
        for process in self.processes.values():
            if process.stdin is not None:
                process.stdin.close()
        for process in self.processes.values():
            dismiss(process)
        shutil.rmtree(self.directory, ignore_errors=True)

    def _watch(self, name: str, process: subprocess.Popen[bytes]) -> None:
        code = process.wait()
        with self._first_death:  # of several that die at once, the first to be seen is the one that is told
            if self._stopping.is_set() or self._dead.is_set():
                return
            try:
                # Told before `alive` says so: whoever sees a dead trio closes it, and the requests that it cut would
                # hear that the engine was closed, not what killed it.
                self._on_death(name, code)
            finally:
                self._dead.set()

    def _configs(self, config: EngineConfig, model_path: Path, draft_path: Path | None) -> dict[str, msgspec.Struct]:
        """Each process's own config, made from the user's: the one place where they meet."""
        name = config.served_model_name or _public_name(config.model)
        links: dict[str, Any] = {
            "scheduler_in": f"ipc://{self.directory}/to-scheduler",
            "scheduler_out": f"ipc://{self.directory}/from",
        }
        runner = f"ipc://{self.directory}/runner"
        common: dict[str, Any] = {
            "model_path": str(model_path),
            "ipc_dir": self.directory,
            "log_level": config.log_level,
            "log_format": config.log_format,
        }
        ranks = {
            "runner" if rank == 0 else f"runner-{rank}": RunnerConfig(
                **common,
                rank=rank,
                tp=config.tp,
                tokenizer=config.tokenizer,
                dtype=config.dtype,
                load_format=config.load_format,
                device=config.device,
                attention=config.attention,
                weights=config.weights,
                kv_dtype=config.kv_dtype,
                threads=self.threads,
                context_length=config.context_length,
                kv_tokens=config.kv_tokens,
                cache_dir=config.cache_dir if config.prefix_cache else None,
                cache_dir_bytes=config.cache_dir_bytes,
                cache_host_bytes=config.cache_host_bytes if config.prefix_cache else 0,
                draft_path=str(draft_path) if draft_path is not None else None,
                runner_address=runner,
            )
            for rank in range(config.tp)
        }
        return {
            **ranks,
            "scheduler": SchedulerConfig(
                **common,
                **links,
                model_name=name,
                tokenizer=config.tokenizer,
                runner_address=runner,
                context_length=config.context_length,
                max_num_seqs=config.max_num_seqs,
                max_num_batched_tokens=config.max_num_batched_tokens,
                max_waiting=config.max_waiting,
                policy=config.policy,
                prefix_cache=config.prefix_cache,
                share_from=config.share_from,
                pooling=config.pooling,
                eviction=config.eviction,
                pin_quota=config.pin_quota,
                low_watermark=config.low_watermark,
                high_watermark=config.high_watermark,
                check_every_s=config.check_every_s,
                kv_events=config.kv_events,
                kv_events_replay=config.kv_events_replay,
                max_wait_s=config.max_wait_s,
                fair=config.fair,
                namespace_weights=config.namespace_weights,
                lookahead=config.lookahead,
                max_drafts=config.max_drafts,
                draft_sources=draft_sources(config),
                max_draft_rows=config.max_draft_rows,
                grammar=config.grammar,
                grammar_backend=config.grammar_backend,
                check=config.check,
            ),
            "tokenizer": TokenizerConfig(
                **common,
                **links,
                model_name=name,
                tokenizer=config.tokenizer,
                chat_template=config.chat_template,
                client_address=self.client_address,
            ),
        }


def _public_name(model: str) -> str:
    """What strangers may read: of a path, only the last part."""
    path = Path(model)
    return (path.stem if path.suffix == ".gguf" else path.resolve().name) if path.exists() else model


def compute_threads(threads: int | None, tp: int) -> int:
    """How many threads a runner computes with: `threads`, or as OMP_NUM_THREADS says, or its share of the cores.

    Ranks on one machine share its cores.
    """
    return threads or _threads_from_environment() or max(1, usable_cores() // tp)


def spawn_runner(threads: int) -> subprocess.Popen[bytes]:
    """A runner that imports torch and waits for its config, for a `Trio` to come; it ends when its stdin is closed.

    torch is the longest part of a start, so a command starts its runner before it imports what it needs itself.
    StartupError where RADIXRT_CPU names no instruction set of this CPU.
    """
    return _spawn("radixrt.runner", environment(threads) | instruction_sets.torch_environment())


def dismiss(process: subprocess.Popen[bytes]) -> None:
    """End a process of ours and wait until it is gone. One that has ended already may be dismissed, too."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _spawn(module: str, extra: dict[str, str]) -> subprocess.Popen[bytes]:
    """`python -m module` in a session of its own (a terminal's Ctrl-C does not reach it), importing what we import."""
    home = str(Path(__file__).parents[1])
    path = os.pathsep.join(filter(None, [home, os.environ.get("PYTHONPATH")]))
    return subprocess.Popen(
        [sys.executable, "-P", "-m", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        env={**os.environ, **extra, "PYTHONPATH": path},
        start_new_session=True,
        bufsize=0,  # closing it has nothing left to write, and cannot fail where the process is gone
    )


def _configure(process: subprocess.Popen[bytes], config: msgspec.Struct) -> None:
    """Send a process its config, as `process.start` reads it."""
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError):  # it has ended already; the thread that watches it reports that
            process.stdin.write(msgspec.json.encode(config) + b"\n")


def _threads_from_environment() -> int | None:
    """OMP_NUM_THREADS, of which the first number counts (a list gives one a nesting level)."""
    value = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(value) if value.isdigit() and int(value) > 0 else None
