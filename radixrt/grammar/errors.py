"""What can go wrong while a constrained row runs. (A constraint that is refused is a plain `ConstraintError`.)

All of it is for whoever sent the constraint to mend, by another constraint or another back end: a 400, at any length
of the text.
"""

from __future__ import annotations

from radixrt.errors import ConstraintError, ErrorInfo


class GrammarError(ConstraintError):
    """The matcher of one row failed; the row must end with this error, other rows go on."""

    def info(self) -> ErrorInfo:
        # The wire knows the public kinds only; `code` keeps the difference.
        return ErrorInfo(kind=ConstraintError.__name__, message=self.message, param=self.param, code=self.code)


class GrammarDeadEnd(GrammarError):
    """No token at all may come next: the text so far cannot be completed within the constraint."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code="constraint_dead_end")


class TokenRefused(GrammarError):
    """The token is not allowed here. The matcher is unchanged and can be used further."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code="constraint_token_refused")


class MatcherFailed(GrammarError):
    """The back end gave up for a reason that it keeps to itself. The matcher is dead."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code="constraint_failed")


class TooComplex(MatcherFailed):
    """The constraint asked for more than a limit allows. The matcher is dead."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.code = "constraint_too_complex"
