"""A constraint's source on its way to a back end, and the checks that all back ends share."""

from __future__ import annotations

import msgspec

from radixrt.errors import ConstraintError
from radixrt.grammar.errors import GrammarDeadEnd, MatcherFailed
from radixrt.grammar.limits import Limits
from radixrt.grammar.token_matcher import TokenGrammar
from radixrt.grammar.wording import UNSATISFIABLE
from radixrt.params import Constraint

MAX_WHITESPACE = 32
"""Most whitespace characters in a row between JSON tokens, with `any_whitespace`."""


class Source(msgspec.Struct, frozen=True):
    """What a back end compiles."""

    text: str
    added: tuple[str, ...] = ()
    """JSON pointers to keywords that were said in other words."""
    ignored: tuple[str, ...] = ()
    """JSON pointers to keywords that were left out (lax)."""
    unique_keys: bool = False
    """The back end would let a key come twice (`keys.py`)."""
    few_keys: int | None = None
    """Keys that an object must have before patterns may leave it no other (`few_keys.py`); None: that cannot happen."""
    passed: tuple[str, ...] = ()
    """Of each back end that was asked before and refused: `name: why`."""


class Plan(msgspec.Struct, frozen=True):
    """Which back end takes a constraint, and what it is given."""

    backend: str
    source: Source


def check_size(constraint: Constraint, limits: Limits) -> None:
    """Raises ConstraintError when the constraint's source is too large or no UTF-8 text; costs next to nothing."""
    kind = constraint.kind
    if len(constraint.choices) > limits.max_choices:
        raise ConstraintError(
            f"choice holds {len(constraint.choices)} strings; the limit is {limits.max_choices}", param=kind
        )
    try:
        size = source_bytes(constraint)
    except UnicodeEncodeError as error:
        raise ConstraintError(f"{kind} holds a lone surrogate, which no text can contain", param=kind) from error
    if size > limits.max_source_bytes:
        raise ConstraintError(f"{kind} is {size} bytes long; the limit is {limits.max_source_bytes}", param=kind)


def source_bytes(constraint: Constraint) -> int:
    """UTF-8 bytes of a constraint's source."""
    return len(constraint.value.encode()) + sum(len(choice.encode()) for choice in constraint.choices)


def proven(grammar: TokenGrammar, constraint: Constraint) -> TokenGrammar:
    """The grammar after its first mask; ConstraintError where that is empty or too much work."""
    try:
        grammar.first_mask()
    except (GrammarDeadEnd, MatcherFailed) as error:
        kind = constraint.kind
        if isinstance(error, MatcherFailed):
            raise ConstraintError(
                f"this {kind} is too complex: {error.message}", param=kind, code=error.code
            ) from error
        code = UNSATISFIABLE if kind == "json_schema" else None
        raise ConstraintError(f"nothing satisfies this {kind}: no text can begin", param=kind, code=code) from error
    return grammar
