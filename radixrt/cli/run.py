"""`radixrt run FILE.py`: a script with a backend already set."""

from __future__ import annotations

import runpy
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from radixrt.cli import combinations
from radixrt.cli.address import BaseUrl, server
from radixrt.cli.options import ENGINE_FLAGS, EngineOptions, with_engine_options
from radixrt.cli.progress import Stages
from radixrt.errors import RadixrtError

if TYPE_CHECKING:
    from radixrt.backend import Backend


@with_engine_options
def run(
    context: typer.Context,
    *,
    file: Annotated[
        Path, typer.Argument(metavar="FILE.py", exists=True, dir_okay=False, help="Script; its arguments follow it.")
    ],
    model: Annotated[str, typer.Option("--model", "-m", help="Model that the script's programs run on.")] = (
        "smollm2-135m"
    ),
    base_url: BaseUrl = None,
    api_key: Annotated[
        str | None, typer.Option("--api-key", envvar="RADIXRT_API_KEY", help="Key for --base-url.")
    ] = None,
    trace: Annotated[
        Path | None, typer.Option("--trace", metavar="OUT.html", help="Write what the programs did as one HTML page.")
    ] = None,
    engine_options: EngineOptions,
) -> None:
    """Run a Python script with the default backend of radixrt.lang set.

    Options of radixrt stand before FILE.py; what stands after it is the script's.

    Example:  radixrt run --model smollm2-135m lang/examples/few_shot.py
    """
    if base_url is None and combinations.typed(context, "api_key"):
        raise typer.BadParameter("is the key of a server: give --base-url too", param_hint="--api-key")
    if base_url is not None:
        combinations.only_with_an_engine(context, ("model", *ENGINE_FLAGS), "--base-url")
        from radixrt import Client

        with Client(server(base_url, "--base-url"), api_key=api_key) as client:
            run_script(file, context.args, client, trace)
    else:
        from radixrt import Engine

        with Stages() as stages, Engine(model, **engine_options, on_progress=stages) as engine:
            stages.close()
            run_script(file, context.args, engine, trace)


def run_script(file: Path, arguments: list[str], backend: Backend, trace: Path | None = None) -> None:
    """Run `file` as `__main__`, as `python FILE.py ARGUMENTS` would, over `backend`.

    `trace` is written however the script ends, with all programs that were run.
    """
    if trace is not None:
        from radixrt.lang.page import page
        from radixrt.lang.trace import record_runs, trace_of

        with record_runs() as runs:
            try:
                run_script(file, arguments, backend)
            finally:
                trace.write_text(page(map(trace_of, runs), file.name), encoding="utf-8")
        return
    from radixrt.lang import set_default_backend

    saved_argv, saved_path = sys.argv, sys.path[:]
    sys.argv = [str(file), *arguments]
    sys.path.insert(0, str(file.resolve().parent))
    set_default_backend(backend)
    try:
        runpy.run_path(str(file), run_name="__main__")
    except RadixrtError as error:
        where = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
        if where:
            print(f"{where[-1].filename}:{where[-1].lineno}: {where[-1].line}", file=sys.stderr)
        raise
    finally:
        set_default_backend(None)
        sys.argv, sys.path[:] = saved_argv, saved_path
