"""What a program raises where a result is read."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from radixrt.errors import RadixrtError
from radixrt.lang.spans import Span


class ProgramError(RadixrtError):
    """A program's result cannot be had; raised where that result is read, and again at every later read.

    Attributes:
        program: name of the function.
        branch: which branch failed ("fork 2 of 8", nested ones joined by " > "), None for the trunk.
        variable: the variable under way, or None where it had no name.
        span: file and line where that gen or select was written, where it is known.
        reason: the words of the server or of the check that failed.
    `status`, `type`, `param` and `code` are those of the error it stands for, which is its `__cause__`.
    """

    def __init__(
        self,
        reason: str,
        *,
        program: str,
        branch: str | None = None,
        variable: str | None = None,
        span: Span | None = None,
        cause: BaseException | None = None,
        code: str | None = None,
    ) -> None:
        where = [f"program {program!r}"]
        if branch:
            where.append(branch)
        if span:
            where.append(str(span))
        if variable:
            where.append(f"variable {variable!r}")
        known = cause if isinstance(cause, RadixrtError) else None
        super().__init__(
            f"{', '.join(where)}: {reason}",
            param=known.param if known else None,
            code=code or (known.code if known else None),
        )
        if known:
            self.status, self.type = known.status, known.type
        self.reason = reason
        self.program = program
        self.branch = branch
        self.variable = variable
        self.span = span
        self.__cause__ = cause


class UnknownVariable(ProgramError, KeyError):
    """A name that the program never set; the message lists those that exist. Also a KeyError."""

    def __init__(self, name: str, names: Iterable[str], *, program: str, branch: str | None = None) -> None:
        known = sorted(names)
        reason = "there is no such variable" + (f"; there are: {', '.join(known)}" if known else "; there are none yet")
        near = difflib.get_close_matches(name, known, n=1)
        if near:
            reason += f" (did you mean {near[0]!r}?)"
        super().__init__(reason, program=program, branch=branch, variable=name)

    def __str__(self) -> str:
        return self.message
