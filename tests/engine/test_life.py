"""How an engine lives and dies: start, errors at start, a process killed, a parent killed, a forgotten close."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

import radixrt
from radixrt import Engine, RadixrtError, SamplingParams
from radixrt.errors import Aborted, EngineDead, InvalidRequest, ModelError, StartupError
from tests.waiting import HANG_S, all_end

ROOT = Path(radixrt.__file__).parents[1]
LONG = SamplingParams(max_tokens=1500, ignore_eos=True)


@pytest.fixture(scope="module")
def tiny(tiny_path: Path) -> Iterator[Engine]:
    with Engine(str(tiny_path), check=True) as engine:
        yield engine


@pytest.fixture
def mortal(tiny_path: Path) -> Iterator[Engine]:
    """One that the test may kill."""
    with Engine(str(tiny_path), check=True) as engine:
        yield engine


def run_script(directory: Path, body: str) -> subprocess.Popen[str]:
    """A user's script, in a directory of its own, without a __main__ guard."""
    script = directory / "script.py"
    script.write_text(textwrap.dedent(body))
    return subprocess.Popen(
        [sys.executable, str(script)],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_an_engine_leaves_nothing_behind(tiny_path: Path) -> None:
    engine = Engine(str(tiny_path))
    pids, directory = list(engine.process_ids.values()), engine._trio.directory
    children = [child.pid for pid in pids for child in psutil.Process(pid).children(recursive=True)]
    assert engine.alive and os.path.isdir(directory) and os.stat(directory).st_mode & 0o777 == 0o700
    engine.close()
    engine.close()
    assert all_end([*pids, *children]) and not os.path.exists(directory)
    with pytest.raises(EngineDead):
        engine.generate("x")


def test_a_script_needs_no_guard_and_may_forget_to_close(tiny_path: Path, tmp_path: Path) -> None:
    script = run_script(
        tmp_path,
        f"""
        import radixrt
        engine = radixrt.Engine({str(tiny_path)!r})
        print(*engine.process_ids.values(), engine._trio.directory)
        print(len(engine.generate("a", radixrt.SamplingParams(max_tokens=3, ignore_eos=True)).token_ids))
        """,
    )
    out, err = script.communicate(timeout=HANG_S)
    assert script.returncode == 0, err
    *pids, directory = out.split()[:4]
    assert out.split()[4] == "3"
    assert all_end(map(int, pids)) and not os.path.exists(directory)


def test_an_exception_in_the_block_stops_the_engine(tiny_path: Path, tmp_path: Path) -> None:
    script = run_script(
        tmp_path,
        f"""
        import radixrt
        with radixrt.Engine({str(tiny_path)!r}) as engine:
            print(*engine.process_ids.values(), flush=True)
            raise KeyError("mine")
        """,
    )
    out, err = script.communicate(timeout=HANG_S)
    assert script.returncode == 1 and "KeyError: 'mine'" in err
    assert all_end(map(int, out.split()))


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_killed_parent_leaves_no_orphan(tiny_path: Path, tmp_path: Path, how: signal.Signals) -> None:
    script = run_script(
        tmp_path,
        f"""
        import radixrt
        engine = radixrt.Engine({str(tiny_path)!r})
        print(*engine.process_ids.values(), engine._trio.directory, flush=True)
        engine.generate("a", radixrt.SamplingParams(max_tokens=2000, ignore_eos=True, n=8))
        """,
    )
    *pids, directory = script.stdout.readline().split()
    script.send_signal(how)
    script.wait(timeout=HANG_S)
    assert all_end(map(int, pids))
    assert not os.path.exists(directory)
    script.communicate()


@pytest.mark.parametrize("name", ["tokenizer", "scheduler", "runner"])
def test_a_dead_process_fails_what_is_pending(mortal: Engine, name: str) -> None:
    failed: list[RadixrtError] = []
    stream = mortal.stream("a", LONG)
    next(stream)

    def read() -> None:
        try:
            for _ in stream:
                pass
        except RadixrtError as error:
            failed.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    os.kill(mortal.process_ids[name], signal.SIGKILL)
    reader.join(HANG_S)
    assert not reader.is_alive()
    assert isinstance(failed[0], EngineDead) and name in failed[0].message
    assert not mortal.alive
    with pytest.raises(EngineDead):
        mortal.generate("b")


def test_a_dead_engine_is_closed_by_several_threads_at_once(mortal: Engine) -> None:
    stream = mortal.stream("a", LONG)
    next(stream)
    os.kill(mortal.process_ids["tokenizer"], signal.SIGKILL)
    with pytest.raises(EngineDead):
        for _ in stream:
            pass
    with ThreadPoolExecutor(4) as threads:
        for closed in [threads.submit(mortal.close) for _ in range(4)]:
            closed.result()
    assert all_end(mortal.process_ids.values()) and not os.path.exists(mortal._trio.directory)
    stream.close()
    with pytest.raises(EngineDead):
        mortal.generate("b")


def test_what_a_progress_callback_raises_ends_the_start(tiny_path: Path) -> None:
    def progress(stage: str, fraction: float) -> None:
        raise KeyError(stage)

    with pytest.raises(StartupError, match="on_progress raised") as caught:
        Engine(str(tiny_path), on_progress=progress)
    assert isinstance(caught.value.__cause__, KeyError)


def test_leaving_a_stream_stops_the_work(tiny: Engine) -> None:
    before = tiny.stats().finished.get("abort", 0)
    stream = tiny.stream("a", SamplingParams(max_tokens=1900, ignore_eos=True, n=4))
    next(stream)
    assert tiny.stats().running > 0
    stream.close()
    # The abort is in front of this question on the same road.
    stats = tiny.stats()
    assert (stats.running, stats.waiting, stats.kv_used) == (0, 0, 0)
    assert stats.finished["abort"] == before + 1


def test_a_cancelled_task_cancels_its_request(tiny: Engine) -> None:
    async def main() -> None:
        task = asyncio.create_task(tiny.agenerate("a", LONG))
        while (await tiny.astats()).running == 0:
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await tiny.astats()).running == 0

    asyncio.run(main())


