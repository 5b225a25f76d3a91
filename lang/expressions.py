"""What may be appended to a program's state: small immutable nodes, joined by `+`.

Nodes say what is wanted and nothing of how it is done; `state.py` turns them into operations. Users make them with
the functions in `constructors.py`, which check their arguments.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from radixrt.called import CallText
from radixrt.errors import InvalidRequest
from radixrt.lang.spans import Span
from radixrt.params import ChoicesMethod, Constraint, SamplingParams

if TYPE_CHECKING:
    from radixrt.lang.program import Function
    from radixrt.lang.tools import Toolbox
    from radixrt.lang.typed import Codec

Role: TypeAlias = Literal["system", "user", "assistant", "tool"]


class Expr:
    """Base of all nodes; `a + b` is a then b, and a plain string counts as text on either side."""

    __slots__ = ()

    def __add__(self, other: ExprLike) -> Concat:
        return Concat((*parts(self), *parts(as_expr(other))))

    def __radd__(self, other: ExprLike) -> Concat:
        return Concat((*parts(as_expr(other)), *parts(self)))


ExprLike: TypeAlias = str | Expr


@dataclass(frozen=True, slots=True)
class Text(Expr):
    """Constant text; never parsed for special tokens."""

    text: str


@dataclass(frozen=True, slots=True)
class Concat(Expr):
    """Nodes in order; never nested."""

    parts: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Gen(Expr):
    """Generated text, kept under `name`; `codec` turns the text into a typed value where it is read."""

    name: str | None
    sampling: SamplingParams
    constraint: Constraint | None = None
    codec: Codec | None = None
    heal: bool | None = None
    """None: where it can be (`healing.py`)."""
    append: bool = False
    """The name is a list, and this one more item of it."""
    span: Span | None = field(default=None, compare=False)
    tools: Toolbox | None = None
    """What the model may call; the value is a `Reply`."""
    calls: CallText | None = None
    """With tools, once the model is known: how its calls stand in the text."""


@dataclass(frozen=True, slots=True)
class Select(Expr):
    """The best of some texts by their exact token scores, kept under `name`."""

    name: str | None
    choices: tuple[str, ...]
    method: ChoicesMethod
    append: bool = False
    return_cache_report: bool = False
    span: Span | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class RoleBlock(Expr):
    """One turn of a conversation; its markers come from the model's chat template."""

    role: Role
    body: Expr
    name: str | None = None
    tool_call_id: str | None = None


@dataclass(frozen=True, slots=True)
class Call(Expr):
    """Another program, appended like text: its body runs on the state that it is appended to."""

    function: Function
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


def as_expr(value: object) -> Expr:
    """The node for a value. InvalidRequest for what is neither text nor a node (a number needs `str(...)` first)."""
    if isinstance(value, Expr):
        return value
    if isinstance(value, str):
        return Text(value)
    raise InvalidRequest(
        f"only text and expressions can be appended to a program, not {type(value).__name__}: write str(...) around it"
    )


def parts(expr: Expr) -> tuple[Expr, ...]:
    return expr.parts if isinstance(expr, Concat) else (expr,)
