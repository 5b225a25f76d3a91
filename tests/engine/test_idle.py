"""An engine that has nothing to do sleeps: no process polls."""

from __future__ import annotations

import time
from pathlib import Path

import psutil

from radixrt import Engine, SamplingParams


def test_nobody_wakes_up_for_nothing(tiny_path: Path) -> None:
    """A poller would wake its process in every second; one second without shows that there is none."""
    with Engine(str(tiny_path)) as engine:
        engine.generate("Once", SamplingParams(max_tokens=4, ignore_eos=True))
        quiet = [_second(engine)]
        while (
            not any(cpu_s <= 0.01 and wakes <= 2 for cpu_s, wakes in quiet) and len(quiet) < 12
        ):  # grammar workers may still be starting
            quiet.append(_second(engine))
    assert any(cpu_s <= 0.01 and wakes <= 2 for cpu_s, wakes in quiet), quiet


def _second(engine: Engine) -> tuple[float, int]:
    """CPU seconds and wake-ups of all the engine's processes in one second."""
    processes = [psutil.Process(pid) for pid in engine.process_ids.values()]
    processes += [child for process in processes for child in process.children(recursive=True)]

    def reading() -> tuple[float, int]:
        return (
            sum(sum(process.cpu_times()[:2]) for process in processes),
            sum(process.num_ctx_switches().voluntary for process in processes),
        )

    before = reading()
    time.sleep(1)
    after = reading()
    return round(after[0] - before[0], 3), after[1] - before[1]
