"""`f.explain(...)`: what a program will ask for, as far as that can be known without asking.

The body is run for real, with its arguments, up to its first read of something that the model must write; nothing is
sent for it and nothing stands in for a result, so what the plan says is what a run does. It is also why the plan ends
there, and why what the body does before (prints, files) happens.
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from radixrt.backend import Backend
from radixrt.lang.channel import Channel
from radixrt.lang.compiled import item_of
from radixrt.lang.executor import Branch
from radixrt.lang.operations import (
    AddText,
    BeginScope,
    Choose,
    CloseTurn,
    EndScope,
    EndText,
    Fork,
    Generate,
    Look,
    OpenTurn,
    Operation,
    PinText,
    Prefill,
    Reach,
    UnpinText,
)
from radixrt.lang.run import Run
from radixrt.lang.services import OpenAI
from radixrt.lang.spans import Span, here
from radixrt.segments import Gen as GenItem
from radixrt.segments import ProgramItem
from radixrt.segments import Select as SelectItem

SHOWN = 60
"""Characters of a constant text that the plan shows."""


class FirstRead(BaseException):
    """Ends the body of a planned run; not an Exception, so that a body does not take it for a failure."""

    def __init__(self, span: Span | None) -> None:
        super().__init__("a plan ends at the first read")
        self.span = span


class PlannedBranch(Branch):
    """Writes down what it is asked to do, and does none of it."""

    def __init__(self, run: Run, label: str | None = None, parent: Branch | None = None) -> None:
        super().__init__(run, label, parent)
        self.planned: list[Operation] = []

    def child(self, label: str) -> Branch:
        return PlannedBranch(self.run, label, self)

    def submit(self, *operations: Operation) -> None:
        for operation in operations:
            if isinstance(operation, Look | Reach | EndText):
                raise FirstRead(here())
            self.planned.append(operation)

    def before_read(self, future: Future[Any]) -> None:
        if not future.done():
            raise FirstRead(here())

    def read_text(self) -> Channel:
        raise FirstRead(here())


@dataclass(slots=True)
class Plan:
    """What `explain` found out; `str(plan)` is the text of it.

    `prefix_chars` and `prefix_tokens` are of the constant text before the trunk's first gen or select (tokens: where
    there is a backend). `stopped` is the line of the first read; `whole`: there is none, and all is known.
    """

    program: str
    branches: list[PlannedBranch] = field(default_factory=list)
    prefix_tokens: int | None = None
    stopped: Span | None = None
    whole: bool = True

    @property
    def prefix_chars(self) -> int:
        return sum(len(operation.text) for operation in self.prefix() if isinstance(operation, AddText))

    def prefix(self) -> list[Operation]:
        """The trunk's operations before its first gen, select or fork."""
        found: list[Operation] = []
        for operation in self.branches[0].planned:
            if isinstance(operation, Generate | Choose | Fork):
                break
            found.append(operation)
        return found

    @property
    def asked(self) -> list[Generate | Choose]:
        """Every gen and select that is known, branch by branch."""
        return [o for branch in self.branches for o in branch.planned if isinstance(o, Generate | Choose)]

    def request(self, branch: int = 0) -> list[ProgramItem]:
        """The items that a branch sends as one program request, which runs in the engine without a question in between.

        A read of the body would wait for it, and so ends the plan.
        """
        items: list[ProgramItem] = []
        asked = 0
        for operation in self.branches[branch].planned:
            if (item := item_of(operation, asked)) is not None:
                items.append(item)
                asked += isinstance(item, GenItem | SelectItem)
        return items

    def __str__(self) -> str:
        tokens = f", {self.prefix_tokens} tokens" if self.prefix_tokens is not None else ""
        lines = [
            f"program {self.program}: {len(self.asked)} gens and selects are known, in {len(self.branches)} branches",
            f"constant prefix: {self.prefix_chars} characters{tokens}",
            *self._lines(0, "  "),
            *self._requests(),
        ]
        if self.whole:
            lines.append("the body reads nothing that the model writes: this is all of it")
        else:
            where = f" at {self.stopped}" if self.stopped else ""
            lines.append(f"first read{where}: the body waits there for what it reads; what it does then depends on it")
        return "\n".join(lines)

    def _requests(self) -> list[str]:
        """What runs without a question in between."""
        lines = []
        for i, branch in enumerate(self.branches):
            asked = sum(isinstance(item, GenItem | SelectItem) for item in self.request(i))
            if asked:
                label = str(branch.label).rsplit(" > ", 1)[-1] if branch.label else "trunk"
                lines.append(f"{label}: one program request, gens and selects that follow one another in it: {asked}")
        return lines

    def _lines(self, index: int, indent: str) -> list[str]:
        lines: list[str] = []
        for operation in self.branches[index].planned:
            if isinstance(operation, Fork):
                lines.append(f"{indent}fork: {len(operation.children)} branches, which run at once and beside this one")
                for child in operation.children:
                    number = next(i for i, branch in enumerate(self.branches) if branch is child)
                    lines.append(f"{indent}  {str(child.label).rsplit(' > ', 1)[-1]}:")
                    lines += self._lines(number, indent + "    ")
            elif words := _words(operation):
                lines.append(indent + words)
        return lines


def new_run(program: str, backend: Backend | OpenAI | None) -> tuple[Run, PlannedBranch]:
    """A run of which nothing is done; it needs no backend."""
    run = Run(program, backend)
    return run, PlannedBranch(run)


async def count_prefix(plan: Plan, backend: Backend) -> None:
    """Tokenizes the constant prefix as a run would."""
    context = plan.branches[0].context
    operations = plan.branches[0].planned
    for operation in operations[: len(plan.prefix()) + 1]:
        if isinstance(operation, AddText):
            context.add_text(operation.text)
        elif isinstance(operation, OpenTurn):
            context.open_turn(operation.turn)
        elif isinstance(operation, CloseTurn):
            context.close_turn()
        elif isinstance(operation, Generate) and operation.gen.tools is not None:
            context.show_tools(operation.gen.tools.shown)
    await context.flush(backend)
    plan.prefix_tokens = len(context.ids)


def _words(operation: Operation) -> str | None:
    match operation:
        case AddText(text=text):
            return f"text {text!r}" if len(text) <= SHOWN else f"text {text[:SHOWN]!r}... ({len(text)} characters)"
        case Generate(gen=gen):
            held = f", held to {gen.constraint.kind}" if gen.constraint else ""
            limit = f", at most {gen.sampling.max_tokens} tokens" if gen.sampling.max_tokens is not None else ""
            tools = f", tools: {', '.join(gen.tools.functions)}" if gen.tools else ""
            samples = f", {gen.sampling.n} samples" if gen.sampling.n > 1 else ""
            return f"gen {gen.name or '(no name)'} ({gen.span}){limit}{samples}{tools or held}"
        case Choose(select=select):
            return f"select {select.name or '(no name)'} ({select.span}) of {len(select.choices)} choices"
        case OpenTurn(turn=turn):
            return f"{turn.role}:"
        case BeginScope(variable=variable):
            return f"scope {variable.name} begins"
        case EndScope(variable=variable):
            return f"scope {variable.name} ends"
        case Prefill():
            return "cache: the text so far is computed"
        case PinText(ttl_s=ttl_s):
            return f"pin: the text so far is kept for {ttl_s:g} s"
        case UnpinText():
            return "unpin: what this branch has pinned is let go"
        case _:
            return None
