"""`radixrt serve`: an engine behind the HTTP face."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from radixrt.cli import combinations
from radixrt.cli.options import EngineOptions, with_engine_options
from radixrt.cli.progress import Stages
from radixrt.cli.stopping import stops_cleanly
from radixrt.garbage import postpone, spare_what_stays

if TYPE_CHECKING:
    from radixrt.results import ModelInfo

SERVER = "Options of the server"
GUARD = "Who may call"
OnEngineDeath = Literal["restart", "exit"]


@with_engine_options
def serve(
    context: typer.Context,
    *,
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Model to serve.", show_default=False)],
    host: Annotated[
        str, typer.Option("--host", metavar="NAME", help="Address to listen on.", rich_help_panel=SERVER)
    ] = "127.0.0.1",
    port: Annotated[
        int,
        typer.Option("--port", metavar="N", min=0, max=65535, help="Port; 0 takes a free one.", rich_help_panel=SERVER),
    ] = 8000,
    uds: Annotated[
        Path | None,
        typer.Option("--uds", metavar="PATH", help="Listen on this Unix socket instead.", rich_help_panel=SERVER),
    ] = None,
    ssl_certfile: Annotated[
        Path | None,
        typer.Option("--ssl-certfile", metavar="PEM", help="Serve HTTPS with this certificate.", rich_help_panel=GUARD),
    ] = None,
    ssl_keyfile: Annotated[
        Path | None,
        typer.Option("--ssl-keyfile", metavar="PEM", help="The certificate's private key.", rich_help_panel=GUARD),
    ] = None,
    ssl_ca_certs: Annotated[
        Path | None,
        typer.Option(
            "--ssl-ca-certs", metavar="PEM", help="Ask clients for a certificate of this CA.", rich_help_panel=GUARD
        ),
    ] = None,
    api_key: Annotated[
        list[str] | None,
        typer.Option(
            "--api-key",
            metavar="KEY",
            envvar="RADIXRT_API_KEY",
            help="Refuse requests without a key; repeatable.",
            rich_help_panel=GUARD,
        ),
    ] = None,
    api_key_file: Annotated[
        Path | None,
        typer.Option(
            "--api-key-file",
            metavar="JSON",
            help="Keys with names, namespaces, rates and budgets.",
            rich_help_panel=GUARD,
        ),
    ] = None,
    admin_api_key: Annotated[
        str | None,
        typer.Option(
            "--admin-api-key",
            metavar="KEY",
            envvar="RADIXRT_ADMIN_API_KEY",
            help="Operations (/metrics, /flush_cache, ...) need this key.",
            rich_help_panel=GUARD,
        ),
    ] = None,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(
            "--allowed-host",
            metavar="NAME",
            help="On a loopback address: another name that Host may have; repeatable.",
            rich_help_panel=GUARD,
        ),
    ] = None,
    cors_origin: Annotated[
        list[str] | None,
        typer.Option(
            "--cors-origin",
            metavar="URL",
            help="Let browser pages of this origin call the server; repeatable.",
            rich_help_panel=GUARD,
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
    otlp_endpoint: Annotated[
        str | None,
        typer.Option(
            "--otlp-endpoint",
            metavar="URL",
            help="Send OpenTelemetry traces there (needs radixrt[otel]).",
            rich_help_panel=SERVER,
        ),
    ] = None,
    on_engine_death: Annotated[
        OnEngineDeath,
        typer.Option(
            "--on-engine-death",
            help="restart: start it again, with back-off, five times in a row; exit: stop with 1.",
            rich_help_panel=SERVER,
        ),
    ] = "restart",
    engine_options: EngineOptions,
) -> None:
    """Serve a model over HTTP, with the OpenAI routes under /v1.

    SIGINT or SIGTERM drains and stops; a second one stops at once. When a
    process of the engine dies, running requests fail, /health says 503, and
    the engine is started again (--on-engine-death).

    Example:  radixrt serve smollm2-135m --port 8000
    """
    given = {"host": host, "port": port, "uds": uds, "allowed_host": allowed_host}
    combinations.check(context, given, combinations.SERVE)
    postpone()
    from radixrt.launch import compute_threads, spawn_runner

    threads = compute_threads(engine_options["threads"], max(1, engine_options["tp"]))
    runner = context.find_object(subprocess.Popen) or spawn_runner(threads)
    from radixrt import Engine
    from radixrt.process import setup_logging
    from radixrt.server.early import Early
    from radixrt.server.hosts import origins_of
    from radixrt.server.keys import keys_of
    from radixrt.server.listening import Tls, bind, bind_unix, url_of
    from radixrt.server.restarts import Restarts
    from radixrt.server.tracing import over_http
    from radixrt.slices import ask_short_slice

    if (ssl_certfile is None) != (ssl_keyfile is None) or (ssl_ca_certs and not ssl_certfile):
        raise typer.BadParameter("--ssl-certfile and --ssl-keyfile go together, --ssl-ca-certs with both")
    setup_logging(engine_options["log_level"], "server", engine_options["log_format"])
    ask_short_slice()
    keys = keys_of(api_key or (), file=api_key_file, admin=admin_api_key)
    tls = Tls(ssl_certfile, ssl_keyfile, ssl_ca_certs) if ssl_certfile and ssl_keyfile else None
    if tls is not None:
        tls.check()
    tracing = over_http(otlp_endpoint) if otlp_endpoint else None
    origins = origins_of(cors_origin or ())
    with stops_cleanly(), Stages() as stages:
        banner = Banner(stages, uds, key_needed=bool(keys))
        listener = bind(host, port) if uds is None else bind_unix(uds)
        banner.bound(url_of(listener, "https" if tls else "http"))
        # All that can be wrong at a glance has been looked at: the engine starts while we import the web framework.
        spawned = [runner]

        def make() -> Engine:
            first = spawned.pop() if spawned else None  # an engine that is made again starts a runner of its own
            return Engine(model, **engine_options, on_progress=stages, runner=first)

        engine = Early(make)
        from radixrt.server.serve import serve as serve_http

        serve_http(
            engine,
            host=host,
            port=port,
            uds=uds,
            listener=listener,
            tls=tls,
            keys=keys,
            allowed_hosts=allowed_host or (),
            cors_origins=origins,
            tracing=tracing,
            restarts=Restarts() if on_engine_death == "restart" else None,
            drain_timeout_s=drain_timeout_s,
            access_log=engine_options["log_level"] in ("debug", "info"),
            on_ready=banner.ready,
        )


class Banner:
    """What a starting server says on stderr: where it listens at once, and what it serves when it does."""

    def __init__(self, stages: Stages, uds: Path | None = None, *, key_needed: bool = False) -> None:
        self._stages = stages
        self._uds = uds
        self._key_needed = key_needed
        self._url = ""

    def bound(self, url: str) -> None:
        self._url = url
        say(f"radixrt listens on {url} and loads the model")

    def ready(self, info: ModelInfo) -> None:
        from radixrt.results import computing

        spare_what_stays()
        self._stages.close()
        vectors = f"vectors of {info.embedding.size:,}" if info.embedding is not None else ""
        holds = f"{info.kv_tokens:,} KV tokens" if info.generates else vectors
        say(f"radixrt serves {info.name}: {computing(info)}; {holds}, context {info.context_length:,}")
        say("try:")
        say(f"  {curl(self._url, info, self._uds, key_needed=self._key_needed)}")


def curl(url: str, info: ModelInfo, uds: Path | None = None, *, key_needed: bool = False) -> str:
    """A first request to copy into a shell. A key is left for the shell to fill in: what is printed may be kept."""
    if not info.generates:
        route, what = "embeddings", '"input": "Once upon a time"'
    elif info.has_chat_template:
        route, what = "chat/completions", '"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 64'
    else:
        route, what = "completions", '"prompt": "Once upon a time", "max_tokens": 64'
    body = f'{{"model": "{info.name}", {what}}}'
    where = f"{url}/v1/{route}" if uds is None else f"--unix-socket {shlex.quote(str(uds))} http://localhost/v1/{route}"
    key = ' -H "Authorization: Bearer $RADIXRT_API_KEY"' if key_needed else ""
    return f"curl {where}{key} -H 'Content-Type: application/json' -d '{body}'"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
