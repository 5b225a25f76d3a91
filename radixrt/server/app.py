"""The application: routes, error handlers and layers, put together in one place."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio.to_thread
from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response

import radixrt
from radixrt.errors import RadixrtError
from radixrt.results import ModelInfo
from radixrt.server import (
    anthropic,
    cache,
    models,
    native,
    ollama,
    ollama_embed,
    ollama_types,
    ops,
    page_routes,
    responses,
    systemone,
    tokens,
)
from radixrt.server.anthropic_types import CountTokensRequest, MessagesRequest
from radixrt.server.callers import Callers
from radixrt.server.errors import on_http_exception, on_radixrt_error
from radixrt.server.hosts import CheckHost
from radixrt.server.keys import Access, Keys
from radixrt.server.metrics import HttpMetrics
from radixrt.server.middleware import Guard, RequireKey
from radixrt.server.native_types import (
    DecodeRequest,
    EncodeRequest,
    GenerateRequest,
    PinRequest,
    ScoreRequest,
    UnpinRequest,
)
from radixrt.server.openai_chat import chat_completions
from radixrt.server.openai_completions import completions
from radixrt.server.openai_embeddings import EmbeddingRequest, embeddings
from radixrt.server.openai_types import ChatRequest, CompletionRequest
from radixrt.server.openapi import describe
from radixrt.server.program_types import ProgramRequest
from radixrt.server.programs import programs
from radixrt.server.responses_types import ResponsesRequest
from radixrt.server.restarts import Restarts
from radixrt.server.select import select
from radixrt.server.select_types import SelectRequest
from radixrt.server.state import Limits, OpenEngine, ServerState, ServingEngine
from radixrt.server.tracing import Tracing


@dataclass(frozen=True)
class Route:
    method: str
    path: str
    handler: Callable[[Request], Awaitable[Response]]
    body: type | None = None
    """Type of the JSON body, for the description at /openapi.json; the handler reads and checks it."""
    access: Access = "key"
    """Who may call it, where the server has keys."""


ROUTES = (
    Route("GET", "/v1/models", models.list_models),
    Route("GET", "/v1/models/{model_id:path}", models.get_model),
    Route("POST", "/v1/chat/completions", chat_completions, ChatRequest),
    Route("POST", "/v1/completions", completions, CompletionRequest),
    Route("POST", "/v1/embeddings", embeddings, EmbeddingRequest),
    Route("POST", "/v1/select", select, SelectRequest),
    Route("POST", "/v1/programs", programs, ProgramRequest),
    Route("POST", "/v1/systemone", systemone.systemone, systemone.SystemOneRequest),
    Route("POST", "/v1/responses", responses.create, ResponsesRequest),
    Route("GET", "/v1/responses/{response_id}", responses.retrieve),
    Route("DELETE", "/v1/responses/{response_id}", responses.delete),
    Route("GET", "/v1/responses/{response_id}/input_items", responses.input_items),
    Route("POST", "/v1/messages", anthropic.messages, MessagesRequest),
    Route("POST", "/v1/messages/count_tokens", anthropic.count_tokens, CountTokensRequest),
    Route("POST", "/api/chat", ollama.chat, ollama_types.ChatRequest),
    Route("POST", "/api/generate", ollama.generate, ollama_types.GenerateRequest),
    Route("GET", "/api/tags", ollama.tags),
    Route("GET", "/api/ps", ollama.ps),
    Route("POST", "/api/show", ollama.show, ollama_types.ShowRequest),
    Route("GET", "/api/version", ollama.version),
    Route("POST", "/api/embed", ollama_embed.embed, ollama_embed.EmbedRequest),
    Route("POST", "/api/embeddings", ollama_embed.embeddings, ollama_embed.EmbeddingsRequest),
    Route("POST", "/tokenize", tokens.tokenize, tokens.TokenizeRequest),
    Route("POST", "/detokenize", tokens.detokenize, tokens.DetokenizeRequest),
    Route("POST", "/generate", native.generate, GenerateRequest),
    Route("POST", "/score", native.score, ScoreRequest),
    Route("POST", "/encode", native.encode, EncodeRequest),
    Route("POST", "/decode", native.decode, DecodeRequest),
    *(Route("GET", path, page_routes.page, access="open") for path in page_routes.FILES),
    Route("POST", "/apply-template", tokens.apply_template, tokens.ApplyTemplateRequest),
    Route("POST", "/abort", ops.abort, ops.AbortRequest),
    Route("GET", "/health", ops.health, access="open"),
    Route("GET", "/ready", ops.ready),
    Route("GET", "/metrics", ops.metrics, access="admin"),
    Route("GET", "/server_info", ops.server_info),
    Route("GET", "/cache", cache.view),
    Route("POST", "/flush_cache", cache.flush, access="admin"),
    Route("POST", "/v1/cache/pin", cache.pin, PinRequest),
    Route("POST", "/v1/cache/unpin", cache.unpin, UnpinRequest),
)


def create_app(
    engine: ServingEngine | OpenEngine,
    *,
    served_name: str | None = None,
    keys: Keys | None = None,
    allowed_hosts: Sequence[str] | None = None,
    cors_origins: Sequence[str] = (),
    limits: Limits | None = None,
    restarts: Restarts | None = None,
    tracing: Tracing | None = None,
    on_ready: Callable[[ModelInfo], None] | None = None,
) -> FastAPI:
    """An application that serves `engine`.

    An engine that is given stays the caller's, to close. A callable that makes one is called in a thread when the
    application starts, and what it made is closed when the application ends; with `restarts` it may be made again after
    a death (`ServerState.reopen`). `served_name` is the model's name for
    clients (None: the engine's own). With `keys` every route but those declared open needs one. With `allowed_hosts`
    (also an empty one) the Host header must be a loopback name or one of them; where there are no keys either, pages
    of other sites are refused what changes or costs something. Without `cors_origins` no browser of another origin may
    read answers.
    """
    state = ServerState(served_name=served_name, limits=limits or Limits(), on_ready=on_ready)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        if callable(engine):
            state.open(engine, restarts)
        else:
            state.adopt(engine)
        try:
            yield
        finally:
            await anyio.to_thread.run_sync(state.close)
            if tracing is not None:
                await anyio.to_thread.run_sync(tracing.close)

    # The interactive pages would load scripts from elsewhere; the description itself stays at /openapi.json.
    app = FastAPI(
        title="radixrt",
        version=radixrt.__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        # Newer versions trace and log by themselves where a process has a global provider, bodies and stack traces too:
        # what leaves this process is for `tracing` alone to say.
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    app.state.radixrt = state
    app.state.http_metrics = HttpMetrics()
    app.add_exception_handler(RadixrtError, on_radixrt_error)
    app.add_exception_handler(HTTPException, on_http_exception)
    for route in ROUTES:
        app.add_api_route(route.path, route.handler, methods=[route.method])
        if route.method == "GET":
            app.add_api_route(route.path, route.handler, methods=["HEAD"], include_in_schema=False)
    describe(app, ROUTES, keyed=bool(keys))
    # The last one added is the outermost: what RequireKey refuses is counted, and carries CORS headers.
    if keys:
        app.add_middleware(
            RequireKey, callers=Callers(keys), access={route.path: route.access for route in ROUTES}
        )  # fmt: skip
    anywhere = allowed_hosts is None or keys
    app.add_middleware(CheckHost, allowed=allowed_hosts, origins=["*"] if anywhere else cors_origins)
    app.add_middleware(Guard, metrics=app.state.http_metrics, requests=state.requests, tracing=tracing)
    if cors_origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=list(cors_origins), allow_methods=["*"], allow_headers=["*"]
        )  # fmt: skip
    return app
