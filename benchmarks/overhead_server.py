"""The server that `overhead.py` measures: real but for the model, in one of two forms.

    python benchmarks/overhead_server.py trio|http MODEL PORT STEP_MS REPORT [PROFILE]

trio: the three processes with a runner that computes nothing; http: answers made in the server's own process, so that
HTTP and events are all there is. STEP_MS is the time that a step takes. REPORT is a file that holds the event loop's
lag in seconds, one line a sample, when the server has ended. PROFILE, where given, gets cProfile's figures of the
server.
"""

from __future__ import annotations

import asyncio
import cProfile
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from fastapi import FastAPI

from radixrt import launch
from radixrt.collect import Collector
from radixrt.config import RunnerConfig
from radixrt.messages import FromRunner, RunnerReady, StepPlan, StepResult, ToRunner
from radixrt.results import Delta, EngineStats, Generation, ModelInfo, Usage
from radixrt.server import serve as serve_module

LAG_EVERY_S = 0.005


def runner(step_s: float) -> None:
    """A runner process: answers each plan after `step_s` with random tokens."""
    import zmq

    from radixrt.process import start
    from radixrt.runner.inbox import Inbox
    from radixrt.transport import Link, open_socket

    config = start("runner", RunnerConfig)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    link: Link[ToRunner, FromRunner] = Link(
        open_socket(context, zmq.ROUTER, config.runner_address, bind=True), ToRunner
    )
    inbox, random = Inbox(link), np.random.default_rng(0)
    ready = RunnerReady(
        kv_tokens=262_144, context_length=2048, vocab_size=49_152, dtype="none", device="none", threads=1
    )  # fmt: skip
    while True:
        inbox.drain()
        if inbox.connected:
            inbox.connected = False
            inbox.send(ready)
        elif inbox.plans:
            plan = inbox.plans.popleft()
            if isinstance(plan, StepPlan):
                time.sleep(step_s)
                inbox.send(result(plan, random))
        else:
            inbox.wait()


def result(plan: StepPlan, random: np.random.Generator) -> StepResult:
    count = int((plan.sample * (1 + plan.drafts)).sum())
    return StepResult(
        step=plan.step, tokens=random.integers(1000, 40_000, count, dtype=np.int32),
        logprobs=np.zeros(count, np.float32), top_ids=np.zeros((count, 0), np.int32),
        top_logprobs=np.zeros((count, 0), np.float32), scores=[], forward_s=0.0, mask_wait_s=0.0, sample_s=0.0,
    )  # fmt: skip


class Instant:
    """An engine in this process: a word a step, all streams at once."""

    alive = True
    info = ModelInfo(
        name="overhead", context_length=2048, kv_tokens=4096, vocab_size=256, dtype="none", device="none", threads=1,
        eos_token_ids=(), has_chat_template=True,
    )  # fmt: skip

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s

    async def astream(self, prompt: Any, sampling_params: Any = None, **options: Any) -> AsyncIterator[Delta]:
        count = sampling_params.max_tokens
        for i in range(count):
            await asyncio.sleep(self._step_s)
            last = i == count - 1
            usage = Usage(prompt_tokens=10, completion_tokens=count) if last else None
            yield Delta(text=" word", token_ids=(i,), finish_reason="length" if last else None, usage=usage)

    async def agenerate(self, prompt: Any, sampling_params: Any = None, **options: Any) -> Generation:
        collector = Collector(1)
        async for delta in self.astream(prompt, sampling_params):
            collector.add(delta)
        return collector.generation()

    async def astats(self) -> EngineStats:
        return EngineStats()

    def for_tenant(self, tenant: str) -> Instant:
        return self


def main() -> None:
    if sys.argv[1] == "runner":
        runner(float(sys.argv[2]))
        return
    form, model, port, step_ms, report, *profile = sys.argv[1:]
    spawn = launch._spawn

    def stand_in(module: str, config: bytes, extra: dict[str, str]) -> subprocess.Popen[bytes]:
        if module != "radixrt.runner":
            return spawn(module, config, extra)
        command = [sys.executable, __file__, "runner", str(float(step_ms) / 1000)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)
        if process.stdin is not None:
            process.stdin.write(config + b"\n")
            process.stdin.flush()
        return process

    launch._spawn = stand_in
    lags: list[float] = []
    _sample_lag(lags)

    @contextmanager
    def instant() -> Any:
        yield Instant(float(step_ms) / 1000)

    def trio() -> Any:
        from radixrt import Engine

        return Engine(model, served_model_name="overhead", max_drafts=0)

    engine: Any = trio if form == "trio" else instant
    profiler = cProfile.Profile() if profile else None
    try:
        if profiler is not None:
            profiler.runcall(serve_module.serve, engine, port=int(port))
        else:
            serve_module.serve(engine, port=int(port))
    finally:
        Path(report).write_text("\n".join(f"{lag:.6f}" for lag in lags))
        if profiler is not None:
            profiler.dump_stats(profile[0])


def _sample_lag(lags: list[float]) -> None:
    """Let the server's application measure how late its event loop wakes a task."""
    create = serve_module.create_app

    async def watch() -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(LAG_EVERY_S)
            lags.append(max(0.0, time.perf_counter() - before - LAG_EVERY_S))

    def creating(*arguments: Any, **options: Any) -> FastAPI:
        app = create(*arguments, **options)
        lifespan = app.router.lifespan_context

        @asynccontextmanager
        async def watched(served: FastAPI) -> AsyncIterator[Any]:
            task = asyncio.create_task(watch())
            async with lifespan(served) as state:
                yield state
            task.cancel()

        app.router.lifespan_context = watched
        return app

    serve_module.create_app = creating


if __name__ == "__main__":
    main()
