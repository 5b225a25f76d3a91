"""The one error hierarchy: every error says what the user can do about it, and which HTTP status it becomes.

A message never holds a path of the server, a memory address or another tenant's text: it may reach a stranger.
"""

from __future__ import annotations

import msgspec


class ErrorInfo(msgspec.Struct, frozen=True, kw_only=True):
    """An error on the wire. `RadixrtError.from_info` turns it back into the exception of its kind."""

    kind: str
    message: str
    param: str | None = None
    code: str | None = None


class RadixrtError(Exception):
    """Base of all errors that radixrt raises on purpose.

    Attributes:
        message: what went wrong and what to do about it.
        param: the request field at fault, as the client spelt it, or None. From the engine a constraint's fault has a
            JSON pointer into the constraint here.
        pointer: where inside that field: a JSON pointer, which servers tell beside the field's name.
        code: a stable machine-readable word (for example `context_length_exceeded`), or None.
    """

    status = 500
    """HTTP status that the server answers with."""
    type = "server_error"
    """`error.type` in the OpenAI error shape."""
    pointer: str | None = None

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code

    def info(self) -> ErrorInfo:
        return ErrorInfo(kind=self.__class__.__name__, message=self.message, param=self.param, code=self.code)

    @staticmethod
    def from_info(info: ErrorInfo) -> RadixrtError:
        """The exception that `info` describes; an unknown kind becomes a plain `RadixrtError`."""
        return _KINDS.get(info.kind, RadixrtError)(info.message, param=info.param, code=info.code)


class InvalidRequest(RadixrtError):
    """The request itself is wrong: change it before sending it again."""

    status = 400
    type = "invalid_request_error"


class ContextLengthExceeded(InvalidRequest):
    """The prompt, or prompt and `max_tokens` together, cannot fit the context or the KV pool."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = "context_length_exceeded") -> None:
        super().__init__(message, param=param, code=code)


class ConstraintError(InvalidRequest):
    """A constraint that cannot be enforced or is malformed; `param` holds a JSON pointer where there is one.

    `code` is `invalid_constraint` where no other word fits better: `schema_unsatisfiable`, `constraint_too_complex`,
    `constraint_too_expensive` (to compile), `constraint_dead_end` and the like.
    """

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message, param=param, code=code or "invalid_constraint")


class Unauthorized(RadixrtError):
    """No key, or a wrong one."""

    status = 401
    type = "authentication_error"


class Forbidden(RadixrtError):
    """The key is right, but it may not do this."""

    status = 403
    type = "permission_error"


class RateLimited(RadixrtError):
    """The key has used what it may: come back after `retry_after_s` seconds (None: not before the server restarts)."""

    status = 429
    type = "rate_limit_error"

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message, param=param, code=code)
        self.retry_after_s = retry_after_s


class NotFound(RadixrtError):
    """The model or object that the request names does not exist here."""

    status = 404
    type = "not_found_error"


class Overloaded(RadixrtError):
    """The queue is full: try again later."""

    status = 503
    type = "overloaded_error"


class Aborted(RadixrtError):
    """The request was aborted before it finished."""

    status = 499
    type = "aborted"


class EngineDead(RadixrtError):
    """One of the engine's processes ended: the request cannot be finished; restart the engine."""

    status = 503
    type = "server_error"


class GenerationFailed(RadixrtError):
    """This request failed while it ran, by no fault of its own (the model's outputs were no numbers); others go on."""


class ModelError(RadixrtError):
    """The model's files are missing, broken, or of a kind that radixrt does not run."""


class StartupError(RadixrtError):
    """The engine could not start; the message says why."""


_KINDS: dict[str, type[RadixrtError]] = {
    cls.__name__: cls
    for cls in (
        InvalidRequest, ContextLengthExceeded, ConstraintError, Unauthorized, Forbidden, RateLimited, NotFound,
        Overloaded, Aborted, EngineDead, GenerationFailed, ModelError, StartupError,
    )
}  # fmt: skip
