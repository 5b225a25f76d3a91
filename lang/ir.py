"""What a program was found to do, as a tree of small nodes: made of what a planned branch was asked to do, printed by
`explain`, and written onto a state by `write`, which is how a plan runs without the body that it came from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeAlias

from radixrt.conversation import Turn
from radixrt.lang import expressions
from radixrt.lang.operations import (
    AddText,
    BeginScope,
    Choose,
    CloseTurn,
    EndScope,
    Fork,
    Generate,
    OpenTurn,
    Operation,
    PinText,
    Prefill,
    UnpinText,
)
from radixrt.lang.spans import Span

if TYPE_CHECKING:
    from radixrt.lang.state import ProgramState

SHOWN = 60
"""Characters of a constant text that are shown."""


@dataclass(frozen=True, slots=True)
class TextNode:
    text: str
    span: Span | None = None


@dataclass(frozen=True, slots=True)
class GenNode:
    gen: expressions.Gen

    @property
    def span(self) -> Span | None:
        return self.gen.span


@dataclass(frozen=True, slots=True)
class SelectNode:
    select: expressions.Select

    @property
    def span(self) -> Span | None:
        return self.select.span


@dataclass(frozen=True, slots=True)
class RoleNode:
    """A turn, with what stands in it."""

    turn: Turn
    body: tuple[Node, ...]
    span: Span | None = None


@dataclass(frozen=True, slots=True)
class ScopeNode:
    """A variable that is the text written inside."""

    name: str | None
    body: tuple[Node, ...]
    span: Span | None = None


@dataclass(frozen=True, slots=True)
class ForkNode:
    """Branches that go on from here, at once and beside what follows."""

    branches: tuple[tuple[Node, ...], ...]
    span: Span | None = None


@dataclass(frozen=True, slots=True)
class JoinNode:
    """The body waits for branches: what follows is planned as it happens."""

    branches: int
    span: Span | None = None


@dataclass(frozen=True, slots=True)
class KeepNode:
    """cache() or unpin(), and pin(ttl) with its seconds."""

    what: str
    ttl_s: float = 0.0
    span: Span | None = None


Node: TypeAlias = TextNode | GenNode | SelectNode | RoleNode | ScopeNode | ForkNode | JoinNode | KeepNode


@dataclass(frozen=True, slots=True)
class Join(Operation):
    """Of a planned branch alone: branches are waited for."""

    branches: int


class Planned(Protocol):
    """A branch that writes down what it is asked, and where."""

    planned: list[Operation]
    spans: list[Span | None]


def tree(branch: Planned) -> tuple[Node, ...]:
    """The nodes of a branch, its forks' below them."""
    return _nodes(list(zip(branch.planned, branch.spans, strict=True)))


def _nodes(steps: list[tuple[Operation, Span | None]]) -> tuple[Node, ...]:
    """Takes steps off the front, up to the end of the turn or scope that they stand in."""
    found: list[Node] = []
    while steps:
        operation, span = steps.pop(0)
        match operation:
            case AddText(text=text):
                found.append(TextNode(text, span))
            case Generate(gen=gen):
                found.append(GenNode(gen))
            case Choose(select=select):
                found.append(SelectNode(select))
            case OpenTurn(turn=turn):
                found.append(RoleNode(turn, _nodes(steps), span))
            case BeginScope(variable=variable):
                found.append(ScopeNode(variable.name, _nodes(steps), span))
            case CloseTurn() | EndScope():
                break
            case Fork(children=children):
                below = [tree(child) for child in children]  # type: ignore[arg-type]  # a planned branch's are planned
                found.append(ForkNode(tuple(below), span))
            case Join(branches=branches):
                found.append(JoinNode(branches, span))
            case Prefill():
                found.append(KeepNode("cache", span=span))
            case PinText(ttl_s=ttl_s):
                found.append(KeepNode("pin", ttl_s, span))
            case UnpinText():
                found.append(KeepNode("unpin", span=span))
    return tuple(found)


def write(state: ProgramState, nodes: Sequence[Node]) -> None:
    """Append nodes to a state, as the body did that they came from."""
    for node in nodes:
        match node:
            case TextNode(text=text):
                state += text
            case GenNode(gen=gen):
                state += gen
            case SelectNode(select=select):
                state += select
            case RoleNode(turn=turn, body=body):
                with state.turn(turn):
                    write(state, body)
            case ScopeNode(name=name, body=body):
                with state.var_scope(name or ""):
                    write(state, body)
            case ForkNode(branches=branches):
                for fork, below in zip(state.fork(len(branches)), branches, strict=True):
                    write(fork, below)
            case KeepNode(what="pin", ttl_s=ttl_s):
                state.pin(ttl_s)
            case KeepNode(what="unpin"):
                state.unpin()
            case KeepNode():
                state.cache()


def lines(nodes: Sequence[Node], indent: str) -> list[str]:
    """A line a node, what stands in it indented."""
    found: list[str] = []
    for node in nodes:
        where = f" ({node.span})" if node.span is not None else ""
        match node:
            case RoleNode(turn=turn, body=body):
                found += [f"{indent}{turn.role}:", *lines(body, indent + "  ")]
            case ScopeNode(name=name, body=body):
                found += [f"{indent}scope {name}:", *lines(body, indent + "  ")]
            case ForkNode(branches=branches):
                n = len(branches)
                found.append(f"{indent}fork{where}: {n} branches, which run at once and beside this one")
                for i, below in enumerate(branches, 1):
                    found += [f"{indent}  fork {i} of {n}:", *lines(below, indent + "    ")]
            case _:
                found.append(indent + _words(node, where))
    return found


def _words(node: Node, where: str) -> str:
    match node:
        case TextNode(text=text):
            shown = f"{text!r}" if len(text) <= SHOWN else f"{text[:SHOWN]!r}... ({len(text)} characters)"
            return f"text {shown}{where}"
        case GenNode(gen=gen):
            held = f", held to {gen.constraint.kind}" if gen.constraint else ""
            limit = f", at most {gen.sampling.max_tokens} tokens" if gen.sampling.max_tokens is not None else ""
            tools = f", tools: {', '.join(gen.tools.functions)}" if gen.tools else ""
            samples = f", {gen.sampling.n} samples" if gen.sampling.n > 1 else ""
            return f"gen {gen.name or '(no name)'}{where}{limit}{samples}{tools or held}"
        case SelectNode(select=select):
            return f"select {select.name or '(no name)'}{where} of {len(select.choices)} choices"
        case JoinNode(branches=branches):
            return f"join{where} of {branches} branches"
        case KeepNode(what="pin", ttl_s=ttl_s):
            return f"pin{where}: the text so far is kept for {ttl_s:g} s"
        case KeepNode(what="unpin"):
            return f"unpin{where}: what this branch has pinned is let go"
        case _:
            return f"cache{where}: the text so far is computed"
