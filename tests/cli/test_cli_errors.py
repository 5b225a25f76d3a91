"""Exit codes and what stands on stderr."""

from __future__ import annotations

import gc
import subprocess
from pathlib import Path

import pytest
from fake_engine import FakeEngine

import radixrt
from radixrt import launch
from radixrt.cli import main
from radixrt.errors import ModelError, NotFound


def exit_code(arguments: list[str]) -> int:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert isinstance(caught.value.code, int)
    return caught.value.code


@pytest.fixture
def broken_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(model: str, **_: object) -> FakeEngine:
        raise ModelError(f"no model is called {model!r}")

    monkeypatch.setitem(vars(radixrt), "Engine", refuse)


@pytest.mark.usefixtures("broken_engine")
def test_an_error_is_one_line_and_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(["chat", "nonesuch"]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "error: no model is called 'nonesuch'\n"


@pytest.mark.usefixtures("broken_engine")
@pytest.mark.parametrize("flag", [["--log-level", "debug"], ["--log-level=debug"]])
def test_debugging_shows_the_traceback(capsys: pytest.CaptureFixture[str], flag: list[str]) -> None:
    assert exit_code(["chat", "nonesuch", *flag]) == 1
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert err.endswith("error: no model is called 'nonesuch'\n")


def test_a_missing_model_comes_with_a_hint(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def refuse(model: str, **_: object) -> FakeEngine:
        raise NotFound("there is no model 'nonesuch'")

    monkeypatch.setitem(vars(radixrt), "Engine", refuse)
    assert exit_code(["chat", "nonesuch"]) == 1
    assert capsys.readouterr().err.splitlines() == [
        "error: there is no model 'nonesuch'",
        "`radixrt models` lists the known short names.",
    ]


@pytest.mark.parametrize(
    "arguments",
    [
        ["serve"],
        ["serve", "m", "--port", "99999"],
        ["serve", "m", "--dtype", "float16"],
        ["serve", "m", "--kv-dtype", "int4"],
        ["serve", "m", "--weights", "float16"],
        ["serve", "m", "--policy", "random"],
        ["serve", "m", "--threads", "0"],
        ["serve", "m", "--namespace-weight", "alice"],
        ["serve", "m", "--namespace-weight", "alice=0"],
        ["serve", "m", "--no-such-option"],
        ["chat"],
        ["chat", "m", "--base-url", "http://localhost:1"],
        ["run"],
        ["run", "no-such-file.py"],
        ["nonesuch"],
        ["top", "ftp://localhost"],
        ["top", "--url", "http://"],
        ["cache", "localhost:99999"],
        ["cache", "http://a b"],
        ["chat", "http://localhost:1", "--base-url", "http://localhost:1"],
        ["chat", "--base-url", "http://localhost:x"],
        ["run", "--base-url", "unix:/tmp/s", __file__],
    ],
)
def test_wrong_usage_is_exit_code_2(
    fake_engine: list[FakeEngine], capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert exit_code(arguments) == 2
    assert capsys.readouterr().err != ""
    assert fake_engine == []


@pytest.mark.parametrize(
    ("arguments", "flag"),
    [
        (["serve", "m", "--uds", "/tmp/s", "--port", "8000"], "--port"),
        (["serve", "m", "--uds", "/tmp/s", "--host", "127.0.0.1"], "--host"),
        (["serve", "m", "--uds", "/tmp/s", "--allowed-host", "a"], "--allowed-host"),
        (["serve", "m", "--host", "0.0.0.0", "--allowed-host", "a"], "--allowed-host"),
        (["serve", "m", "--ssl-ca-certs", "x"], "--ssl-certfile"),
        (["serve", "m", "--cache-dir-bytes", "9"], "--cache-dir-bytes"),
        (["serve", "m", "--kv-events-replay", "tcp://127.0.0.1:1"], "--kv-events-replay"),
        (["serve", "m", "--policy", "fcfs", "--max-wait-s", "3"], "--max-wait-s"),
        (["serve", "m", "--no-fair", "--namespace-weight", "a=2"], "--namespace-weight"),
        (["serve", "m", "--max-drafts", "0", "--draft-sources", "tree"], "--draft-sources"),
        (["serve", "m", "--max-drafts", "0", "--draft-model", "x"], "--draft-model"),
        (["serve", "m", "--max-drafts", "0", "--max-draft-rows", "2"], "--max-draft-rows"),
        (["serve", "m", "--high-watermark", "0.2"], "--high-watermark"),
        (["serve", "m", "--no-prefix-cache", "--cache-dir", "x"], "--cache-dir"),
        (["serve", "m", "--no-prefix-cache", "--cache-host-bytes", "9"], "--cache-host-bytes"),
        (["bench", "m", "--no-prefix-cache", "--eviction", "lfu"], "--eviction"),
        (["demo", "--check", "--check-every-s", "3"], "--check-every-s"),
        (["chat", "m", "--api-key", "k"], "--api-key"),
        (["chat", "--base-url", "http://localhost:1", "--dtype", "float32"], "--dtype"),
        (["chat", "--base-url", "http://localhost:1", "--grammar-max-depth", "3"], "--grammar-max-depth"),
        (["run", "--api-key", "k", __file__], "--api-key"),
        (["run", "--base-url", "http://localhost:1", "--model", "m", __file__], "--model"),
        (["run", "--base-url", "http://localhost:1", "--namespace-weight", "a=2", __file__], "--namespace-weight"),
        (["chat", "http://localhost:1", "--dtype", "float32"], "--dtype"),
        (["top", "http://localhost:1", "--url", "http://localhost:2"], "--url"),
        (["cache", "http://localhost:1", "--url", "http://localhost:1"], "--url"),
        (["grammar", "check", "--regex", "a", "--lax"], "--lax"),
        (["grammar", "check", "--grammar", "a", "--any-whitespace"], "--any-whitespace"),
    ],
)
def test_an_option_that_would_be_ignored_is_refused(
    fake_engine: list[FakeEngine], capsys: pytest.CaptureFixture[str], arguments: list[str], flag: str
) -> None:
    assert exit_code(arguments) == 2
    assert flag in capsys.readouterr().err
    assert fake_engine == []


def test_a_key_in_the_environment_is_no_option_of_the_command_line(
    fake_engine: list[FakeEngine], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RADIXRT_API_KEY", "key-12345678")
    (tmp_path / "script.py").write_text("")
    assert exit_code(["run", str(tmp_path / "script.py")]) == 0
    assert len(fake_engine) == 1


@pytest.mark.parametrize(
    ("arguments", "ahead"), [(["--nonsense"], True), (["--help"], False), (["--threads=x"], False)]
)
def test_a_server_that_does_not_start_leaves_no_runner(
    arguments: list[str], ahead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    def spawn(threads: int) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL))
        return started[-1]

    monkeypatch.setattr(launch, "spawn_runner", spawn)
    assert exit_code(["serve", "smollm2-135m", *arguments]) == (0 if arguments == ["--help"] else 2)
    assert len(started) == ahead and all(process.returncode == 0 for process in started)
    assert gc.isenabled()
