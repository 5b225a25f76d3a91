"""What `--help` says, and that saying it costs nothing."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest
import typer
from typer.testing import CliRunner

from radixrt import __version__
from radixrt.cli import app
from radixrt.cli.options import FLAGS
from radixrt.config import EngineConfig

COMMANDS = ("demo", "serve", "chat", "run", "pull", "models", "top", "cache")
WITH_ENGINE = ("demo", "serve", "chat", "run")
OWN_FILES = ("model", "grammar", "namespace_weights")
"""Fields whose flags are not in the table."""
FIELDS = [field.name for field in msgspec.structs.fields(EngineConfig) if field.name not in OWN_FILES]


def params(command: str) -> dict[str, list[str]]:
    """Parameter names of a command, with their flags."""
    group = typer.main.get_command(app)
    return {p.name: [*p.opts, *p.secondary_opts] for p in group.commands[command].params}  # type: ignore[attr-defined]


@pytest.mark.parametrize("command", COMMANDS)
def test_each_command_explains_itself_with_an_example(command: str) -> None:
    result = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "120"})
    assert result.exit_code == 0
    assert f"radixrt {command}" in result.output
    assert "Example:" in result.output


def test_the_front_page_lists_the_commands() -> None:
    result = CliRunner().invoke(app, ["--help"])
    assert result.exit_code == 0
    assert all(command in result.output for command in COMMANDS)


def test_version() -> None:
    result = CliRunner().invoke(app, ["--version"])
    assert (result.exit_code, result.output.strip()) == (0, f"radixrt {__version__}")


@pytest.mark.parametrize("command", WITH_ENGINE)
def test_every_field_of_the_config_has_a_flag(command: str) -> None:
    assert set(FIELDS) == set(FLAGS)
    flags = params(command)
    for name in FIELDS:
        flag = name.replace("_", "-")
        expected = f"--no-{flag}" if name in ("prefix_cache", "fair") else f"--{flag}"
        assert expected in flags[name]
    assert flags["namespace_weight"] == ["--namespace-weight"]
    assert "--max-model-len" in flags["context_length"]


def test_the_server_has_the_flags_of_the_peers() -> None:
    flags = params("serve")
    for name in ("host", "port", "uds", "api_key", "ssl_certfile", "ssl_keyfile", "cors_origin"):
        assert flags[name] == ["--" + name.replace("_", "-")]


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from radixrt.cli import main\n"
        "try:\n    main(['serve', '--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'numpy', 'fastapi', 'uvicorn', 'httpx', 'tokenizers', 'zmq', 'huggingface_hub'}\n"
        "print('LOADED', sorted(heavy & set(sys.modules)))\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == "LOADED []"
    assert "--port" in result.stdout
