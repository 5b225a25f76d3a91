"""`radixrt run FILE.py`: the script's view of the world, and how its errors look."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from fake_engine import FakeEngine

from radixrt.cli import main
from radixrt.errors import InvalidRequest
from radixrt.lang import function

SCRIPT = """\
import json, sys
import neighbour
from radixrt.lang import function

@function
def note(s, text):
    s.set("text", text)

if __name__ == "__main__":
    state = note.run(text="kept")
    print(json.dumps({"argv": sys.argv, "text": state["text"], "neighbour": neighbour.VALUE}))
"""


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(["run", *arguments])
    return int(caught.value.code or 0)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "neighbour.py").write_text("VALUE = 7\n")
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return path


def test_the_script_runs_as_main_with_its_arguments_and_a_backend(
    script: Path, fake_engine: list[FakeEngine], capsys: pytest.CaptureFixture[str]
) -> None:
    argv, path = sys.argv, sys.path[:]
    assert run("--model", "fake", "--threads", "2", str(script), "one", "--model", "mine", "--help") == 0
    seen = json.loads(capsys.readouterr().out)
    assert seen == {"argv": [str(script), "one", "--model", "mine", "--help"], "text": "kept", "neighbour": 7}
    (engine,) = fake_engine
    assert (engine.model, engine.options["threads"]) == ("fake", 2)
    assert (sys.argv, sys.path) == (argv, path)


def test_afterwards_no_backend_is_left_set(script: Path, fake_engine: list[FakeEngine]) -> None:
    @function
    def nothing(s):  # type: ignore[no-untyped-def]
        s.set("x", 1)

    assert run(str(script)) == 0
    assert len(fake_engine) == 1
    with pytest.raises(InvalidRequest, match="no backend"):
        nothing.run()


@pytest.mark.usefixtures("fake_engine")
def test_an_error_of_radixrt_names_the_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad.py"
    path.write_text("from radixrt import SamplingParams\n\nSamplingParams(top_p=2)\n")
    assert run(str(path)) == 1
    err = capsys.readouterr().err
    assert f"{path}:3: SamplingParams(top_p=2)\nerror: top_p must be a number between" in err
    assert "Traceback" not in err


@pytest.mark.usefixtures("fake_engine")
def test_an_error_of_the_script_is_its_own(tmp_path: Path) -> None:
    path = tmp_path / "bad.py"
    path.write_text("raise ValueError('mine')\n")
    with pytest.raises(ValueError, match="mine"):
        main(["run", str(path)])


@pytest.mark.usefixtures("fake_engine")
def test_the_scripts_exit_code_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "leave.py"
    path.write_text("raise SystemExit(3)\n")
    assert run(str(path)) == 3


@pytest.mark.usefixtures("fake_engine")
def test_the_trace_is_written_however_the_script_ends(script: Path, tmp_path: Path) -> None:
    page = tmp_path / "out.html"
    assert run("--trace", str(page), str(script)) == 0
    assert "<summary>note</summary>" in page.read_text()
    script.write_text(SCRIPT + "    raise SystemExit(3)\n")
    page.unlink()
    assert run("--trace", str(page), str(script)) == 3
    assert "<summary>note</summary>" in page.read_text()
