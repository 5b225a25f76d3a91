"""What can go wrong while a constrained row runs. (A constraint that is refused is a `ConstraintError`.)"""

from __future__ import annotations

from radixrt.errors import ConstraintError, ErrorInfo, GenerationFailed


class GrammarError(GenerationFailed):
    """The matcher of one row failed; the row must end with this error, other rows go on."""

    def info(self) -> ErrorInfo:
        # The wire knows the public kinds only; `code` keeps the difference.
        return ErrorInfo(kind=GenerationFailed.__name__, message=self.message, param=self.param, code=self.code)


class GrammarDeadEnd(GrammarError):
    """No token at all may come next: the text so far cannot be completed within the constraint."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code="grammar_dead_end")


class TokenRefused(GrammarError):
    """The token is not allowed here. The matcher is unchanged and can be used further."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code="grammar_token_refused")


class MatcherFailed(GrammarError):
    """The back end gave up (a limit on the work of one step, an internal error). The matcher is dead."""

    def __init__(self, message: str) -> None:
        super().__init__(message, code="grammar_failed")


class TooComplex(MatcherFailed):
    """The constraint itself asked for more than a limit allows: whoever sent it must change it (400), at any length."""

    def info(self) -> ErrorInfo:
        return ErrorInfo(kind=ConstraintError.__name__, message=self.message, code="constraint_too_complex")
