"""`f.explain(...)`: what a program will ask for, as far as that can be known without asking.

The body is run for real, with its arguments, up to its first read of something that the model must write; nothing is
sent for it and nothing stands in for a result, so what the plan says is what a run does. It is also why the plan ends
there, and why what the body does before (prints, files) happens.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from radixrt.backend import Backend
from radixrt.errors import InvalidRequest
from radixrt.lang.channel import Channel
from radixrt.lang.compiled import item_of
from radixrt.lang.executor import Branch
from radixrt.lang.ir import Join, Node, lines, tree
from radixrt.lang.operations import (
    AddText,
    Choose,
    CloseTurn,
    EndText,
    Fills,
    Fork,
    Generate,
    Look,
    OpenTurn,
    Operation,
    Reach,
)
from radixrt.lang.run import Run
from radixrt.lang.services import OpenAI
from radixrt.lang.spans import Span, here
from radixrt.segments import Gen as GenItem
from radixrt.segments import ProgramItem
from radixrt.segments import Select as SelectItem

if TYPE_CHECKING:
    from radixrt.lang.state import ProgramState


class FirstRead(BaseException):
    """Ends the body of a planned run; not an Exception, so that a body does not take it for a failure."""

    def __init__(self, span: Span | None, what: str) -> None:
        super().__init__("a plan ends at the first read")
        self.span = span
        self.what = what


class PlannedBranch(Branch):
    """Writes down what it is asked to do, and does none of it."""

    def __init__(self, run: Run, label: str | None = None, parent: Branch | None = None) -> None:
        super().__init__(run, label, parent)
        self.planned: list[Operation] = []
        self.spans: list[Span | None] = []
        """Of each, where it was written."""

    def child(self, label: str) -> Branch:
        return PlannedBranch(self.run, label, self)

    def submit(self, *operations: Operation) -> None:
        for operation in operations:
            if isinstance(operation, Look | Reach | EndText):
                raise FirstRead(here(), "what the run has come to")
            self.planned.append(operation)
            self.spans.append(here())

    def before_join(self, branches: int) -> None:
        self.submit(Join(branches))
        raise FirstRead(here(), "what its branches gather")

    def before_read(self, future: Future[Any]) -> None:
        if not future.done():
            raise FirstRead(here(), _name_of(future, self.run))

    def read_text(self) -> Channel:
        raise FirstRead(here(), "the growing text")


def _name_of(future: Future[Any], run: Run) -> str:
    for branch in run.branches:
        for operation in branch.planned if isinstance(branch, PlannedBranch) else ():
            if isinstance(operation, Fills) and operation.variable.future is future and operation.variable.name:
                return repr(operation.variable.name)
    return "a value"


@dataclass(slots=True)
class Plan:
    """What `explain` found out; `str(plan)` is the text of it.

    `prefix_chars` and `prefix_tokens` are of the constant text before the trunk's first gen or select (tokens: where
    there is a backend). `stopped` is the line of the first read, `read` what it is of; `whole`: there is none, and all
    is known.
    """

    program: str
    branches: list[PlannedBranch] = field(default_factory=list)
    prefix_tokens: int | None = None
    stopped: Span | None = None
    read: str = ""
    whole: bool = True
    again: Callable[..., ProgramState] | None = None
    """Runs the body that it came from."""
    known: dict[str, Any] = field(default_factory=dict)
    """What the body `set`."""

    @property
    def nodes(self) -> tuple[Node, ...]:
        """What the program does, as far as it is known (`ir.py`)."""
        return tree(self.branches[0])

    def run(self, *, backend: Backend | OpenAI | None = None, **options: Any) -> ProgramState:
        """Run what was planned; options as those of `Function.run`. A plan that is whole runs by its nodes alone, the
        body is not called again; any other begins anew with the body, whose reads are waited for."""
        if self.again is None:
            raise InvalidRequest("this plan was not made by compile")
        return self.again(self, backend=backend, **options)

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
        told = [
            f"program {self.program}: {len(self.asked)} gens and selects are known, in {len(self.branches)} branches",
            f"constant prefix: {self.prefix_chars} characters{tokens}",
            *lines(self.nodes, "  "),
            *self._requests(),
        ]
        if self.whole:
            told.append("the body reads nothing that the model writes: this is all of it")
        else:
            where = f" at {self.stopped}" if self.stopped else ""
            told.append(f"first read{where}, of {self.read}: the body waits there; what it does then depends on it")
        return "\n".join(told)

    def _requests(self) -> list[str]:
        """What runs without a question in between."""
        told = []
        for i, branch in enumerate(self.branches):
            asked = sum(isinstance(item, GenItem | SelectItem) for item in self.request(i))
            if asked:
                label = str(branch.label).rsplit(" > ", 1)[-1] if branch.label else "trunk"
                told.append(f"{label}: one program request, gens and selects that follow one another in it: {asked}")
        return told


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
