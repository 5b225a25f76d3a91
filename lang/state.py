"""`ProgramState`: what a program's body is given, and what a run returns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Literal, TypeVar

from msgspec import structs

from radixrt.errors import InvalidRequest
from radixrt.lang.capabilities import refuse_pins
from radixrt.lang.context import Turn
from radixrt.lang.executor import Branch
from radixrt.lang.expressions import (
    Call,
    Concat,
    Expr,
    ExprLike,
    Gen,
    Role,
    RoleBlock,
    Select,
    Text,
    as_expr,
)
from radixrt.lang.forks import Forks
from radixrt.lang.operations import (
    AddText,
    BeginScope,
    Choose,
    CloseTurn,
    EndScope,
    Fork,
    Generate,
    OpenTurn,
    PinText,
    Prefill,
    UnpinText,
)
from radixrt.lang.readable import Readable
from radixrt.lang.run import Run
from radixrt.lang.variables import Variable
from radixrt.pinning import checked_ttl

T = TypeVar("T")
MAX_FORKS = 1024


class ProgramState(Readable):
    """The growing text of one branch of a program, and its variables.

    `s += expr` returns at once; the work is done in the background, in order. Reading (`s["x"]`, `s.get`, `s.meta`,
    `s.text()`, `s.messages()`, `s.ids`, `s.usage`) waits for what it needs, and raises ProgramError where that
    failed. A state is used by one thread at a time; different states may be used by different threads.
    """

    def __init__(self, run: Run, branch: Branch, variables: dict[str, Variable] | None = None) -> None:
        super().__init__(run, branch, variables)
        self._form: Literal["text", "chat"] | None = None
        self._role: Role | None = None
        self._asked = 0
        """Gens with tools so far."""

    # --- appending ---------------------------------------------------------------------------------------------------

    def __iadd__(self, expr: ExprLike) -> ProgramState:
        self._append(as_expr(expr))
        return self

    def _append(self, expr: Expr) -> None:
        match expr:
            case Concat(parts=parts):
                for part in parts:
                    self._append(part)
            case Text(text=text):
                self._content("text")
                if text:
                    self.branch.submit(AddText(text))
            case Gen():
                self._content("gen")
                ready = self._with_tools(expr)
                self.branch.submit(Generate(self._declare(ready), ready))
            case Select():
                self._content("select")
                self.branch.submit(Choose(self._declare(expr), expr))
            case RoleBlock(role=role, body=body, name=name, tool_call_id=tool_call_id):
                with self.turn(Turn(role, name, tool_call_id)):
                    self._append(body)
            case Call(function=function, args=args, kwargs=kwargs):
                function.inline(self, args, kwargs)
            case _:
                raise InvalidRequest(f"a program does not know the expression {type(expr).__name__}")

    def system(self) -> AbstractContextManager[ProgramState]:
        """`with s.system(): s += ...` is the same as `s += system(...)`; so for the next three."""
        return self.turn(Turn("system"))

    def user(self) -> AbstractContextManager[ProgramState]:
        return self.turn(Turn("user"))

    def assistant(self) -> AbstractContextManager[ProgramState]:
        return self.turn(Turn("assistant"))

    def tool(self, *, tool_call_id: str | None = None, name: str | None = None) -> AbstractContextManager[ProgramState]:
        return self.turn(Turn("tool", name, tool_call_id))

    @contextmanager
    def turn(self, turn: Turn) -> Iterator[ProgramState]:
        """What `system()`, `user()`, `assistant()` and `tool()` do."""
        if self._role is not None:
            raise InvalidRequest(f"{turn.role}(...) stands inside {self._role}(...): turns do not nest")
        if self._form == "text":
            raise InvalidRequest(f"{turn.role}(...) follows text that stands outside of any turn")
        self._form, self._role = "chat", turn.role
        self.branch.submit(OpenTurn(turn))
        try:
            yield self
        finally:
            self._role = None
            self.branch.submit(CloseTurn())

    @contextmanager
    def var_scope(self, name: str) -> Iterator[ProgramState]:
        """What is written inside becomes the variable `name`: all text, constant and generated, without markers."""
        variable = Variable(name)
        self.branch.submit(BeginScope(variable))
        try:
            yield self
        finally:
            self._names.declare(name, variable)
            self.branch.submit(EndScope(variable))

    def set(self, name: str, value: object) -> None:
        """Keeps a Python value as a variable."""
        self._names.declare(name, Variable.known(name, value))

    def cache(self) -> None:
        """Has the text so far computed now, in the background, so that what goes on from it finds it in the cache.

        Nothing has to be cached by hand for branches to share it; this only brings the work forward.
        """
        self.branch.submit(Prefill())

    def pin(self, ttl: float) -> None:
        """Has the text so far computed, in the background, and kept in the prefix tree for `ttl` seconds, whatever else
        needs room: for later runs, too, that begin alike (`radixrt.backend.Backend.pin` says what a pin promises).

        Raises InvalidRequest for a `ttl` that is no number of seconds above 0, and over a service that is not radixrt.
        A quota that is passed is raised by the next read.
        """
        refuse_pins(self.run.service)
        self.branch.submit(PinText(checked_ttl(ttl)))

    def unpin(self) -> None:
        """Ends the pins that this state has made (its forks' are their own), before their time."""
        refuse_pins(self.run.service)
        self.branch.submit(UnpinText())

    def _with_tools(self, gen: Gen) -> Gen:
        """A gen with tools is held to what this run's model may call."""
        if gen.tools is None:
            return gen
        if self._role != "assistant":
            raise InvalidRequest("tools need an assistant's turn: put the gen into assistant(...)", param="tools")
        if self.run.service is not None or not self.run.has_backend:
            return gen
        self._asked += 1
        info, place = self.run.backend.info, f"{self.branch.label} {self._asked}"
        codec, sampling = gen.tools.codec(info, place), gen.sampling
        if info.tool_controls:
            sampling = structs.replace(sampling, skip_special_tokens=False)  # calls are read from the text
        how = gen.tools.reading(info, place)
        return replace(gen, sampling=sampling, constraint=codec.constraint, codec=codec, calls=how)

    def _declare(self, expr: Gen | Select) -> Variable:
        variable = Variable(expr.name, expr.span)
        if not expr.append or expr.name is None:
            return self._names.declare(expr.name, variable)
        self._names.extend(expr.name, variable)
        return variable

    def _content(self, what: str) -> None:
        if self._form == "chat" and self._role is None:
            raise InvalidRequest(f"{what} stands outside of any turn: put it into user(...) or assistant(...)")
        self._form = self._form or "text"

    # --- branching ---------------------------------------------------------------------------------------------------

    def fork(self, n: int) -> Forks:
        """n branches that go on from here, each for itself and all at once; they have the variables set so far."""
        if not isinstance(n, int) or isinstance(n, bool) or not 1 <= n <= MAX_FORKS:
            raise InvalidRequest(f"fork takes a number between 1 and {MAX_FORKS}, not {n!r}", param="n")
        return Forks(self, self._children([f"fork {i} of {n}" for i in range(1, n + 1)]))

    def fork_map(self, items: Iterable[T], body: Callable[[ProgramState, T], ExprLike | None] | None = None) -> Forks:
        """One branch an item, in the order of the items, which `forks.items` keeps.

        `body(fork, item)` is called for each before this returns; an expression that it returns is appended. Branches
        run at once as long as a body only appends; one that reads waits, and those after it start later. Without
        `body`: `for fork, item in zip(forks, items): fork += ...`.
        """
        values = tuple(items)
        if len(values) > MAX_FORKS:
            raise InvalidRequest(f"fork_map takes at most {MAX_FORKS} items, not {len(values)}", param="items")
        n = len(values)
        forks = Forks(self, self._children([f"fork {i} of {n}" for i in range(1, n + 1)]), values)
        if body is not None:
            for fork, item in zip(forks, values, strict=True):
                expr = body(fork, item)
                if expr is not None:
                    fork += expr
        return forks

    def copy(self) -> ProgramState:
        """One branch that goes on from here, beside this one."""
        return self._children(["copy"])[0]

    def _children(self, labels: list[str]) -> list[ProgramState]:
        path = f"{self.branch.label} > " if self.branch.label else ""
        branches = [self.branch.child(path + label) for label in labels]
        states = []
        for branch in branches:
            state = ProgramState(self.run, branch, self.variables())
            state._form, state._role = self._form, self._role
            states.append(state)
        self.branch.submit(Fork(tuple(branches)))
        return states
