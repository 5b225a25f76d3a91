"""Every error leaves in one shape: {"error": {"message", "type", "param", "code", "kind"}}.

The first four are OpenAI's; `kind` names the class of `radixrt.errors`, from which `radixrt.Client` rebuilds it.
"""

from __future__ import annotations

import logging
import math
from typing import TypeVar

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from radixrt.errors import InvalidRequest, NotFound, Overloaded, RadixrtError, RateLimited, Unauthorized

logger = logging.getLogger(__name__)

E = TypeVar("E", bound=RadixrtError)

INTERNAL = RadixrtError("the server met an unexpected error; its log says more", code="internal_error")
"""What a stranger is told about an exception that nobody raised on purpose."""
SHUTTING_DOWN = Overloaded("the server is shutting down", code="shutting_down")


class ErrorDetail(msgspec.Struct, frozen=True, kw_only=True):
    message: str
    type: str
    param: str | None = None
    code: str | None = None
    kind: str = "RadixrtError"


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    error: ErrorDetail


def error_body(error: RadixrtError) -> bytes:
    """JSON of an error, as a response's body and as the data of a stream's error event."""
    info = error.info()
    return msgspec.json.encode(
        ErrorBody(
            error=ErrorDetail(
                message=info.message, type=error.type, param=info.param, code=info.code, kind=info.kind
            )
        )
    )  # fmt: skip


def error_response(error: RadixrtError) -> Response:
    headers = {}
    if isinstance(error, Unauthorized):
        headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, Overloaded):
        headers["Retry-After"] = "1"
    if isinstance(error, RateLimited) and error.retry_after_s is not None:
        headers["Retry-After"] = str(max(1, math.ceil(error.retry_after_s)))
    return Response(error_body(error), error.status, headers, "application/json")


def as_radixrt_error(error: Exception) -> RadixrtError:
    """The error itself if it was raised on purpose; else it is logged, and what comes back says nothing of it."""
    if isinstance(error, RadixrtError):
        return error
    logger.error("unexpected error", exc_info=error)
    return INTERNAL


async def on_radixrt_error(request: Request, error: Exception) -> Response:
    """Handler for RadixrtError in FastAPI's table."""
    return error_response(as_radixrt_error(error))


async def on_http_exception(request: Request, error: Exception) -> Response:
    """Handler for what the router itself raises: no such route, no such method."""
    if not isinstance(error, HTTPException):
        return error_response(as_radixrt_error(error))
    if error.status_code == 404:
        return error_response(NotFound("there is no such route", code="route_not_found"))
    if error.status_code == 405:
        refused: RadixrtError = InvalidRequest("this route does not take this method", code="method_not_allowed")
    else:
        refused = InvalidRequest(str(error.detail))
    response = error_response(with_status(refused, error.status_code))
    response.headers.update(error.headers or {})
    return response


def with_status(error: E, status: int) -> E:
    """The same error under another HTTP status than its class's."""
    error.status = status
    return error
