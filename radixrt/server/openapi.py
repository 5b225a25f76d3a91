"""/openapi.json: bodies, parameters, answers, errors; FastAPI sees none of them, for the handlers go by msgspec."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

import msgspec
import numpy as np
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from radixrt.server.answers import ANSWERS, EVENTS, Answer
from radixrt.server.errors import AnthropicError, ErrorBody, OllamaError, error_type

_JSON = "application/json"
_STATUSES = {
    400: "The request is wrong: the message says how, `param` where.",
    401: "A key is needed, or the key is wrong.",
    403: "The key may not do this, or the Host header names another server.",
    404: "What the request names is not here.",
    413: "The body is larger than this server accepts.",
    415: "The body is compressed.",
    429: "The key has used what it may; Retry-After says when to come back.",
    499: "The request was aborted, or took longer than it said it might.",
    500: "The request failed, and others go on.",
    503: "The model is loading or restarting, the queue is full, or a process has died.",
}
_KEYED = frozenset({401, 429})
_WITH_BODY = frozenset({413, 415, 499})
_TAGS = {
    "Anthropic": ("/v1/messages",),
    "Ollama": ("/api/",),
    "operations": (
        "/v1/cache/", "/cache", "/flush_cache", "/abort", "/health", "/ready", "/metrics", "/server_info",
    ),
    "native": ("/v1/select", "/v1/programs", "/v1/systemone", "/generate", "/score", "/encode", "/decode"),
    "OpenAI": ("/v1/",),
    "tokens": ("/tokenize", "/detokenize", "/apply-template"),
    "page": ("/",),
}  # fmt: skip
"""Groups of routes, by what their paths begin with; the first that fits."""
_SCHEMES = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "x-api-key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}


class Described(Protocol):
    """A row of the table of routes."""

    @property
    def method(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def body(self) -> type | None: ...
    @property
    def access(self) -> str: ...


def describe(app: FastAPI, routes: Sequence[Described], *, keyed: bool) -> None:
    """Make `app` describe `routes`; computed when first asked for. `keyed`: all but the open ones ask for a key."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _document(app, routes, keyed)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _document(app: FastAPI, routes: Sequence[Described], keyed: bool) -> dict[str, Any]:
    document = get_openapi(title=app.title, version=app.version, routes=app.routes)
    schemas = _Schemas(routes)
    for route in routes:
        path = route.path.replace(":path}", "}")
        operation = document["paths"][path][route.method.lower()]
        answer = ANSWERS.get((route.method, route.path), Answer(media=""))
        operation["tags"] = [next(tag for tag, starts in _TAGS.items() if route.path.startswith(starts))]
        operation["parameters"] = list(_parameters(path, answer))
        if route.body is not None:
            content = {_JSON: {"schema": schemas[route.body]}}
            operation["requestBody"] = {"required": True, "content": content}
        operation["responses"] = _responses(route, answer, schemas, keyed=keyed and route.access != "open")
        if keyed and route.access != "open":
            operation["security"] = [{name: []} for name in _SCHEMES]
    document["components"] = {"schemas": schemas.components}
    if keyed:
        document["components"]["securitySchemes"] = _SCHEMES
    return document


def _parameters(path: str, answer: Answer) -> Iterator[dict[str, Any]]:
    for piece in path.split("/"):
        if piece.startswith("{"):
            yield {"name": piece.strip("{}"), "in": "path", "required": True, "schema": {"type": "string"}}
    for name in answer.query:
        yield {"name": name, "in": "query", "required": False, "schema": {"type": "string"}}


def _responses(route: Described, answer: Answer, schemas: _Schemas, *, keyed: bool) -> dict[str, Any]:
    found: dict[str, Any] = {}
    content: dict[str, Any] = {}
    if answer.whole is not None:
        content[_JSON] = {"schema": schemas[answer.whole]}
    elif answer.media:
        content[answer.media] = {"schema": {"type": "string"}}
    if answer.pieces:
        held = (*answer.pieces, error_type(route.path))
        content[answer.stream] = {"schema": _piece(answer.stream, [schemas[kind] for kind in held])}
    if content:
        found["200"] = {"description": "The answer.", "content": content}
    for status, description in _STATUSES.items():
        if status in answer.also:
            found[str(status)] = {"description": description, "content": {_JSON: {"schema": schemas[answer.whole]}}}
        elif (keyed or status not in _KEYED) and (route.body is not None or status not in _WITH_BODY):
            error = {_JSON: {"schema": schemas[error_type(route.path)]}}
            found[str(status)] = {"description": description, "content": error}
            if status == 429:
                found["429"]["headers"] = {"Retry-After": {"schema": {"type": "string"}}}
    return found


def _piece(media: str, schemas: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A stream as one event or line of it: OpenAPI 3.1 has no word for a sequence (3.2: `itemSchema`)."""
    text = {"type": "string", "contentMediaType": _JSON, "contentSchema": {"anyOf": list(schemas)}}
    if media != EVENTS:
        return text
    data = {"anyOf": [text, {"const": "[DONE]"}]}
    return {"type": "object", "properties": {"event": {"type": "string"}, "data": data}, "required": ["data"]}


class _Schemas:
    """JSON Schemas of all types that the table names, with their shared components."""

    def __init__(self, routes: Sequence[Described]) -> None:
        types: list[Any] = [ErrorBody, AnthropicError, OllamaError]
        types += [route.body for route in routes if route.body is not None]
        for answer in ANSWERS.values():
            types += [kind for kind in (answer.whole, *answer.pieces) if kind is not None]
        self._types = list(dict.fromkeys(types))
        references, self.components = msgspec.json.schema_components(
            self._types, schema_hook=_schema_hook, ref_template="#/components/schemas/{name}"
        )
        self._references: Mapping[Any, dict[str, Any]] = dict(zip(self._types, references, strict=True))

    def __getitem__(self, kind: Any) -> dict[str, Any]:
        return self._references[kind]


def _schema_hook(kind: type) -> dict[str, Any]:
    if kind is np.ndarray:
        return {"type": "array", "items": {"type": "integer", "minimum": 0}}
    raise NotImplementedError(f"{kind} has no JSON Schema")
