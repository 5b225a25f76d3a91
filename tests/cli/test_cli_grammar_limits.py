"""The limits of constraints are flags of every command that starts an engine."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import typer
from typer.testing import CliRunner

from radixrt.cli import app, grammar_options
from radixrt.cli.options import EngineOptions, with_engine_options
from radixrt.config import EngineConfig
from radixrt.limits import Limits

FIELDS = [field.name for field in msgspec.structs.fields(Limits)]


@pytest.mark.parametrize("command", ["serve", "run", "chat", "demo"])
def test_every_limit_has_a_flag(command: str) -> None:
    group = typer.main.get_command(app)
    found = {p.name: p.opts for p in group.commands[command].params}  # type: ignore[attr-defined]
    for name in FIELDS:
        assert found[f"grammar_{name}"] == ["--grammar-" + name.replace("_", "-")]
    assert list(grammar_options.HELP) == FIELDS


def test_limits_reach_the_config() -> None:
    seen: list[dict[str, Any]] = []
    own = typer.Typer()

    @own.command()
    @with_engine_options
    def command(*, engine_options: EngineOptions) -> None:
        seen.append(engine_options)

    for words in ([], ["--grammar-max-depth", "7", "--grammar-max-row-s", "0.5"]):
        assert CliRunner().invoke(own, words).exit_code == 0
    assert "grammar" not in seen[0]
    assert EngineConfig(model="m", **seen[1]).grammar == Limits(max_depth=7, max_row_s=0.5)
