"""`radixrt demo`."""

from __future__ import annotations

from typing import Annotated

import typer

from radixrt.cli.options import EngineOptions, with_engine_options
from radixrt.cli.progress import Stages


@with_engine_options
def demo(
    *,
    model: Annotated[str, typer.Option("--model", help="Model to run; fetched once.")] = "smollm2-135m",
    engine_options: EngineOptions,
) -> None:
    """Run three real jobs on a small model and show what the prefix tree saved.

    The model (about 90 MB) is fetched once and kept under RADIXRT_HOME.

    Example:  radixrt demo
    """
    from radixrt import Engine
    from radixrt.demo import run_demo

    with Stages() as stages, Engine(model, **engine_options, on_progress=stages) as engine:
        stages.close()
        run_demo(engine)
