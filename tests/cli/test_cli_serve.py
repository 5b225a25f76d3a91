"""`radixrt serve` as a process: what it says, how it stops, what it refuses."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import msgspec
import pytest

from radixrt.cli.serve import curl
from radixrt.results import ModelInfo
from tests.waiting import HANG_S, all_end

COMMAND = [sys.executable, "-m", "radixrt", "serve"]


def info(*, has_chat_template: bool) -> ModelInfo:
    return ModelInfo(
        name="m", context_length=8, kv_tokens=8, vocab_size=8, dtype="float32", device="cpu", threads=1,
        eos_token_ids=(0,), has_chat_template=has_chat_template,
    )  # fmt: skip


@pytest.mark.parametrize(("chat", "route"), [(True, "/v1/chat/completions"), (False, "/v1/completions")])
def test_the_example_is_a_request_that_the_shell_understands(chat: bool, route: str) -> None:
    command, url, *rest = shlex.split(curl("http://127.0.0.1:8000", info(has_chat_template=chat)))
    assert (command, url) == ("curl", f"http://127.0.0.1:8000{route}")
    body = json.loads(rest[rest.index("-d") + 1])
    assert body["model"] == "m"
    assert ("messages" in body) == chat and body["max_tokens"] == 64


def test_the_example_of_a_model_that_embeds_is_an_embedding() -> None:
    embeds = msgspec.structs.replace(info(has_chat_template=True), generates=False)
    command, url, *rest = shlex.split(curl("http://127.0.0.1:8000", embeds))
    assert (command, url) == ("curl", "http://127.0.0.1:8000/v1/embeddings")
    assert json.loads(rest[rest.index("-d") + 1]) == {"model": "m", "input": "Once upon a time"}


@contextmanager
def serving(*flags: str, model: str = "smollm2-135m") -> Iterator[tuple[subprocess.Popen[str], str, list[str]]]:
    """A server on a free port that has said that it serves: the process, its URL and what it said so far."""
    command = [*COMMAND, model, "--port", "0", "--kv-tokens", "2048", *flags]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    said: list[str] = []
    try:
        assert process.stderr is not None
        for line in process.stderr:
            said.append(line.rstrip("\n"))
            if line.lstrip().startswith("curl "):
                break
        text = "\n".join(said)
        found = re.search(r"listens on (http://[\d.:]+)", text)
        assert found, text
        yield process, found[1], said
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_it_says_what_it_serves_and_a_signal_ends_it_cleanly(smollm2_path: Path, signum: signal.Signals) -> None:
    with serving() as (process, url, said):
        text = "\n".join(said)
        assert "serves smollm2-135m" in text
        assert "2,048 KV tokens" in text
        assert httpx.get(f"{url}/health").status_code == 200
        process.send_signal(signum)
        assert process.wait(HANG_S) == 0
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{url}/health")


def test_a_signal_while_the_model_loads_ends_it_cleanly(tiny_path: Path) -> None:
    """As soon as it listens: the processes have just been started, and the web framework is still being imported."""
    import psutil

    for number in (signal.SIGINT, signal.SIGTERM):
        command = [*COMMAND, str(tiny_path), "--port", "0"]
        sockets = tempfile.TemporaryDirectory(dir="/tmp", prefix="s-")  # a socket's path must be short
        environment = {**os.environ, "TMPDIR": sockets.name}
        with sockets, subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
            assert process.stderr is not None
            first = process.stderr.readline()
            children = psutil.Process(process.pid).children(recursive=True)
            process.send_signal(number)
            assert process.wait(HANG_S) == 0
            assert "Traceback" not in process.stderr.read()
            assert all_end(children) and not list(Path(sockets.name).glob("radixrt-*"))
        port = int(first.split("http://127.0.0.1:")[1].split()[0])
        socket.create_server(("127.0.0.1", port)).close()


def refuses(url: str) -> bool:
    """Whether a server takes no new connection any more."""
    try:
        httpx.get(f"{url}/health", timeout=HANG_S)
    except httpx.TransportError:
        return True
    return False


def test_a_second_signal_stops_at_once(tiny_path: Path) -> None:
    """The first one waits for a stream that its client does not read; --drain-timeout-s would let it for long."""
    import psutil

    body = {"prompt": "a", "max_tokens": 1900, "n": 16, "ignore_eos": True, "stream": True, "logprobs": 5}
    with serving("--drain-timeout-s", "300", model=str(tiny_path)) as (process, url, _):
        children = psutil.Process(process.pid).children(recursive=True)
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=HANG_S) as response:
            assert response.status_code == 200
            process.send_signal(signal.SIGTERM)
            while not refuses(url):
                assert process.poll() is None
            assert process.poll() is None
            process.send_signal(signal.SIGTERM)
            assert process.wait(HANG_S) == 0
        assert all_end(children)


def test_a_dead_engine_process_ends_the_server_with_1(smollm2_path: Path) -> None:
    import psutil

    with serving("--on-engine-death", "exit") as (process, _, _):
        runner = next(child for child in psutil.Process(process.pid).children() if "radixrt.runner" in child.cmdline())
        runner.kill()
        runner.wait(HANG_S)
        assert process.wait(HANG_S) == 1
        assert process.stderr is not None
        assert re.search(r"^error: ", process.stderr.read(), re.MULTILINE)


def test_a_port_that_is_taken_is_an_error_in_one_line(smollm2_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        result = subprocess.run(
            [*COMMAND, "smollm2-135m", "--port", port], capture_output=True, text=True, timeout=HANG_S
        )
    assert result.returncode == 1
    assert f"cannot listen on 127.0.0.1:{port}" in result.stderr
    assert "Traceback" not in result.stderr


def test_an_unknown_model_is_an_error_in_a_line_or_two() -> None:
    result = subprocess.run([*COMMAND, "no such model", "--port", "0"], capture_output=True, text=True, timeout=HANG_S)
    assert result.returncode == 1
    assert "error: no model is called 'no such model'" in result.stderr
    assert "Traceback" not in result.stderr
