"""The README's recipe for an endpoint that strangers call, each block as it is pasted (only the address is ours)."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from radixrt.server.keys import keys_of
from tests.waiting import HANG_S

from .live import Live

README = Path(__file__).parents[2] / "README.md"
TITLE = "### An endpoint that strangers call"
ADDRESS = "http://127.0.0.1:8000"


def blocks(language: str, text: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


@pytest.fixture(scope="module")
def recipe() -> str:
    text = README.read_text()
    return text[text.index(TITLE) :].partition("\n## ")[0]


def shell(script: str, where: Path) -> str:
    done = subprocess.run(["bash", "-e", "-c", script], cwd=where, capture_output=True, text=True, timeout=HANG_S)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_keys_and_the_command_that_starts_it(recipe: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but the last command is run by a shell; the last one's options are read by the command, up to serving."""
    from radixrt.cli import main
    from radixrt.server import listening, serve

    *lines, command = blocks("bash", recipe)[0].strip().splitlines()
    shell("\n".join(lines), tmp_path)
    keys = keys_of((), file=tmp_path / "keys.json", admin=None)
    assert keys
    seen: dict[str, Any] = {}
    bind = listening.bind
    monkeypatch.setattr(listening, "bind", lambda host, port: bind(host, 0))  # somebody may serve on 8000 here
    monkeypatch.setattr(serve, "serve", lambda engine, **options: seen.update(options))
    monkeypatch.chdir(tmp_path)
    name, *arguments = shlex.split(command)
    assert name == "radixrt"
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert not ended.value.code and seen["port"] == 8000 and seen["keys"]


def test_the_client(recipe: str, live: Live, capsys: pytest.CaptureFixture[str]) -> None:
    (program,) = blocks("python", recipe)
    exec(compile(program.replace(ADDRESS, live.url), str(README), "exec"), {"__name__": "recipe"})  # noqa: S102 - our own
    parsed, refused = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r".* \d{1,4}", parsed)
    assert re.match(r"response_format\.json_schema\.schema .*at /properties/code/pattern: ", refused), refused


def test_the_shell(recipe: str, live: Live, tmp_path: Path) -> None:
    commands = re.split(r"^(?=curl )", blocks("bash", recipe)[1].replace(ADDRESS, live.url), flags=re.MULTILINE)[1:]
    chosen, answered, program, metrics = (shell(command, tmp_path) for command in commands)
    assert json.loads(chosen)["choice"] in (" delivery", " repair", " refund")
    assert "team" in json.dumps(json.loads(answered))
    said = json.loads(program)
    assert len(said["forks"][0]["texts"]) == 2 and said["selects"][0]["selection"]["choice"] in (" A", " B")
    assert "radixrt_requests_running" in metrics


def test_the_program_of_the_rooms_readme(live: Live, tmp_path: Path) -> None:
    (command,) = blocks("bash", (README.parent / "radixrt" / "server" / "README.md").read_text())
    said = json.loads(shell(command.replace(ADDRESS, live.url), tmp_path))
    assert [entry["name"] for entry in said["forks"]] == ["views"] and len(said["gens"]) == 2
