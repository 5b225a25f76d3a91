"""Exit codes and what stands on stderr."""

from __future__ import annotations

import pytest
from fake_engine import FakeEngine

import radixrt
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
    ],
)
def test_wrong_usage_is_exit_code_2(
    fake_engine: list[FakeEngine], capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert exit_code(arguments) == 2
    assert capsys.readouterr().err != ""
    assert fake_engine == []
