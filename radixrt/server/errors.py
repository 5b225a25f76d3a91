"""Every error leaves in the shape of its route's protocol; on most that is OpenAI's, with two fields more:
{"error": {"message", "type", "param", "code", "kind", "pointer"}}.

`kind` names the class of `radixrt.errors`, from which `radixrt.Client` rebuilds it. The routes of Anthropic's and
Ollama's protocols have theirs.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import TypeVar

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from radixrt.errors import Aborted, InvalidRequest, NotFound, Overloaded, RadixrtError, RateLimited, Unauthorized
from radixrt.process import request_id
from radixrt.server.places import at

logger = logging.getLogger(__name__)

E = TypeVar("E", bound=RadixrtError)

MESSAGE_CHARS = 2000
INTERNAL = RadixrtError("the server met an unexpected error; its log says more", code="internal_error")
"""What a stranger is told about an exception that nobody raised on purpose."""
LEFT = Aborted(
    "the client has closed its sending side, as one does that leaves: keep it open until the answer is there",
    code="client_left",
)
SHUTTING_DOWN = Overloaded("the server is shutting down", code="shutting_down")


class ErrorDetail(msgspec.Struct, frozen=True, kw_only=True):
    message: str
    type: str
    param: str | None = None
    """The field of the body, as OpenAI's API spells one: `messages[0].content`."""
    code: str | None = None
    kind: str = "RadixrtError"
    pointer: str | None = None
    """A JSON pointer to what is at fault in that field: a schema's keyword."""


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    error: ErrorDetail


def _message(error: RadixrtError) -> str:
    """What it says; what a client wrote may be in it, at any length."""
    text = error.info().message
    return text if len(text) <= MESSAGE_CHARS else f"{text[:MESSAGE_CHARS]}..."


def _placed(error: RadixrtError) -> str:
    """The message with the place in front of it, for protocols that have no field for that."""
    text, place = _message(error), error.info().param
    return text if place is None or place in text else f"{place}: {text}"


def error_body(error: RadixrtError) -> bytes:
    """JSON of an error, as a response's body and as the data of a stream's error event."""
    if (error.param or "").startswith("/"):
        at(error, "constraint", error.param)
    info = error.info()
    return msgspec.json.encode(
        ErrorBody(
            error=ErrorDetail(
                message=_message(error), type=error.type, param=info.param, code=info.code, kind=info.kind,
                pointer=error.pointer,
            )
        )
    )  # fmt: skip


class AnthropicErrorDetail(msgspec.Struct, frozen=True, kw_only=True):
    type: str
    message: str


class AnthropicError(msgspec.Struct, frozen=True, kw_only=True):
    error: AnthropicErrorDetail
    type: str = "error"
    request_id: str | None = None


def anthropic_error_body(error: RadixrtError) -> bytes:
    kind = "api_error" if error.type == "server_error" else error.type
    if error.status == 413:
        kind = "request_too_large"
    detail = AnthropicErrorDetail(type=kind, message=_placed(error))
    return msgspec.json.encode(AnthropicError(error=detail, request_id=request_id.get()))


class OllamaError(msgspec.Struct, frozen=True, kw_only=True):
    error: str


def ollama_error_body(error: RadixrtError) -> bytes:
    return msgspec.json.encode(OllamaError(error=_placed(error)))


def body_for(path: str) -> Callable[[RadixrtError], bytes]:
    """How errors are written on this path."""
    if path == "/v1/messages" or path.startswith("/v1/messages/"):
        return anthropic_error_body
    return ollama_error_body if path.startswith("/api/") else error_body


def error_type(path: str) -> type[msgspec.Struct]:
    """The type of the JSON that `body_for(path)` writes."""
    types: dict[object, type[msgspec.Struct]] = {anthropic_error_body: AnthropicError, ollama_error_body: OllamaError}
    return types.get(body_for(path), ErrorBody)


def error_response(error: RadixrtError, path: str = "") -> Response:
    headers = {}
    if isinstance(error, Unauthorized):
        headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, Overloaded):
        headers["Retry-After"] = "1"
    if isinstance(error, RateLimited) and error.retry_after_s is not None:
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_s)))
    return Response(body_for(path)(error), error.status, headers, "application/json")


def as_radixrt_error(error: Exception) -> RadixrtError:
    """The error itself if it was raised on purpose; else it is logged, and what comes back says nothing of it."""
    if isinstance(error, RadixrtError):
        return error
    logger.error("unexpected error", exc_info=error)
    return INTERNAL


NO_ROUTE = (
    "there is no such route: GET /openapi.json lists them; the base URL of OpenAI clients ends in /v1, that of "
    "Anthropic's and Ollama's does not"
)


async def on_radixrt_error(request: Request, error: Exception) -> Response:
    """Handler for RadixrtError in FastAPI's table."""
    return error_response(as_radixrt_error(error), request.url.path)


async def on_http_exception(request: Request, error: Exception) -> Response:
    """Handler for what the router itself raises: no such route, no such method."""
    path = request.url.path
    if not isinstance(error, HTTPException):
        return error_response(as_radixrt_error(error), path)
    if error.status_code == 404:
        return error_response(NotFound(NO_ROUTE, code="route_not_found"), path)
    if error.status_code == 405:
        takes = (error.headers or {}).get("Allow", "other methods")
        refused: RadixrtError = InvalidRequest(f"this route takes {takes} only", code="method_not_allowed")
    else:
        refused = InvalidRequest(str(error.detail))
    response = error_response(with_status(refused, error.status_code), path)
    response.headers.update(error.headers or {})
    return response


def with_status(error: E, status: int) -> E:
    """The same error under another HTTP status than its class's."""
    error.status = status
    return error
