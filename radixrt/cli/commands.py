"""The commands, put together; and the one place where an error becomes a message and an exit code."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from radixrt import __version__
from radixrt.cli import bench, cache, chat, demo, grammar, models, serve, top
from radixrt.cli import run as run_script
from radixrt.cli.failure import report
from radixrt.errors import RadixrtError

app = typer.Typer(
    name="radixrt",
    no_args_is_help=True,
    add_completion=False,
    # Rich cuts long option names where the terminal is narrow; plain help gives each its own line.
    rich_markup_mode="rich" if shutil.get_terminal_size().columns >= 110 else None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"radixrt {__version__}")
        raise typer.Exit


@app.callback()
def radixrt(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Run programs that call a language model many times over shared text.

    MODEL is a short name (`radixrt models` lists them), a directory with
    config.json and safetensors, a GGUF file, or a hub name.

    Example:  radixrt serve smollm2-135m
    """


app.command("demo")(demo.demo)
app.command("serve")(serve.serve)
app.command("chat")(chat.chat)
app.command("run", context_settings={"allow_extra_args": True, "allow_interspersed_args": False})(run_script.run)
app.command("pull")(models.pull)
app.command("models")(models.models)
app.command("top")(top.top)
app.command("bench")(bench.bench)
app.command("cache")(cache.cache)
app.add_typer(grammar.app, name="grammar")


def run(arguments: Sequence[str], runner: subprocess.Popen[bytes] | None = None) -> None:
    """Run the command that the arguments name, and exit. `runner`: of `launch.spawn_runner`, for `serve`."""
    try:
        app(arguments, prog_name="radixrt", obj=runner)
    except RadixrtError as error:
        report(error, arguments)
        sys.exit(1)