def test_a_timeout_cancels_the_request(tiny: Engine) -> None:
    with pytest.raises(Aborted, match=r"0\.2 s"):
        tiny.generate("a", SamplingParams(max_tokens=1900, ignore_eos=True, n=16), timeout=0.2)
    assert tiny.stats().running == 0


def test_a_bad_request_fails_alone(tiny: Engine) -> None:
    good = tiny.stream("a", SamplingParams(max_tokens=40, ignore_eos=True))
    for prompt, words in (([], "empty"), ([10**6], "vocabulary|between"), ([-1], "between"), ([{"role": 3}], "role")):
        with pytest.raises(InvalidRequest, match=words):
            tiny.generate(prompt)
    with pytest.raises(InvalidRequest, match="context"):
        tiny.generate([5] * 3000)
    assert sum(len(delta.token_ids) for delta in good) == 40


def test_what_cannot_be_sent_is_the_callers_error_and_nobody_elses(tiny: Engine) -> None:
    good = tiny.stream("a", SamplingParams(max_tokens=60, ignore_eos=True))
    few = SamplingParams(max_tokens=2)
    bad = [
        ({"prompt": "a\ud800"}, "surrogate"),
        ({"prompt": "a", "priority": "high"}, "priority"),
        ({"prompt": "a", "priority": 10**30}, "too large"),
        ({"prompt": "a", "cache_salt": 3}, "cache_salt"),
        ({"prompt": "a", "timeout": "4"}, "timeout"),
        ({"prompt": ["a", "b"]}, "list of texts"),
        ({"prompt": [{"role": "user", "tool_calls": [{"a": object()}]}]}, "sent"),
    ]
    for arguments, words in bad:
        with pytest.raises(InvalidRequest, match=words):
            tiny.generate(sampling_params=few, **arguments)
    with pytest.raises(InvalidRequest, match="SamplingParams"):
        tiny.generate("a", {"max_tokens": 2})
    with pytest.raises(InvalidRequest, match="integers"):
        tiny.score("a", [" b"])
    with pytest.raises(InvalidRequest, match="surrogate"):
        tiny.tokenize("\ud800")
    limits = SamplingParams(max_tokens=9, min_tokens=2)
    with pytest.raises(InvalidRequest, match="min_tokens"):
        tiny.generate("a", limits, constraint=radixrt.Constraint(kind="regex", value="a"))
    assert sum(len(delta.token_ids) for delta in good) == 60
    assert tiny.alive


def test_errors_at_start_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="smollm2-135m"):
        Engine("smollm2-135n")
    with pytest.raises(StartupError, match="kv_tokens"):
        Engine("smollm2-135m", kv_token=3)
    with pytest.raises(StartupError, match="dtype"):
        Engine("smollm2-135m", dtype="int3")
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF" + b"\xff" * 100)
    with pytest.raises(ModelError):
        Engine(str(broken))
