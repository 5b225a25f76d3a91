"""`radixrt serve`: an engine behind the HTTP face."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from radixrt.cli.options import EngineOptions, with_engine_options
from radixrt.cli.progress import Stages

if TYPE_CHECKING:
    from radixrt.results import ModelInfo

SERVER = "Options of the server"


@with_engine_options
def serve(
    *,
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Model to serve.", show_default=False)],
    host: Annotated[
        str, typer.Option("--host", metavar="NAME", help="Address to listen on.", rich_help_panel=SERVER)
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option("--port", metavar="N", min=0, max=65535, help="Port; 0 takes a free one.", rich_help_panel=SERVER),
    ] = 8000,
    api_key: Annotated[
        str | None,
        typer.Option(
            "--api-key",
            metavar="KEY",
            envvar="RADIXRT_API_KEY",
            help="Refuse requests without this key.",
            rich_help_panel=SERVER,
        ),
    ] = None,
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(
            "--cors-origin",
            metavar="URL",
            help="Let browser pages of this origin call the server; repeatable.",
            rich_help_panel=SERVER,
        ),
    ] = None,
    drain_timeout_s: Annotated[
        float,
        typer.Option(
            "--drain-timeout-s",
            metavar="SECONDS",
            min=0,
            help="What running requests get to finish on shutdown.",
            rich_help_panel=SERVER,
        ),
    ] = 5.0,
    engine_options: EngineOptions,
) -> None:
    """Serve a model over HTTP, with the OpenAI routes under /v1.

    SIGINT or SIGTERM drains and stops; a second one stops at once. When a
    process of the engine dies, /health says 503 and the server exits with 1.

    [dim]Example:[/dim]  radixrt serve smollm2-135m --port 8000
    """
    from radixrt import Engine
    from radixrt.process import setup_logging
    from radixrt.server.serve import serve as serve_http

    setup_logging(engine_options["log_level"], "server")
    with Stages() as stages:
        banner = Banner(stages)
        serve_http(
            lambda: Engine(model, **engine_options, on_progress=stages),
            host=host,
            port=port,
            api_key=api_key,
            cors_origins=cors_origin or (),
            drain_timeout_s=drain_timeout_s,
            access_log=engine_options["log_level"] in ("debug", "info"),
            on_bound=banner.bound,
            on_ready=banner.ready,
        )


class Banner:
    """What a starting server says on stderr: where it listens at once, and what it serves when it does."""

    def __init__(self, stages: Stages) -> None:
        self._stages = stages
        self._url = ""

    def bound(self, url: str) -> None:
        self._url = url
        say(f"radixrt listens on {url} and loads the model")

    def ready(self, info: ModelInfo) -> None:
        self._stages.close()
        say(
            f"radixrt serves {info.name}: {info.dtype} on {info.device}, {info.threads} threads, "
            f"{info.kv_tokens:,} KV tokens, context {info.context_length:,}"
        )
        say("try:")
        say(f"  {curl(self._url, info)}")


def curl(url: str, info: ModelInfo) -> str:
    """A first request to copy into a shell."""
    if info.has_chat_template:
        route, what = "chat/completions", '"messages": [{"role": "user", "content": "Hello!"}]'
    else:
        route, what = "completions", '"prompt": "Once upon a time"'
    body = f'{{"model": "{info.name}", {what}, "max_tokens": 64}}'
    return f"curl {url}/v1/{route} -H 'Content-Type: application/json' -d '{body}'"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
